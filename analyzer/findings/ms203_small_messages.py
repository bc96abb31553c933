"""MS203: several small messages to the same peer in one round of a collective."""

import itertools
from collections.abc import Iterator

import numpy as np

from analyzer import view
from analyzer.findings.base import MEDIUM, Context, Finding, Rule
from analyzer.replay import Edit
from analyzer.units import duration, size

PAUSE = 1.5  # times the cost of a message: with more between two, they are not back to back


def _look(context: Context, rule: Rule) -> Iterator[Finding]:
    cost, rate = context.parameters.get("ici.send.cost"), context.parameters.get("ici.link.bandwidth")
    sends = context.core.sends
    sends = sends[(sends["bytes"].fillna(0) > 0).to_numpy()]
    if not cost or not rate or not len(sends):
        return
    waits = [wait for wait in context.waits if wait.kind == "ici"]
    begins = np.array([wait.start_ps for wait in waits], dtype=np.int64)
    order = np.argsort(view.issues(sends), kind="stable")
    issued, sends = view.issues(sends)[order], sends.iloc[order]
    # A round: what is sent between one exposed wait for messages and the next.
    rounds = np.searchsorted(begins, issued, side="left")
    small = sends["bytes"].to_numpy(dtype=np.int64) < cost * rate
    table, rounds_of = sends[small], rounds[small]
    begun, queues = view.starts(table), table["queue"].tolist()
    places: dict[str, list[tuple[int, int, int]]] = {}  # place -> (round, messages, peers)
    edges = [*np.flatnonzero(np.diff(rounds_of, prepend=-1)).tolist(), len(table)]
    for low, high in itertools.pairwise(edges):
        # Only what leaves back to back delays the last message; collectives sent earlier are out already.
        pauses = np.flatnonzero(np.diff(begun[low:high]) > PAUSE * cost * 1e12)
        first = low + (int(pauses[-1]) + 1 if len(pauses) else 0)
        number, sent, peers = int(rounds_of[low]), high - first, len(set(queues[first:high]))
        if sent > peers and number < len(waits):
            row = table.iloc[first]
            place = view.place_key(
                str(row["source"]), view.bundle_range(row["bundle_first"], row["bundle_last"])
            )
            places.setdefault(place, []).append((number, sent, peers))
    numbers = np.unique(rounds).tolist()
    following = dict(zip(numbers, [*numbers[1:], len(waits)], strict=True))
    for place, found in places.items():
        saved: dict[int, int] = {}
        for number, sent, peers in found:
            left = round((sent - peers) * cost * 1e12)
            for wait in waits[number : following[number]]:
                saved[wait.span] = min(left, wait.duration_ps)
                left -= saved[wait.span]
        time = sum(saved.values())
        if not context.significant(time):
            continue
        saving, basis = context.priced(Edit(trim=saved))
        if saving is not None and not context.significant(saving):
            continue
        messages, peers = sum(sent for _, sent, _ in found), sum(count for _, _, count in found)
        mine = table[np.isin(rounds_of, [number for number, _, _ in found])]
        yield rule.finding(
            context,
            time_ps=time,
            saving_ps=saving,
            saving_basis="replayed with one message per peer and round" if saving is not None else basis,
            confidence=MEDIUM,
            source=place if ":" in place else "",
            bundles=view.bundle_range(mine["bundle_first"].iloc[0], mine["bundle_last"].iloc[0]),
            phase=str(mine["phase"].iloc[0]),
            layers=tuple(dict.fromkeys(view.optional_int(layer) for layer in mine["layer"])),
            count=messages,
            evidence=(
                f"{messages:,} messages in {len(found):,} rounds, {messages / peers:.1f} per peer and round,"
                f" of {size(float(mine['bytes'].median()))} (median)",
                f"the sender pays {duration(cost * 1e12)} per message whatever its size, as much as"
                f" {size(cost * rate)} take on a link",
            ),
        )


RULE = Rule(
    identifier="MS203",
    title="Small messages to one peer in one round",
    family="Collectives",
    sees=(
        "In one round of communication a core sends several messages back to back to the same peer, each"
        " smaller than what a link moves in the time that sending one costs."
    ),
    costs="Each message costs its sender time, one after the other; the last leaves that much later.",
    example="for row in range(8): remote_copy(x.at[row], peer).start()",
    advice="Send what goes to one peer as one message (lay it out together first), or fewer, larger pieces.",
    verify="Compile again and run: megascope diff CAPTURE NEW",
    doubt=(
        "The cost per message is fitted to published collectives (ici.send.cost). Pieces that are sent while"
        " others are still computed may be worth it."
    ),
    look=_look,
)
