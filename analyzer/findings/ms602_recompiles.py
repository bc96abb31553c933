"""MS602: the dump holds the kernel several times: it was compiled again."""

from collections.abc import Iterator

from analyzer.findings.base import HIGH, Context, Finding, Rule


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    again = context.facts.get("identical_recompiles") or []
    if not again:
        return
    yield rule.finding(
        context,
        time_ps=None,
        saving_ps=None,
        saving_basis="not estimated: compile time is not part of the step",
        confidence=HIGH,
        provenance="counted",
        count=len(again),
        evidence=(f"the dump has {len(again) + 1} compiles of the very same bundles",),
    )


RULE = Rule(
    identifier="MS602",
    title="Kernel compiled more than once",
    family="Dump",
    sees="The dump holds two or more sets of files of one program with identical bundles.",
    costs="Time at start-up, not in the step.",
    example="jax.jit(step) made anew in a loop; shapes or static arguments that change and change back",
    advice="Build the jitted function once; use JAX's compilation cache.",
    verify="ls DUMP/*final_bundles.txt",
    doubt="Several processes may have written into one folder.",
    look=_look,
)
