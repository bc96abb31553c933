"""A small builder of timelines by hand, for tests that know the answer."""

import pytest

from analyzer import timeline
from analyzer.timeline import Kind, Provenance, Track


class TimelineBuilder:
    """Adds spans one by one; times and sizes are whatever the test finds easy to add up."""

    def __init__(self):
        self.rows = []

    def _add(self, core, track, kind, start, end, **more):
        row = {
            "span": len(self.rows),
            "core": core,
            "track": track,
            "kind": kind,
            "name": "",
            "step": 0,
            "start_ps": start,
            "duration_ps": end - start,
            "provenance": Provenance.MODELLED,
        }
        self.rows.append(row | more)
        return row["span"]

    def read(self, start, end, size=0, *, core=0, issued=None, **more):
        issued = start if issued is None else issued
        return self._add(
            core, Track.HBM_READ, Kind.TRANSFER, start, end, bytes=size, issued_ps=issued, queue="hbm", **more
        )

    def write(self, start, end, size=0, *, core=0, **more):
        return self._add(
            core, Track.HBM_WRITE, Kind.TRANSFER, start, end, bytes=size, issued_ps=start, queue="hbm", **more
        )

    def send(self, start, end, size=0, *, core=0, **more):
        return self._add(
            core,
            Track.ICI_SEND,
            Kind.COLLECTIVE,
            start,
            end,
            bytes=size,
            issued_ps=start,
            queue="ici",
            **more,
        )

    def receive(self, start, end, size=0, *, core=0, **more):
        return self._add(core, Track.ICI_RECV, Kind.COLLECTIVE, start, end, bytes=size, queue="ici", **more)

    def wait(self, start, end, cause=None, *, core=0, **more):
        return self._add(core, Track.WAIT, Kind.WAIT, start, end, cause=cause, **more)

    def mxu(self, start, end, *, core=0, **more):
        return self._add(core, Track.MXU, Kind.MATRIX, start, end, **more)

    def vector(self, start, end, *, core=0, **more):
        return self._add(core, Track.VECTOR, Kind.VECTOR, start, end, **more)

    def region(self, start, end, phase, layer=None, *, core=0, **more):
        return self._add(
            core,
            Track.REGION,
            Kind.IDLE,
            start,
            end,
            name=phase.split("/")[-1],
            phase=phase,
            layer=layer,
            **more,
        )

    def frame(self):
        return timeline.from_rows(self.rows)


@pytest.fixture
def build():
    """An empty timeline builder."""
    return TimelineBuilder()
