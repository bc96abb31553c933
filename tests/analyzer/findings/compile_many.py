"""Compiles many small kernels in one process: starting JAX and libtpu takes longer than any of them.

    python compile_many.py OUT < jobs.json     # [{"name", "target", "topology", "options"}, ...]

Writes a capture `OUT/<name>` for each. The environment is that of `profiler.flags`, with one dump folder for
all, from which each kernel's files are moved as soon as they are there.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]


def compile_many(jobs, out: Path) -> None:
    """Compile in a child process; `jobs` as above.

    Raises:
        AssertionError: the child failed; the message is the end of its output.
    """
    sys.path.insert(0, str(ROOT))
    from profiler.flags import compile_environment, libtpu_flags

    (out / "dump").mkdir(parents=True, exist_ok=True)
    environment = compile_environment(libtpu_flags(out / "dump", "regions")) | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, __file__, out],
        input=json.dumps(jobs), env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]


def main() -> None:
    """The child."""
    from profiler.child import Reporter, compile_on
    from profiler.compile import CompileRequest
    from profiler.manifest import compile_manifest, write_manifest
    from profiler.topology import parse_topology

    def devices(name: str):
        from jax.experimental import topologies

        return list(topologies.get_topology_desc(platform="tpu", topology_name=name).devices)

    out = Path(sys.argv[1])
    silent = Reporter(os.open(os.devnull, os.O_WRONLY))
    for job in json.load(sys.stdin):
        capture = out / job["name"]
        for folder in ("dump", "hlo"):
            (capture / folder).mkdir(parents=True)
        topology = parse_topology(job["topology"], None)
        request = CompileRequest(target=job["target"], topology=topology, options=job["options"])
        asked = {
            "target": request.target,
            "topology": topology.name,
            "level": request.level,
            "options": job["options"],
            "hlo": str(capture / "hlo"),
        }
        result, _, _ = compile_on(asked, silent, devices)
        for file in (out / "dump").iterdir():
            file.rename(capture / "dump" / file.name)
        (capture / "compile.log").touch()
        write_manifest(capture, compile_manifest(request, capture, result, []))


if __name__ == "__main__":
    main()
