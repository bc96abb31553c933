"""What a command line says about the scenario, as the simulator takes it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from analyzer.errors import UsageError

if TYPE_CHECKING:
    from analyzer.simulate.scenario import Scenario
    from analyzer.simulate.scenario_file import ScenarioFile

# Fields of a scenario that are tables: `--set pops.k.py:30=1,2` gives values to one place.
TABLES = ("scalars", "smem", "pops", "words")


def scenario_of(values: Mapping[str, str]) -> "Scenario | None":
    """A scenario from `NAME=VALUE` pairs; None where there are none.

    Names: `default`, `devices`, and one table entry each of `scalars.OPERAND`, `smem.OPERAND`,
    `pops.FILE:LINE`, `words.ALLOCATION`. A value is an int, or for `smem` and `pops` several with commas.

    Raises:
        UsageError: another name, or a value that is not of that form.
    """
    if not values:
        return None
    from analyzer.simulate.scenario import Scenario

    parts: dict[str, Any] = {"name": "set by --set"}
    for name, text in values.items():
        table, dot, key = name.partition(".")
        if name in ("default", "devices"):
            parts[name] = _number(name, text)
        elif table in TABLES and dot and key:
            numbers = [_number(name, one) for one in text.split(",")]
            many = table in ("smem", "pops")
            if len(numbers) > 1 and not many:
                raise UsageError(f"--set {name}={text}", "one value is expected", "Give one integer.")
            place = _number(name, key) if table in ("scalars", "smem") else key
            parts.setdefault(table, {})[place] = numbers if len(numbers) > 1 else numbers[0]
        else:
            raise UsageError(
                f"--set {name}={text}",
                "no such scenario value",
                "Known: default, devices, scalars.OPERAND, smem.OPERAND, pops.FILE:LINE, words.ALLOCATION.",
            )
    return Scenario(**parts)


def combined(
    own: "Scenario", file: "ScenarioFile | None" = None, values: "Scenario | None" = None
) -> "ScenarioFile":
    """The scenario of a run: the kernel's own, over it a file's, over that what `--set` says.

    Args:
        own: what the capture says itself.
        file: of `--scenario`; it may give single cores values and delays of their own.
        values: of `--set`, for all cores.
    """
    from analyzer.simulate.scenario_file import ScenarioFile

    if file is None:
        return ScenarioFile(merged(own, values))
    common = merged(merged(own, file.common, file.common.name), values)
    cores = {rank: merged(merged(own, one, one.name), values) for rank, one in file.cores.items()}
    return ScenarioFile(common, cores, file.delays_ps)


def merged(base: "Scenario", given: "Scenario | None", name: str | None = None) -> "Scenario":
    """A scenario with what another one says put over it, place by place; name: of the result."""
    if given is None:
        return base
    tables = {table: {**getattr(base, table), **getattr(given, table)} for table in TABLES}
    return replace(
        base,
        name=name or f"{base.name}, changed by --set",
        devices=given.devices or base.devices,
        default=given.default or base.default,
        **tables,
    )


def _number(name: str, text: str) -> int:
    try:
        return int(text, 0)
    except ValueError:
        raise UsageError(f"--set {name}={text}", "not an integer", "Give an integer such as 3.") from None
