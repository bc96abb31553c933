"""How fast and how small `read_program` is, on a dump of at least 20 MB made by unrolling a real one.

    python benchmarks/llo_read.py                     # unrolls a sample, prints ratios
    python benchmarks/llo_read.py FILE                # reads FILE as it is
    python benchmarks/llo_read.py --compile           # compiles an unrolled kernel for tpu7x first (minutes)

The yardstick is one pass of `re.findall(rb';;|\\{|\\}', data)` plus `data.splitlines()` over the same
bytes in the same process. All times are processor times, so that a busy machine does not decide.
Bounds: reading takes at most 12 yardsticks, peak memory is at most 25 bytes per byte of text, a second
read comes from the cache and is at least 10 times faster, and time grows linearly. Exit code 1 where a
bound is broken.
"""

import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

MEGABYTE = 1_000_000
MAX_YARDSTICKS = 12.0
MAX_BYTES_PER_BYTE = 25.0
MIN_CACHE_SPEEDUP = 10.0
MAX_GROWTH = 1.3
_ADDRESS = re.compile(rb"^[ ]*(?:0x[0-9a-f]+|0)(?=[ ]+(?:[A-Z]{2})?[ ]*:)", re.MULTILINE)
_REGION = re.compile(rb"(?<=region )(\d+)|(?<=\$region)(\d+)")


def unroll(data: bytes, size: int) -> bytes:
    """Repeat the bundles of a dump until it has at least `size` bytes, renumbering addresses and regions."""
    first = _ADDRESS.search(data)
    if first is None:
        raise ValueError("no bundles to unroll")
    header, body = data[: first.start()], data[first.start() :].rstrip(b"\n") + b"\n"
    pieces = [header]
    address, regions, total = 0, max((int(a or b) for a, b in _REGION.findall(body)), default=0) + 1, 0
    copies = 0
    while total < size:
        shift = copies * regions

        def region(match: re.Match[bytes], shift: int = shift) -> bytes:
            return b"%d" % (int(match[0]) + shift)

        count = 0
        base = address

        def number(_: re.Match[bytes], base: int = base) -> bytes:
            nonlocal count
            count += 1
            at = base + count - 1
            return b"%6s" % (hex(at).encode() if at else b"0")

        piece = _ADDRESS.sub(number, _REGION.sub(region, body))
        address += count
        copies += 1
        total += len(piece)
        pieces.append(piece)
    return b"".join(pieces)


def yardstick(data: bytes) -> float:
    """Seconds of the reference pass, best of five."""
    times = []
    for _ in range(5):
        started = time.process_time()
        re.findall(rb";;|\{|\}", data)
        data.splitlines()
        times.append(time.process_time() - started)
    return min(times)


def measure_reads(path: Path, cache: Path | None, repeats: int) -> list[float]:
    """Seconds of each read, in this process."""
    from analyzer.llo.reader import read_program

    times = []
    for _ in range(repeats):
        started = time.process_time()
        read_program(path, cache_dir=cache)
        times.append(time.process_time() - started)
    return times


def peak_memory(path: Path) -> int:
    """Peak bytes that a fresh process needs beyond its start to read `path` once."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]);"
        "from pathlib import Path; from analyzer.llo.reader import read_program;"
        "read_program(Path(sys.argv[3]));"  # warms imports and caches on a tiny file
        "peak = lambda: int(Path('/proc/self/status').read_text().split('VmHWM:')[1].split()[0]);"
        "before = peak(); read_program(Path(sys.argv[2])); print((peak() - before) * 1024)"
    )
    with tempfile.TemporaryDirectory() as folder:
        tiny = Path(folder) / "1-tiny-01-final_bundles.txt"
        tiny.write_bytes(b"     0   :  { %1 = vtrace 1 }\n")
        out = subprocess.run(
            [sys.executable, "-c", code, str(ROOT), str(path), str(tiny)],
            capture_output=True,
            text=True,
            check=True,
        )
    return int(out.stdout)


def sample() -> Path:
    """A real dump to unroll: ../shared/data where it is, otherwise one compiled now."""
    shared = sorted((ROOT / "../shared/data/v6e-matmul/dump").glob("*-124-final_bundles.txt"))
    return shared[0] if shared else compiled("flash_attention")


def compiled(kernel: str) -> Path:
    """Compile a kernel of tests/analyzer/llo/dump_kernels.py for tpu7x; its largest program."""
    out = Path(tempfile.mkdtemp(prefix="llo_read-"))
    script = ROOT / "tests/analyzer/llo/dump_kernels.py"
    subprocess.run([sys.executable, script, out, "--chip", "tpu7x", "--kernel", kernel], check=True)
    programs = [f for f in out.rglob("*-final_bundles.txt") if "schedule-analysis" not in f.name]
    return max(programs, key=lambda f: f.stat().st_size)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("file", type=Path, nargs="?")
    parser.add_argument("--megabytes", type=float, default=22.0)
    parser.add_argument("--compile", action="store_true")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="llo_read-") as name:
        folder = Path(name)
        if options.file is not None or options.compile:
            big = options.file or compiled("unrolled")
        else:
            big = folder / "1796000000000000000-unrolled.1-04-final_bundles.txt"
            big.write_bytes(unroll(sample().read_bytes(), int(options.megabytes * MEGABYTE)))
        return report(big, folder)


def report(big: Path, folder: Path) -> int:
    """Print the figures of one file and check the bounds."""
    from analyzer.errors import InputError
    from analyzer.llo.reader import read_program

    data = big.read_bytes()
    unit = yardstick(data)
    program = read_program(big)
    bundles, instructions = program.bundle_count, len(program.instruction_opcode)
    del program
    cache = folder / "cache"
    first = measure_reads(big, cache, 1)[0]
    warm = statistics.median(measure_reads(big, cache, 5))
    memory = peak_memory(big)
    half = folder / "1796000000000000001-half.1-04-final_bundles.txt"
    cut = data.rfind(b"\n", 0, len(data) // 2) + 1
    while True:  # cut between bundles, not inside one that spans lines
        half.write_bytes(data[:cut])
        try:
            read_program(half)
            break
        except InputError:
            cut = data.rfind(b"\n", 0, cut - 1) + 1
    pairs = [(measure_reads(half, None, 1)[0], measure_reads(big, None, 1)[0]) for _ in range(5)]
    half_seconds, cold = (min(times) for times in zip(*pairs, strict=True))
    growth = (cold / len(data)) / (half_seconds / cut)
    checks = [
        (f"read {cold:.3f} s = {cold / unit:.1f} yardsticks", cold / unit, MAX_YARDSTICKS, True),
        (
            f"peak memory {memory / 1e6:.0f} MB = {memory / len(data):.1f} bytes per byte of text",
            memory / len(data),
            MAX_BYTES_PER_BYTE,
            True,
        ),
        (f"second read {warm:.4f} s = {cold / warm:.1f} times faster", cold / warm, MIN_CACHE_SPEEDUP, False),
        (f"time per byte at full size over half size {growth:.2f}", growth, MAX_GROWTH, True),
    ]
    print(f"{len(data) / MEGABYTE:.1f} MB, {bundles} bundles, {instructions} instructions")
    print(
        f"yardstick {unit:.3f} s; first read with cache {first:.3f} s; {len(data) / cold / MEGABYTE:.0f} MB/s"
    )
    broken = 0
    for text, value, bound, below in checks:
        good = value <= bound if below else value >= bound
        broken += not good
        print(f"{'ok  ' if good else 'FAIL'} {text} (bound {'<=' if below else '>='} {bound:g})")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
