"""The catalogue of rules as Markdown, made from the rules themselves.

`python -m analyzer.findings.catalogue` prints docs/findings.md; a test holds the file to it.
"""

from itertools import groupby

from analyzer.findings import rules
from analyzer.findings.base import Rule

HEAD = """# Findings

What the rules of `megascope report` look for. This page is generated from the rules
(`python -m analyzer.findings.catalogue > docs/findings.md`); a new rule is one new file in
`analyzer/findings`, and a pair of small kernels in `tests/analyzer/findings`: it must fire on the fault at
its line and stay silent without it, with a saving within 25 % of what the simulator says the fault costs.

Each finding carries the time it takes on the step, the saving (by replaying the step without the fault where
that is possible, see [metrics.md](metrics.md#savings)), its provenance and confidence, and evidence. Findings
are ranked by saving; savings overlap and are never added up. A finding without an estimate comes last.
"""


def page() -> str:
    """The whole catalogue."""
    lines = [HEAD]
    ordered = sorted(rules(), key=lambda rule: rule.identifier)
    lines += ["| rule | what | family |", "|---|---|---|"]
    lines += [f"| [{r.identifier}](#{anchor(r)}) | {r.title} | {r.family} |" for r in ordered]
    for family, members in groupby(ordered, key=lambda rule: rule.family):
        lines += ["", f"## {family}"]
        for rule in members:
            lines += ["", *section(rule)]
    return "\n".join(lines) + "\n"


def anchor(rule: Rule) -> str:
    """The anchor that Markdown renderers give the heading of a rule."""
    kept = "".join(c for c in heading(rule).lower() if c.isalnum() or c in " -")
    return kept.replace(" ", "-")


def heading(rule: Rule) -> str:
    """Heading of a rule's section."""
    return f"{rule.identifier}: {rule.title}"


def section(rule: Rule) -> list[str]:
    """One rule."""
    return [
        f"### {heading(rule)}",
        "",
        f"**Sees.** {rule.sees}",
        "",
        f"**Costs.** {rule.costs}",
        "",
        "```python",
        rule.example,
        "```",
        "",
        f"**Try.** {rule.advice}",
        "",
        f"**Verify with.** {rule.verify}",
        "",
        f"**Might be wrong because.** {rule.doubt}",
    ]


if __name__ == "__main__":
    print(page(), end="")
