"""Who waits for whom: a made-up exchange of three cores, one of them late."""

import numpy as np
import pytest

from analyzer.timeline import Kind, Provenance, Track, from_rows
from dashboard.collectives import cores_bars, exchange, lateness, matrix_spec, rows, verdict
from dashboard.palette import LIGHT

MICRO = 1_000_000
CORES = 3
LATE = 2  # sends 4 us after the others, in layer 1 only


def made(seen=range(CORES)):
    """Two layers, in each of which every core sends 1 KiB to every other and waits for the last one."""
    rows_ = []

    def add(**row):
        rows_.append({"step": 0, "name": "part", "source": "", "provenance": Provenance.MODELLED, **row})
        return len(rows_) - 1

    for layer in range(2):
        begin = 20 * MICRO * layer
        sent = {c: begin + (4 * MICRO if c == LATE and layer == 1 else 0) for c in range(CORES)}
        for core in seen:
            common = {"core": core, "layer": layer, "kind": Kind.COLLECTIVE, "bytes": 1024}
            last = None
            for peer in (p for p in range(CORES) if p != core):
                add(**common, track=Track.ICI_SEND, phase="send", queue=f"ici:{peer}",
                    start_ps=sent[core], duration_ps=MICRO, issued_ps=sent[core])  # fmt: skip
                span = add(**common, track=Track.ICI_RECV, phase="send", queue=f"ici:{peer}",
                           start_ps=sent[peer], duration_ps=MICRO, issued_ps=sent[peer])  # fmt: skip
                if last is None or sent[peer] >= sent[last[0]]:
                    last = (peer, span)
            until = sent[last[0]] + MICRO
            add(core=core, layer=layer, kind=Kind.WAIT, track=Track.WAIT, phase="all_reduce", cause=last[1],
                start_ps=sent[core], duration_ps=max(0, until - sent[core]))  # fmt: skip
    add(core=seen[0], kind=Kind.COLLECTIVE, track=Track.WAIT, phase="leave", start_ps=50 * MICRO,
        duration_ps=MICRO)  # fmt: skip
    return from_rows([{**row, "span": k} for k, row in enumerate(rows_)])


@pytest.fixture(scope="module")
def found():
    return exchange(made(), 0)


def test_every_message_and_wait_is_counted_once(found):
    assert len(found.messages) == 2 * CORES * (CORES - 1)
    assert len(found.waits) == 2 * CORES - 1  # the late core finds everything there
    assert len(found.barriers) == 1
    np.testing.assert_array_equal(np.nan_to_num(found.matrix("bytes"), nan=0), 2.0 * (1 - np.eye(CORES)))
    waiting = found.matrix("waiting")
    assert np.nansum(waiting) == pytest.approx(3 * 1 + 2 * 5)
    assert waiting[0, LATE] == waiting[1, LATE] == pytest.approx(6.0)
    assert np.isnan(np.diag(waiting)).all()


def test_the_late_core_stands_out(found):
    assert lateness(found) == {0: 0.0, 1: 0.0, LATE: 2.0 * MICRO}
    assert f"a message from core {LATE}" in verdict(found)
    bars = {t["name"]: t["y"] for t in cores_bars(found, LIGHT)["data"]}
    assert bars["others wait for it"] == pytest.approx([0.0, 1.0, 12.0])
    assert bars["waits at barriers"] == pytest.approx([1.0, 0.0, 0.0])


def test_phases_and_layers(found):
    (row,) = rows(found, by_layer=False)
    assert (row["phase"], row["sent"], row["messages"]) == ("all_reduce", "send", "12")
    assert row["last"] == f"core {LATE}: 12 µs"
    by_layer = rows(found, by_layer=True)
    assert [r["layer"] for r in by_layer] == ["1", "0"]
    start, end = by_layer[0]["window"]
    assert start < 20 * MICRO < 25 * MICRO < end
    only = found.where("all_reduce", 0)
    assert len(only.messages) == 6
    assert np.nansum(only.matrix("waiting")) == pytest.approx(3.0)
    assert len(found.where("no such", None).messages) == 0


def test_one_core_leaves_the_others_unknown():
    found = exchange(made(seen=[1]), 0)
    assert found.seen == (1,)
    assert found.cores == (0, 1, 2)
    waiting = found.matrix("waiting")
    assert np.isnan(waiting[[0, 2]]).all()
    assert lateness(found) == {}
    assert "not simulated" in verdict(found)
    hover = matrix_spec(found, "waiting", LIGHT)["data"][0]["text"]
    assert "unknown" in hover[0][1]
    assert "KiB" in hover[1][0]


def test_a_capture_without_messages_says_so(step):
    empty = exchange(step[0][(step[0]["track"] == "mxu").to_numpy()])
    assert "No messages" in verdict(empty)
    assert rows(empty, by_layer=True) == []
    assert matrix_spec(empty, "bytes", LIGHT)["data"] == []
