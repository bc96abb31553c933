"""Make the small dumps under tests/goldens/llo: one kernel with loops, copies and scopes on four chips.

    python tests/goldens/make_llo_goldens.py

Paths of the machine and time stamps are replaced, so that a new run gives the same files for the same
libtpu. Source and packages of the kernel: tests/analyzer/llo/dump_kernels.py.
"""

import re
import shutil
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
sys.path.insert(0, str(ROOT / "tests/analyzer/llo"))

from dump_kernels import TOPOLOGIES, dump  # noqa: E402

KERNEL = "gather_scatter"
WANTED = re.compile(
    r"(call\.1|TLP)-\d+-(final_bundles|final_hlo-static-per-bundle-utilization"
    r"|schedule-analysis_final_bundles|critical-path|static_gap_analysis_final_bundles|trace-markers)\.txt$"
    r"|TLP-\d+-vmem_report\.html$|TLP-hlo\.txt$"
)


def main() -> None:
    out = HERE / "llo"
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory() as name:
        for chip in TOPOLOGIES:
            folder = dump(Path(name), chip, KERNEL)
            if folder is None:
                sys.exit(f"{chip} did not compile")
            (out / chip).mkdir(parents=True)
            stamps = sorted({f.name.split("-", 1)[0] for f in folder.iterdir()})
            for file in sorted(folder.iterdir()):
                wanted = WANTED.search(file.name) and (chip == "tpu7x" or "-TLP-" not in file.name)
                if not wanted and not re.search(r"<late-initialization>-\d+-final_bundles", file.name):
                    continue
                stamp, rest = file.name.split("-", 1)
                text = file.read_text().replace(f"{ROOT}/", "").replace(sys.prefix, "venv")
                text = re.sub(r'backend_config=\{"flag_configs".*', "", text)
                (out / chip / f"{10**18 + stamps.index(stamp)}-{rest}").write_text(text)


if __name__ == "__main__":
    main()
