"""Make the small dumps under tests/goldens/llo: one kernel with loops, copies and scopes on four chips.

    python tests/goldens/make_llo_goldens.py
    python tests/goldens/make_llo_goldens.py --version 0.0.52=/path/to/other/venv/bin/python

The second form makes tests/goldens/llo-0.0.52 with the jax and libtpu of another environment. Paths of
the machine and time stamps are replaced, so that a new run gives the same files for the same libtpu.
The kernels are in tests/analyzer/llo/dump_kernels.py.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests/analyzer/llo"))

from dump_kernels import TOPOLOGIES, dump  # noqa: E402

KERNEL = "gather_scatter"
WANTED = re.compile(
    r"(call\.1|matmul\.1|TLP)-\d+-(final_bundles|final_hlo-static-per-bundle-utilization"
    r"|schedule-analysis_final_bundles|critical-path|static_gap_analysis_final_bundles|trace-markers)\.txt$"
    r"|TLP-\d+-vmem_report\.html$|TLP-hlo\.txt$"
)


def make(out: Path, python: str, chips: list[str], kernel: str, regions: bool) -> None:
    """The goldens of one libtpu version."""
    shutil.rmtree(out, ignore_errors=True)
    prefix = subprocess.run(
        [python, "-c", "import sys; print(sys.prefix)"], capture_output=True, text=True, check=True
    ).stdout.strip()
    with tempfile.TemporaryDirectory() as name:
        for chip in chips:
            folder = dump(Path(name), chip, kernel, regions=regions, annotated=regions, python=python)
            if folder is None:
                sys.exit(f"{chip} did not compile")
            (out / chip).mkdir(parents=True)
            stamps = sorted({f.name.split("-", 1)[0] for f in folder.iterdir()})
            for file in sorted(folder.iterdir()):
                wanted = WANTED.search(file.name) and (chip == chips[0] or "-TLP-" not in file.name)
                if not wanted and not re.search(r"<late-initialization>-\d+-final_bundles", file.name):
                    continue
                stamp, rest = file.name.split("-", 1)
                text = file.read_text().replace(f"{ROOT}/", "").replace(prefix, "venv")
                text = re.sub(r'backend_config=\{"flag_configs".*', "", text)
                (out / chip / f"{10**18 + stamps.index(stamp)}-{rest}").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--version", metavar="VERSION=PYTHON")
    parser.add_argument("--chip", action="append", choices=sorted(TOPOLOGIES))
    parser.add_argument("--kernel", default=KERNEL)
    parser.add_argument("--plain", action="store_true", help="older libtpu lacks the flags for scopes")
    options = parser.parse_args()
    if options.version is None:
        make(HERE / "llo", sys.executable, list(TOPOLOGIES), options.kernel, True)
    else:
        version, _, python = options.version.partition("=")
        make(HERE / f"llo-{version}", python, options.chip or ["tpu7x"], options.kernel, not options.plain)


if __name__ == "__main__":
    main()
