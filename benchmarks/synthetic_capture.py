"""Serves made-up captures: `python benchmarks/synthetic_capture.py [spans per tile] [port]`."""

import sys
import tempfile
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[1]
sys.path[0] = str(ROOT)  # the folder of this file holds a module that shadows the package `dashboard`

from benchmarks import synthetic_timeline  # noqa: E402
from dashboard.loading import Loaded, from_parts  # noqa: E402


def report(timeline: pd.DataFrame, bubbles: pd.DataFrame) -> dict[str, object]:
    """The part of the JSON contract that the dashboard reads, for a made-up timeline."""
    mine = timeline[timeline["core"] == 0]
    reads = mine[mine["track"] == "hbm_read"]
    end = int((mine["start_ps"] + mine["duration_ps"]).max())
    waits = int(mine.loc[mine["track"] == "wait", "duration_ps"].sum())
    moved = int(reads["bytes"].sum())
    return {
        "schema_version": 1,
        "notes": ["made up; no chip behaves like this"],
        "capture": {
            "path": "synthetic",
            "kind": "compile",
            "kernel": "synthetic",
            "chip": "tpu7x",
            "cores": 8,
        },
        "step": {"time_ps": end, "provenance": "modelled"},
        "hbm": {
            "read_bytes": moved,
            "write_bytes": 131_072,
            "peak_bytes_per_s": synthetic_timeline.PEAK_BYTES_PER_S,
            "achievable_bytes_per_s": 3.15e12,
            "utilization": moved / (end * 1e-12 * synthetic_timeline.PEAK_BYTES_PER_S),
            "overlap": 0.9,
            "exposed_wait_ps": waits,
            "bubble_ps": int(bubbles["duration_ps"].sum()),
        },
    }


def loader(detail: int = 4, cores: int = 1):  # type: ignore[no-untyped-def]
    """A loader that ignores the path's content."""

    def load(path: Path) -> Loaded:
        timeline = synthetic_timeline.make(detail=detail, cores=cores)
        bubbles = synthetic_timeline.bubbles(timeline)
        return from_parts(path.name, timeline, bubbles, report(timeline, bubbles))

    return load


def main() -> None:
    """Serve until Ctrl-C."""
    from dashboard.app import create_app
    from dashboard.serve import make_server

    detail = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    port = int(sys.argv[2]) if len(sys.argv) > 2 else 8791
    with tempfile.TemporaryDirectory() as folder:
        capture = Path(folder) / "synthetic"
        capture.mkdir()
        (capture / "manifest.json").write_text("{}")
        server = make_server(create_app([capture], loader=loader(detail, 2)), "127.0.0.1", port)
        print(f"http://127.0.0.1:{server.server_port}/", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    main()
