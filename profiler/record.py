"""Runs a kernel on TPUs and records it: trace, dump of exactly what ran, and what recording cost."""

import shutil
import socket
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from analyzer.dump import choose_kernel, find_programs
from analyzer.errors import DataAbsentError, InputError, MegascopeError
from profiler import diagnose
from profiler.compile import Job, cannot_write, capture_folder, run_child
from profiler.flags import compile_environment, libtpu_flags
from profiler.manifest import compile_manifest, write_manifest
from profiler.topology import DEVICES_PER_CHIP, Topology, shapes_with

LEVELS = ("regions", "instructions", "counters", "none")
REGISTER_LLO = "--xla_xprof_register_llo_debug_info=true"
INSTRUCTIONS = "--xla_xprof_enable_custom_call_tracing=true"
COUNTER_OPTIONS = {"tpu_trace_mode": "TRACE_COMPUTE_AND_SYNC"}
_KINDS = {"tpu7x": "tpu7x", "tpu v7x": "tpu7x", "tpu7": "tpu7x", "tpu v6 lite": "v6e", "tpu v6e": "v6e"}
_KINDS |= {"tpu v5 lite": "v5e", "tpu v5e": "v5e", "tpu v5": "v5p", "tpu v5p": "v5p"}

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class RecordRequest:
    """What to record and how.

    Attributes:
        target: A kernel of the registry or `path/to/file.py:function`.
        topology: The slice, for a dry run; on hardware the slice is what is there.
        level: What the trace shows: "regions", "instructions", "counters", or "none" (no markers).
        steps, warmup: Traced steps, and steps before them.
        options: Keyword options for the kernel's builder.
        extra_flags: More flags for libtpu; they win over ours.
        timeout_seconds: Compile and run are stopped after this time.
        dry_run: Do all but run.
        distributed: `coordinator`, `processes`, `process` where several hosts record together.
        device_layer: `file.py:function` in place of the TPUs (tests).
        driver: `module:function`, the layer that gives the operands and moves on from step to step; None
            runs one step on made-up operands again and again.
        driver_options: For the driver, JSON values.
        gather_seconds: How long the first process waits for the captures of the others.
    """

    target: str
    topology: Topology
    level: str = "regions"
    steps: int = 5
    warmup: int = 3
    options: Mapping[str, Any] = field(default_factory=dict)
    extra_flags: Sequence[str] = ()
    timeout_seconds: float = 1800.0
    dry_run: bool = False
    distributed: Mapping[str, Any] | None = None
    device_layer: str | None = None
    driver: str | None = None
    driver_options: Mapping[str, Any] = field(default_factory=dict)
    gather_seconds: float = 600.0

    @property
    def hooks(self) -> str:
        """The instrumentation level of the kernel."""
        return "off" if self.level == "none" else "regions"

    @property
    def process(self) -> int:
        """Number of this process among those that record."""
        return int((self.distributed or {}).get("process", 0))

    @property
    def processes(self) -> int:
        """How many processes record together."""
        return int((self.distributed or {}).get("processes", 1))


def record_flags(dump: Path, request: RecordRequest) -> list[str]:
    """Flags for LIBTPU_INIT_ARGS: those of a compile, and what the level of tracing needs."""
    more = [] if request.level == "none" else [REGISTER_LLO]
    if request.level == "instructions":
        more.append(INSTRUCTIONS)
    return libtpu_flags(dump, request.hooks, extra=[*more, *request.extra_flags])


def plan(request: RecordRequest) -> list[str]:
    """What a recording does, line by line."""
    flags = record_flags(Path("CAPTURE/dump"), request)
    lines = [
        f"compile {request.target} with {' '.join(flags)}",
        f"run {request.warmup} steps to warm up, then {request.steps} timed without tracing",
    ]
    if request.level != "none":
        lines += [
            f"run {request.steps} steps under JAX's profiler ({request.level}), into CAPTURE/xplane",
            "compile and run the same kernel without markers, to say what they cost",
        ]
    if request.processes > 1:
        lines.append(f"gather the traces of {request.processes} processes into one capture")
    return [*lines, "write CAPTURE/manifest.json: versions, flags, devices, operands, checksums"]


def record_kernel(
    request: RecordRequest,
    out: Path,
    *,
    force: bool = False,
    progress: Progress = lambda _: None,
    dev: Path = Path("/dev"),
) -> dict[str, Any]:
    """Record and write the capture `out`; returns its manifest.

    Args:
        request: What to record and how.
        out: Folder of the capture; processes but the first write `OUT.hostN` beside it.
        force: Replace a capture that is there.
        progress: Called with what is being done, a few words each.
        dev: Where device files lie.

    Raises:
        DataAbsentError: there is no TPU here, and it is no dry run.
        UsageError: `out` exists and `force` is not set, or libtpu refuses a flag.
        InputError: the kernel cannot be loaded, compiled or run.
    """
    if not request.dry_run and request.device_layer is None and not has_tpu(dev):
        raise DataAbsentError(
            "record",
            "there is no TPU on this machine (no /dev/accel*, no /dev/vfio/N), so nothing can be run",
            "Use --dry-run to do all but run, or `megascope compile` to model the kernel.",
        )
    out = out.expanduser().absolute()
    if request.process:
        out = host_folder(out, request.process)
    failed_log = out.with_name(out.name + ".compile.log")
    try:
        with capture_folder(out, force) as temporary:
            failed_log.unlink(missing_ok=True)
            try:
                manifest = _fill(request, temporary, failed_log, progress)
            except MegascopeError as error:
                log = temporary / "compile.log"
                if str(failed_log) in str(error) and log.is_file():
                    with suppress(OSError):  # the disk may be what is wrong; the error says more
                        shutil.copyfile(log, failed_log)
                raise
            if request.processes > 1 and not request.process and not request.dry_run:
                progress("waiting for the other processes")
                manifest["notes"] += gather(temporary, out, request)
            write_manifest(temporary, manifest)
    except OSError as error:
        raise cannot_write(out, error) from error
    return manifest


def has_tpu(dev: Path) -> bool:
    """Whether there are device files of TPUs."""
    return any(dev.glob("accel*")) or any(dev.glob("vfio/[0-9]*"))


def host_folder(out: Path, process: int) -> Path:
    """Where a process but the first leaves its capture."""
    return out.with_name(f"{out.name}.host{process}")


def _fill(request: RecordRequest, capture: Path, shown_log: Path, progress: Progress) -> dict[str, Any]:
    result, flags = _run(request, capture, shown_log, progress, level=request.level)
    chosen = _topology(request, result)
    as_compiled = _Compiled(request.target, chosen, request.hooks, request.options, request.extra_flags)
    manifest = compile_manifest(as_compiled, capture, result, flags)  # type: ignore[arg-type]
    manifest |= {
        "kind": "record",
        "record": {
            "executed": bool(result.get("executed")),
            "level": request.level,
            "steps": request.steps,
            "warmup": request.warmup,
            "host": socket.gethostname(),
            "processes": request.processes,
            "process": request.process,
            "profiler_options": _profiler_options(request),
            "device_facts": result.get("device_facts"),
            "step_seconds_untraced": result.get("step_seconds_untraced"),
            "step_seconds_traced": result.get("step_seconds_traced"),
            "clock": "host, time.perf_counter: device time and dispatch",
            "outcome": result.get("outcome"),
        },
    }
    if not result.get("executed"):
        manifest["notes"].append("dry run: nothing was run, there is no trace")
        return manifest
    if request.level != "none":
        if not any((capture / "xplane").rglob("*.xplane.pb")):
            raise InputError(
                request.target,
                "the profiler wrote no xplane file",
                f"Look for its reason in {shown_log}; fewer --steps give a smaller trace.",
            )
        manifest["record"]["probe_effect"] = _probe_effect(request, capture, result, progress)
    manifest["notes"].append(_operands_note(request, manifest["facts"]))
    return manifest


def _operands_note(request: RecordRequest, facts: Mapping[str, Any]) -> str:
    """Where the operands came from."""
    if request.driver is not None:
        return f"operands were given by {request.driver}, every step went on from the one before"
    given = ", ".join(facts.get("sample_inputs") or {})
    if not given:
        return "operands were made up: small random numbers, zeros for whole numbers"
    return f"operands were made up: small random numbers; {given} as the kernel's facts say, else zeros"


@dataclass(frozen=True, slots=True)
class _Compiled:
    """What `compile_manifest` wants to know of a request."""

    target: str
    topology: Topology
    level: str
    options: Mapping[str, Any]
    extra_flags: Sequence[str]


def _run(
    request: RecordRequest, capture: Path, shown_log: Path, progress: Progress, *, level: str
) -> tuple[dict[str, Any], list[str]]:
    """Compile and run at one level; the dump, HLO and trace lie in `capture` afterwards."""
    (capture / "hlo").mkdir()
    traced = RecordRequest(request.target, request.topology, level, extra_flags=request.extra_flags)
    # libtpu splits its flags at white space, so a dump cannot go to a path that has some.
    dump = Path(tempfile.mkdtemp(prefix="megascope-"))
    try:
        flags = record_flags(dump, traced)
        environment = compile_environment(flags)
        if not request.dry_run and request.device_layer is None:
            for name in ("TPU_SKIP_MDS_QUERY", "JAX_PLATFORMS", "ALLOW_MULTIPLE_LIBTPU_LOAD"):
                environment.pop(name, None)
        asked = {
            "target": request.target,
            "topology": request.topology.name,
            "level": traced.hooks,
            "options": dict(request.options),
            "hlo": str(capture / "hlo"),
            "dump": str(dump),
            "xplane": str(capture / "xplane"),
            "steps": request.steps,
            "warmup": request.warmup,
            "traced": level != "none",
            "dry_run": request.dry_run,
            "profiler_options": _profiler_options(request),
            "distributed": dict(request.distributed) if request.distributed else None,
            "device_layer": request.device_layer,
            "driver": request.driver,
            "driver_options": dict(request.driver_options),
        }
        job = Job("profiler.record_child", asked, environment, request.target, request.timeout_seconds)
        result = run_child(job, capture, shown_log, progress)
        shutil.copytree(dump, capture / "dump")
    finally:
        shutil.rmtree(dump, ignore_errors=True)
    if not any((capture / "dump").glob("*final_bundles.txt")):
        raise diagnose.empty_dump(request.target, result, capture / "compile.log", shown_log)
    for text in sorted((capture / "dump").glob("*TLP-hlo.txt")):
        shutil.copyfile(text, capture / "hlo" / text.name)
    return result, [flag.replace(str(dump), "CAPTURE/dump") for flag in flags]


def _profiler_options(request: RecordRequest) -> dict[str, Any]:
    return dict(COUNTER_OPTIONS) if request.level == "counters" else {}


def _topology(request: RecordRequest, result: Mapping[str, Any]) -> Topology:
    """The slice that ran: as asked for where nothing ran, else by what the devices say."""
    facts = result.get("device_facts")
    if not facts:
        return request.topology
    kind = str(facts.get("device_kind") or result.get("device_kind") or "").lower()
    chip = _KINDS.get(kind, request.topology.chip)
    devices = int(result.get("devices") or DEVICES_PER_CHIP[chip])
    shapes = shapes_with(chip, devices)
    if shapes:
        return Topology(chip, tuple(int(n) for n in shapes[0].split("x")))
    return Topology(chip, request.topology.shape)


def _probe_effect(
    request: RecordRequest, capture: Path, result: Mapping[str, Any], progress: Progress
) -> dict[str, Any]:
    """The same kernel without markers and untraced, beside the one that was traced."""
    progress("the same without markers")
    with tempfile.TemporaryDirectory(prefix="megascope-") as folder:
        bare = Path(folder)
        other, _ = _run(request, bare, bare / "compile.log", progress, level="none")
        bundles = choose_kernel(find_programs(bare / "dump")).program.bundle_count
    marked = choose_kernel(find_programs(capture / "dump")).program.bundle_count
    return {
        "bundles_without_markers": bundles,
        "bundles_with_markers": marked,
        "step_seconds_without_markers": _median(other.get("step_seconds_untraced")),
        "step_seconds_with_markers": _median(result.get("step_seconds_untraced")),
        "step_seconds_traced": _median(result.get("step_seconds_traced")),
    }


def _median(values: Sequence[float] | None) -> float | None:
    return sorted(values)[(len(values) - 1) // 2] if values else None


def probe_lines(effect: Mapping[str, Any]) -> list[str]:
    """The probe effect as a table for people; unknown is said."""

    def row(name: str, seconds: float | None, bundles: int | None) -> str:
        base = effect["step_seconds_without_markers"]
        time_text = "unknown" if seconds is None else f"{seconds * 1e6:,.1f} us"
        change = f"{seconds / base - 1:+.1%}" if seconds is not None and base else ""
        return f"{name:<26}{time_text:>16}{change:>9}" + (f"{bundles:>9,} bundles" if bundles else "")

    return [
        "step by the host's clock (median)",
        row(
            "tracing off, no markers",
            effect["step_seconds_without_markers"],
            effect["bundles_without_markers"],
        ),
        row("tracing off, markers", effect["step_seconds_with_markers"], effect["bundles_with_markers"]),
        row("tracing on, markers", effect["step_seconds_traced"], None),
    ]


def gather(capture: Path, out: Path, request: RecordRequest) -> list[str]:
    """Move the traces of the other processes into this capture; notes on those that did not come.

    Args:
        capture: The capture being written.
        out: Its final name; the others lie beside it.
        request: Says how many processes there are, and how long to wait.
    """
    runs = sorted({file.parent for file in (capture / "xplane").rglob("*.xplane.pb")})
    if not runs:
        return []
    run, notes = runs[-1], []
    for own in sorted(run.glob("*.xplane.pb")):
        own.rename(run / "host0.xplane.pb")
    deadline = time.monotonic() + request.gather_seconds
    for process in range(1, request.processes):
        folder = host_folder(out, process)
        while not (folder / "manifest.json").is_file() and time.monotonic() < deadline:
            time.sleep(0.2)
        files = sorted((folder / "xplane").rglob("*.xplane.pb"))
        if not (folder / "manifest.json").is_file() or not files:
            notes.append(f"process {process} of {request.processes} left no trace: its cores are missing")
            continue
        shutil.copyfile(files[-1], run / f"host{process}.xplane.pb")
        shutil.rmtree(folder, ignore_errors=True)
    return notes
