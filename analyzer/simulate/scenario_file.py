"""Scenarios as TOML files.

    name = "uneven experts"
    devices = 8
    default = 0

    [scalars]            # operand index: value of an operand passed by value
    0 = 61
    [smem]               # operand index: words of an operand that the kernel copies to SMEM
    1 = [5, 9, 13]
    [pops]               # place in the source: values of vector-to-scalar pops there, in turn
    "router.py:88" = { low = 0, high = 895, seed = 1 }
    "router.py:90" = { choices = [1, 2, 4], seed = 1 }
    [words]              # SMEM words that the program never writes
    "#allocation12" = 1

    [cores.3]            # what core 3 has different
    delay_us = 20
    [cores.3.scalars]
    0 = 64

A recording of interpret mode has the same form. docs/model.md says what each value is for.
"""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analyzer.errors import InputError
from analyzer.options import TABLES
from analyzer.simulate.scenario import Draw, Number, Scenario, Values

_FORM = "See docs/model.md for the form"
_SINGLE = ("scalars", "words")


@dataclass(frozen=True, slots=True)
class ScenarioFile:
    """One file: the scenario of every core, and what single cores have different.

    cores: rank -> scenario; delays_ps: rank -> how much later it starts.
    """

    common: Scenario
    cores: Mapping[int, Scenario] = field(default_factory=dict)
    delays_ps: Mapping[int, float] = field(default_factory=dict)


def read_scenario(path: Path) -> ScenarioFile:
    """Read a scenario file.

    Raises:
        InputError: not readable, or holds something that is no scenario value; names the entry.
    """
    try:
        data = tomllib.loads(path.read_text())
    except (OSError, UnicodeDecodeError, tomllib.TOMLDecodeError) as error:
        raise InputError(
            path, f"not a readable scenario ({error})", "See docs/model.md for the form"
        ) from error
    cores = _pop_table(path, data, "cores")
    common = _scenario(path, {"name": path.stem} | data, Scenario())
    special: dict[int, Scenario] = {}
    delays: dict[int, float] = {}
    for rank, table in cores.items():
        if not rank.isdigit() or not isinstance(table, dict):
            raise InputError(path, f"[cores.{rank}] is no core", "Name cores by rank: [cores.3]")
        own = dict(table)
        delay = own.pop("delay_us", None)
        if delay is not None:
            if not isinstance(delay, int | float) or delay < 0:
                raise InputError(path, f"cores.{rank}.delay_us = {delay!r}", "Give microseconds, 0 or more")
            delays[int(rank)] = float(delay) * 1e6
        if own:
            special[int(rank)] = _scenario(path, own, common)
    return ScenarioFile(common, special, delays)


def _pop_table(path: Path, data: dict[str, Any], name: str) -> dict[str, Any]:
    table = data.pop(name, {})
    if not isinstance(table, dict):
        raise InputError(path, f"{name} is not a table", f"Write [{name}]")
    return table


def _scenario(path: Path, data: Mapping[str, Any], base: Scenario) -> Scenario:
    changed: dict[str, Any] = {}
    for name, value in data.items():
        if name == "name":
            changed[name] = str(value)
        elif name in ("devices", "default"):
            changed[name] = _integer(path, name, value)
        elif name in TABLES:
            if not isinstance(value, dict):
                raise InputError(path, f"{name} is not a table", f"Write [{name}] and entries below it")
            table: dict[Any, Any] = dict(getattr(base, name))
            for key, entry in value.items():
                where = f"{name}.{key}"
                place = key if name in ("pops", "words") else _integer(path, where, key)
                table[place] = (
                    _integer(path, where, entry) if name in _SINGLE else _values(path, where, entry)
                )
            changed[name] = table
        else:
            known = ", ".join(("name", "devices", "default", *TABLES, "cores"))
            raise InputError(path, f"{name!r} is no scenario entry", f"Known: {known}")
    return replace(base, **changed)


def _integer(path: Path, where: str, value: object) -> int:
    if isinstance(value, str):
        try:
            return int(value, 0)
        except ValueError:
            pass
    if isinstance(value, int) and not isinstance(value, bool):
        return value
    raise InputError(path, f"{where} = {value!r} is not an integer", "Give an integer")


def _number(path: Path, where: str, value: object) -> Number:
    return value if isinstance(value, float) else _integer(path, where, value)


def _values(path: Path, where: str, value: object) -> Values:
    if isinstance(value, list):
        return [_number(path, where, one) for one in value]
    if isinstance(value, dict):
        draw: Draw | None
        try:
            draw = Draw(**(value | {"choices": tuple(value.get("choices", ()))}))
        except TypeError:
            draw = None
        if draw is None or (not draw.choices and draw.low > draw.high):
            raise InputError(
                path,
                f"{where} is no distribution",
                "Give { low = 0, high = 7, seed = 1 } or { choices = [...] }",
            )
        return draw
    return _number(path, where, value)
