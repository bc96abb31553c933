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

    def wait(self, start, end, cause=None, *, core=0, kind=Kind.WAIT, **more):
        return self._add(core, Track.WAIT, kind, start, end, cause=cause, **more)

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

    def any(self, track, start, length, ahead, **more):
        """A span of any kind that makes as much sense as a generated one can."""
        more |= {"issued_ps": start - ahead, "queue": "hbm"}
        return self._add(0, track, Kind.WAIT, start, start + length, **more)

    def frame(self):
        return timeline.from_rows(self.rows)


@pytest.fixture
def build():
    """An empty timeline builder."""
    return TimelineBuilder()


def _late_ring(build, layers=4, tiles=8, source="k.py:5"):
    """Tiles issued one at a time after their use, though the ring is deep: the planted fault of the tests."""
    now, free = 0, []
    for layer in range(layers):
        begin = now
        for _ in range(tiles):
            issued = now
            copy = build.read(
                now + 700, now + 1300, 4096, issued=issued, free_ps=free[-4] if len(free) >= 4 else 0,
                source=source, bundle_first=32, bundle_last=33, name="w_up", layer=layer, phase="mlp",
            )  # fmt: skip
            build.wait(
                now,
                now + 1300,
                copy,
                source="k.py:9",
                bundle_first=40,
                bundle_last=40,
                layer=layer,
                phase="mlp",
            )
            build.mxu(now + 1300, now + 1600, layer=layer, phase="mlp", source="k.py:10")
            now += 1600
            free.append(now)
        build.region(begin, now, "mlp", layer)
        sent = build.send(now, now + 50, 512, layer=layer, phase="reduce", source="k.py:20")
        got = build.receive(now + 10, now + 900, 512, layer=layer, phase="reduce", source="k.py:20")
        build.wait(now, now + 900, got, layer=layer, phase="reduce", source="k.py:21", bundle_first=60)
        assert sent < got
        build.region(now, now + 900, "reduce", layer)
        now += 900
    return build


@pytest.fixture
def late_ring():
    """The timeline builder of a step with late copies and exposed collectives."""
    return _late_ring(TimelineBuilder())


class FakeCapture:
    """What `fold.build` needs of a capture."""

    def __init__(self, path="capture", **manifest):
        self.path, self.kind, self.notes = path, "compile", []
        self.manifest = {"kernel": "mlp", "chip": "tpu7x", "cores": 8, "batch": 8} | manifest

    def kernel_program(self):
        return self

    name = "mlp.1"


@pytest.fixture
def make_report():
    """Timeline builder -> (report as data), with the tpu7x machine model."""
    from analyzer import fold
    from analyzer.machine import load_machine

    def make(build, facts=None, capture=None):
        given = facts or fold.Facts(
            static_bundles=100,
            executed_bundles=5000,
            scenario="default",
            assumed_values=[{"value": 0, "source": "k.py:3"}],
            not_understood=(2, 1000),
            vmem_used=1 << 20,
        )
        machine = load_machine("tpu7x")
        return fold.build(build.frame(), given, capture or FakeCapture(), machine, None)[0]

    make.capture = FakeCapture
    return make


@pytest.fixture(scope="session")
def compiled(tmp_path_factory):
    """(option, ...) -> capture of the MLP kernel with those options, compiled once per session (2 s each)."""
    import importlib.util
    import subprocess
    import sys
    from pathlib import Path

    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed: nothing can be compiled for a TPU")
    root = Path(__file__).parents[2]
    made = {}

    def make(*options, target="mlp", topology="2x2x1"):
        key = (target, topology, options)
        if key not in made:
            out = tmp_path_factory.mktemp("capture") / "c"
            sets = [part for option in options for part in ("--set", option)]
            command = [sys.executable, root / "megascope.py", "compile", target, "--topology", topology]
            done = subprocess.run([*command, "-o", out, *sets], capture_output=True, text=True, check=False)
            assert done.returncode == 0, done.stderr
            made[key] = out
        return made[key]

    return make
