"""MS405: loops whose straight-line code is larger than what stays resident on the core."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from analyzer.findings.base import LOW, NOT_ESTIMATED, Context, Finding, Rule
from analyzer.llo.program import Loop
from analyzer.units import duration

TWICE = 2  # what runs once is fetched once in any case


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    code = context.code
    resident = context.parameters.get("fetch.resident")
    if code is None or not resident:
        return
    rate = context.parameters.get("fetch.bandwidth", 0.0)
    for place in code.program.loops:
        body = np.arange(place.start, place.end + 1)
        ran = body[code.executed[body] > 0]
        turns = int(code.executed[place.start])
        if len(ran) <= resident or turns < TWICE:
            continue
        inner = [i for i in code.program.loops if place.start <= i.start and i.end <= place.end]
        if any(_executed(code.executed, i) > resident for i in inner if i is not place):
            continue  # the inner loop says it
        fetched = len(ran) * turns
        time = round(fetched / rate * 1e12) if rate else None
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=None,
            saving_basis=f"{NOT_ESTIMATED}: that {resident:,.0f} bundles stay resident is assumed, "
            + ("how much fetching is hidden is unknown" if rate else "the rate of fetching is unknown"),
            confidence=LOW,
            provenance="assumed" if rate else "counted",
            source=code.source_of(ran),
            bundles=(place.start, place.end),
            count=turns,
            evidence=(
                f"{len(ran):,} bundles are executed in each of {turns:,} turns, {resident:,.0f} are assumed"
                " to stay resident",
                f"{fetched:,} bundles are fetched in the step, "
                + ("at what rate is unknown" if time is None else f"{duration(time)} at the rate given"),
            ),
        )


def _executed(executed: NDArray[np.int64], loop: Loop) -> int:
    return int((executed[loop.start : loop.end + 1] > 0).sum())


RULE = Rule(
    identifier="MS405",
    title="Loop larger than instruction memory",
    family="Code",
    sees=(
        "A turn of a loop executes more bundles than are assumed to stay resident (fetch.resident of the"
        " machine file)."
    ),
    costs=(
        "Each turn has to fetch its code again. Published notes report unrolled expert variants of tens of"
        " thousands of bundles that ran twice as long as their products take; neither the size of the"
        " instruction memory nor the rate of fetching is published."
    ),
    example="for expert in range(112): apply(expert)  # unrolled in Python inside the loop over layers",
    advice="Roll what is unrolled (lax.fori_loop over experts, tiles, layers); share code between variants.",
    verify="megascope report CAPTURE --what-if fetch.bandwidth=1e9 --what-if fetch.resident=8192",
    doubt="Both the resident size and the rate are assumed values; on the chip it may cost nothing.",
    look=_look,
)
