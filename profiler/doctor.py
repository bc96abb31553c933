"""Checks that this machine can make captures, one finding per check, each with its cure.

What can be tried is tried: topologies are asked for, flags are given to libtpu, a tiny kernel is
compiled and read back. Each of these runs in a process of its own.
"""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import StrEnum
from importlib import metadata
from pathlib import Path

from analyzer.errors import MegascopeError
from profiler.compile import CompileRequest, compile_kernel
from profiler.diagnose import refused_flag
from profiler.flags import REGION_TRACE, compile_environment
from profiler.topology import DEFAULT_SHAPES, parse_topology

PYTHON = (3, 12)
# Package to (lowest version, first version that is too new); None where any will do.
PACKAGES: dict[str, tuple[tuple[int, ...] | None, tuple[int, ...] | None]] = {
    "jax": ((0, 12), (0, 13)),
    "jaxlib": ((0, 12), (0, 13)),
    "libtpu": (None, None),
    "xprof": ((2, 20), (3,)),
}
LIBTPU_READ = ((0, 0, 42), (0, 0, 50))  # versions whose dumps the reader was made from
# Flags for captures, and what is missing where libtpu refuses one.
FLAGS = {
    "--xla_jf_dump_llo_text=true": "no bundles: nothing can be analyzed",
    "--xla_jf_dump_llo_pass_label_regex=(final_bundles)": "dumps are large and slow: every pass is written",
    "--xla_mosaic_enable_llo_source_annotations=true": "bundles carry no source lines",
    REGION_TRACE: "no phases and layers: use --level off",
    "--xla_xprof_register_llo_debug_info=true": "traces cannot be joined with bundles by identity",
    "--xla_xprof_enable_custom_call_tracing=true": "no instruction times in traces",
    "--xla_tpu_bundle_instrumentation_options=trace_best_effort_frequency:100,"
    "trace_guaranteed_frequency:100": "instruction tracing costs more",
}
MIN_DISK = 2 << 30
MIN_MEMORY = 2 << 30
_TINY = Path(__file__).with_name("tiny_kernel.py")
_TRY_TOPOLOGIES = """
import sys
from jax.experimental import topologies
for name in sys.argv[1:]:
    try:
        print(name, len(topologies.get_topology_desc(platform="tpu", topology_name=name).devices), flush=True)
    except Exception as error:
        print(name, "-", str(error).splitlines()[0], flush=True)
"""


class Status(StrEnum):
    """`problem` makes the exit code 1; `note` is something to know."""

    OK = "ok"
    NOTE = "note"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Check:
    """One finding: what was looked at, what was found, and what to do about it ("" where nothing)."""

    name: str
    status: Status
    found: str
    cure: str = ""


def run_checks() -> Iterable[Check]:
    """Every check, the quick ones first."""
    yield check_python(sys.version_info[:3])
    packages = [check_package(name, installed_version(name)) for name in PACKAGES]
    yield from packages
    yield check_pair(installed_version("jax"), installed_version("jaxlib"))
    yield check_git()
    yield from check_environment(os.environ)
    yield check_lock(Path(tempfile.gettempdir()) / "libtpu_lockfile")
    yield check_space("disk for temporary files", Path(tempfile.gettempdir()))
    yield check_space("disk of this folder", Path.cwd())
    yield check_memory(Path("/proc/meminfo"))
    yield check_hardware(Path("/dev"))
    if any(p.status is Status.PROBLEM and "not installed" in p.found for p in packages[:3]):
        yield Check("compile", Status.PROBLEM, "not tried", "Install what is missing first.")
        return
    yield from check_topologies()
    yield from check_flags()
    yield from check_compile()


def check_python(version: Sequence[int]) -> Check:
    """Whether Python is new enough for a JAX that simulates several devices without hanging."""
    text = ".".join(map(str, version))
    if tuple(version[:2]) < PYTHON:
        return Check(
            "python", Status.PROBLEM, text, "Use Python 3.12 or newer; `make demo` makes an environment."
        )
    return Check("python", Status.OK, text)


def installed_version(name: str) -> str | None:
    """Version of an installed distribution, None where it is not."""
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def check_package(name: str, version: str | None) -> Check:
    """Whether a package is there, in a version that we know."""
    low, high = PACKAGES[name]
    wanted = f"{'.'.join(map(str, low))} or newer" if low else "any version"
    if high:
        wanted += f", below {'.'.join(map(str, high))}"
    cure = "pip install 'jax[tpu]>=0.12,<0.13' tensorboard-plugin-profile"
    if version is None:
        return Check(name, Status.PROBLEM, f"not installed ({wanted} needed)", cure)
    numbers = version_numbers(version)
    if (low and numbers < low) or (high and numbers >= high):
        return Check(name, Status.PROBLEM, f"{version} ({wanted} needed)", cure)
    if name == "libtpu" and not LIBTPU_READ[0] <= numbers[:3] <= LIBTPU_READ[1]:
        return Check(
            name, Status.NOTE, f"{version}; the reader was made from dumps of 0.0.42 to 0.0.50",
            "Look at `not_understood` of a report: it counts the text that was not known.",
        )  # fmt: skip
    return Check(name, Status.OK, version)


def version_numbers(version: str) -> tuple[int, ...]:
    """The leading numbers of a version: `0.12.0.1` and `0.12.0.dev1` give (0, 12, 0, 1) and (0, 12, 0)."""
    numbers = []
    for part in version.split("."):
        if not part.isdigit():
            break
        numbers.append(int(part))
    return tuple(numbers)


def check_pair(jax: str | None, jaxlib: str | None) -> Check:
    """Whether jax and jaxlib belong together."""
    if jax and jaxlib and version_numbers(jax)[:3] != version_numbers(jaxlib)[:3]:
        return Check(
            "jax and jaxlib", Status.PROBLEM, f"{jax} with {jaxlib}", "Install the same version of both."
        )
    return Check("jax and jaxlib", Status.OK, "same version" if jax and jaxlib else "not both installed")


def check_git() -> Check:
    """Whether captures can say which commit the kernel is of."""
    if shutil.which("git") is None:
        return Check("git", Status.NOTE, "not found", "Captures will not say which commit a kernel is of.")
    return Check("git", Status.OK, "found")


def check_environment(environment: os._Environ[str] | dict[str, str]) -> Iterable[Check]:
    """Variables that decide things behind one's back."""
    if environment.get("LIBTPU_INIT_ARGS"):
        yield Check(
            "LIBTPU_INIT_ARGS", Status.NOTE, environment["LIBTPU_INIT_ARGS"],
            "`megascope compile` replaces it; give flags with --flag.",
        )  # fmt: skip
    if environment.get("JAX_COMPILATION_CACHE_DIR"):
        yield Check(
            "JAX_COMPILATION_CACHE_DIR", Status.NOTE, environment["JAX_COMPILATION_CACHE_DIR"],
            "`megascope compile` keeps the cache out; with your own dump flags a hit writes no dump.",
        )  # fmt: skip


def check_lock(path: Path) -> Check:
    """libtpu's lock file: who holds it, and whether we may."""
    if not path.exists():
        return Check("libtpu lock", Status.OK, "none")
    if not os.access(path, os.R_OK | os.W_OK):
        return Check(
            "libtpu lock", Status.NOTE, f"{path} belongs to another user",
            "`megascope compile` does without it; elsewhere set ALLOW_MULTIPLE_LIBTPU_LOAD=1 or remove it.",
        )  # fmt: skip
    with path.open("rb+") as stream:
        try:
            fcntl.flock(stream, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            return Check(
                "libtpu lock", Status.NOTE, f"{path} is held by a running process",
                "Compiles work; a recording on this TPU must wait until that process ends.",
            )  # fmt: skip
        fcntl.flock(stream, fcntl.LOCK_UN)
    return Check("libtpu lock", Status.OK, f"{path}, free")


def check_space(name: str, path: Path) -> Check:
    """Whether a folder's disk has room for a few captures (a large kernel's is about 100 MB)."""
    free = shutil.disk_usage(path).free
    found = f"{free / (1 << 30):.1f} GiB free in {path}"
    if free < MIN_DISK:
        return Check(name, Status.PROBLEM, found, "Free at least 2 GiB.")
    return Check(name, Status.OK, found)


def check_memory(meminfo: Path) -> Check:
    """Whether the compiler has memory to work in."""
    try:
        lines = dict(line.split(":", 1) for line in meminfo.read_text().splitlines() if ":" in line)
        free = int(lines["MemAvailable"].split()[0]) << 10
    except (OSError, KeyError, ValueError):
        return Check("memory", Status.NOTE, "unknown on this system")
    found = f"{free / (1 << 30):.1f} GiB available"
    if free < MIN_MEMORY:
        return Check(
            "memory", Status.PROBLEM, found, "Free at least 2 GiB, or large compiles will be killed."
        )
    return Check("memory", Status.OK, found)


def check_hardware(dev: Path) -> Check:
    """Whether there is a TPU, by its device files."""
    chips = [*dev.glob("accel*"), *dev.glob("vfio/[0-9]*")]
    if chips:
        return Check("TPU", Status.OK, f"{len(chips)} device files")
    return Check("TPU", Status.NOTE, "none here: compiles work, recordings do not")


def check_topologies() -> Iterable[Check]:
    """Which chips this libtpu compiles for."""
    names = [parse_topology(shape, chip).name for chip, shape in DEFAULT_SHAPES.items()]
    done = _child([], _TRY_TOPOLOGIES, *names)
    said = dict(line.split(" ", 1) for line in done.stdout.splitlines() if " " in line)
    for name in names:
        answer = said.get(name)
        if answer is None:
            yield Check(
                f"topology {name}", Status.PROBLEM, f"no answer: {_last_line(done.stderr)}",
                "Reinstall jax[tpu].",
            )  # fmt: skip
        elif answer.startswith("- "):
            yield Check(f"topology {name}", Status.PROBLEM, answer[2:], "Install a newer libtpu (jax[tpu]).")
        else:
            yield Check(f"topology {name}", Status.OK, f"{answer} cores")


def check_flags(flags: dict[str, str] = FLAGS) -> Iterable[Check]:
    """Which flags this libtpu takes; all at once, and one by one only where that fails."""
    if _refused(list(flags)) is None:
        yield Check("flags", Status.OK, f"all {len(flags)} accepted")
        return
    with ThreadPoolExecutor(max_workers=2) as pool:
        answers = list(pool.map(lambda flag: _refused([flag]), flags))
    for (flag, missing), refused in zip(flags.items(), answers, strict=True):
        name = f"flag {flag.partition('=')[0]}"
        if refused is None:
            yield Check(name, Status.OK, "accepted")
        else:
            yield Check(name, Status.PROBLEM, f"{refused}: {missing}", "Install a newer libtpu (jax[tpu]).")


def check_compile() -> Iterable[Check]:
    """Compile a tiny kernel and read it back."""
    request = CompileRequest(f"{_TINY}:build", parse_topology("1x1x1"), timeout_seconds=120)
    with tempfile.TemporaryDirectory(prefix="megascope-doctor-") as folder:
        out = Path(folder) / "tiny"
        try:
            manifest = compile_kernel(request, out)
        except MegascopeError as error:
            # The log goes with the folder, so its place is of no use to anyone.
            yield Check("compile", Status.PROBLEM, error.fault, error.cure.partition("Full log:")[0].strip())
            return
        yield Check("compile", Status.OK, f"a tiny kernel in {manifest['seconds']['total']:.1f} s")
        yield from check_dump(out)


def check_dump(capture: Path) -> Iterable[Check]:
    """Whether a capture's dump has all that reports use."""
    from analyzer.capture import open_capture

    opened = open_capture(capture)
    chosen, program = opened.kernel_program(), opened.read_kernel()
    unknown = program.not_understood.count
    total = len(program.instruction_opcode)
    reads = f"{program.bundle_count} bundles, {unknown} of {total} instructions not understood"
    status = Status.NOTE if unknown else Status.OK
    yield Check("bundles", status, reads, "This libtpu prints something new." if unknown else "")
    parts = {
        "source lines": (bool(program.sources), "results have no file and line"),
        "markers": (bool(program.markers), "results have no phases"),
        "utilization": ("final_hlo-static-per-bundle-utilization" in chosen.companions, "no slot occupancy"),
        "VMEM report": ("vmem_report" in chosen.companions, "no VMEM use"),
    }
    for name, (there, missing) in parts.items():
        yield (
            Check(name, Status.OK, "in the dump")
            if there
            else Check(name, Status.PROBLEM, f"not in the dump: {missing}", "This libtpu names it otherwise.")
        )


def _refused(flags: list[str]) -> str | None:
    """What libtpu says against the flags, None where it takes them."""
    done = _child(flags, _TRY_TOPOLOGIES, parse_topology("1x1x1").name)
    if done.returncode == 0:
        return None
    refused = refused_flag(done.stderr)
    return refused[1] if refused else _last_line(done.stderr)


def _child(flags: Sequence[str], code: str, *arguments: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-P", "-c", code, *arguments]
    try:
        return subprocess.run(
            command, env=compile_environment(flags), capture_output=True, text=True, timeout=120, check=False
        )
    except subprocess.TimeoutExpired:
        return subprocess.CompletedProcess(command, 1, "", "no answer within 120 s")


def _last_line(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return lines[-1] if lines else "no message"
