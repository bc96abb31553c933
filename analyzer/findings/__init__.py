"""Rules that look at an analysis and say what costs time. A new rule is one new file in this folder.

A rule file is named `ms<number>_<what>.py` and defines `RULE`. `rules` finds them; nothing is registered by
hand.
"""

import importlib
import os
import pkgutil
import re
from functools import cache

from analyzer.findings.base import Context, Finding, Rule

_RULE_FILE = re.compile(r"^ms\d{3}_\w+$")


@cache
def rules() -> tuple[Rule, ...]:
    """Every rule, by identifier.

    Raises:
        ValueError: two rules share an identifier, or a file is not named after its rule.
    """
    found: dict[str, Rule] = {}
    for module in sorted(pkgutil.iter_modules(__path__), key=lambda m: m.name):
        if not _RULE_FILE.match(module.name):
            continue
        rule: Rule = importlib.import_module(f"{__name__}.{module.name}").RULE
        if rule.identifier in found or not module.name.startswith(rule.identifier.lower() + "_"):
            raise ValueError(f"{module.name}: identifier {rule.identifier} is taken or does not match")
        found[rule.identifier] = rule
    return tuple(found[identifier] for identifier in sorted(found))


def look(context: Context) -> tuple[list[Finding], list[str]]:
    """What all rules find, ranked by saving on the step; findings without an estimate come last.

    Returns:
        (findings, notes). A rule that fails costs its findings and gives a note, not the whole report;
        with MEGASCOPE_DEBUG set its error is raised.
    """
    found: list[Finding] = []
    notes = []
    for rule in rules():
        try:
            found += rule.look(context, rule)
        except Exception as error:
            if os.environ.get("MEGASCOPE_DEBUG"):
                raise
            notes.append(f"rule {rule.identifier} failed and found nothing: {type(error).__name__}: {error}")
    return sorted(found, key=lambda finding: finding.rank), notes
