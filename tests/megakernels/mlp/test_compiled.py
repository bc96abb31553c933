"""The demo compiled for TPU7x: weights stay in HBM and are copied by the kernel, from lines of the kernel."""

import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from analyzer.capture import open_capture
from analyzer.llo.reader import read_program
from analyzer.machine import load_machine
from analyzer.simulate import simulate

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[3]
KERNEL = ROOT / "megakernels" / "mlp" / "kernel.py"


def compiled(folder: Path, *options: str) -> Path:
    command = [
        sys.executable,
        "megascope.py",
        "compile",
        "mlp",
        "--topology",
        "2x2x1",
        "-o",
        str(folder),
        *options,
    ]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def bundles_of(capture: Path) -> str:
    files = [
        file for file in (capture / "dump").glob("*-mlp.*-final_bundles.txt") if "schedule" not in file.name
    ]
    assert len(files) == 1, files
    return files[0].read_text()


@pytest.fixture(scope="module")
def demo(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("demo") / "capture")


def copies_from(bundles: str) -> dict[int, int]:
    """Line of the kernel to number of copies the bundles start there."""
    lines: dict[int, int] = {}
    for text in re.findall(r"dma\.(?:general|hbm_to_vmem|vmem_to_hbm) [^;}]*", bundles):
        place = re.search(r'loc\("([^"]+)":(\d+)', text)
        assert place, f"a copy without a source line: {text}"
        assert Path(place[1]) == KERNEL
        lines[int(place[2])] = lines.get(int(place[2]), 0) + 1
    return lines


def test_every_weight_is_copied_by_the_kernel_from_a_line_that_names_it(demo: Path) -> None:
    started = copies_from(bundles_of(demo))
    source = KERNEL.read_text().splitlines()
    for name in ("w_gate", "w_up", "w_down"):
        [line] = [number for number, code in enumerate(source, 1) if f'"{name}").start()' in code]
        assert started[line] >= 1, name
    names = {
        entry["line"]: entry["name"]
        for entry in json.loads((demo / "manifest.json").read_text())["copy_names"]
    }
    assert set(started) <= set(names)


def test_every_operand_is_left_in_hbm(demo: Path) -> None:
    operands = re.findall(
        r"inlined_call_operand\.(\w+) \[shape: [^,]*\[[^]]*\], index: (\d+)", bundles_of(demo)
    )
    assert sorted((int(index), memory) for memory, index in operands) == [(i, "hbm") for i in range(6)]


def test_xla_copies_no_weight_beside_the_kernel(demo: Path) -> None:
    hlo = (demo / "hlo" / "after_optimizations.txt").read_text()
    weights = f"bf16[{16 * 28},4,512,512]"
    made = [line for line in hlo.splitlines() if re.search(rf"= {re.escape(weights)}", line)]
    assert made
    assert all(" parameter(" in line for line in made), made


@pytest.mark.parametrize(
    "options",
    [(), ("layers=3", "cores=1", "ffn=7168"), ("layers=3", "pack=2", "ring_depth=5", "prefetch_distance=2")],
    ids=str,
)
def test_the_executed_program_does_what_the_facts_say(tmp_path: Path, options: tuple[str, ...]) -> None:
    capture = compiled(tmp_path / "capture", *(word for option in options for word in ("--set", option)))
    opened = open_capture(capture)
    facts = opened.manifest["facts"]
    done = simulate(read_program(opened.kernel_program().bundles), load_machine("tpu7x"), facts=facts)

    counted = [loop.iterations for loop in done.loop_trips]
    wanted = [loop["iterations"] for loop in facts["loops"]]
    assert [count for count in counted if count > 1 or count in wanted] == wanted
    for operand in facts["operands"]:
        moved = (operand["read_bytes"], operand["written_bytes"])
        assert done.operand_bytes[operand["index"]] == moved, operand["name"]
    assert done.sent_bytes == facts["sent_bytes"]
    assert not any(value for core in done.semaphores.values() for value in core.values())
    regions = done.timeline[done.timeline["track"] == "region"]
    for phase in ("norm", "gate_up", "down", "reduce"):
        assert regions[regions["phase"] == phase]["layer"].tolist() == list(range(facts["layers"])), phase


def test_markers_of_the_off_level_are_absent(tmp_path: Path) -> None:
    bundles = bundles_of(compiled(tmp_path / "capture", "--level", "off"))
    markers = [int(value) for value in re.findall(r"vtrace (\d+)", bundles)]
    assert not [value for value in markers if 0xB8000000 <= value < 0xC0000000 or value >= 0xC8000000]
    assert "vtrace.arg" not in bundles
