"""Compiles a kernel for a TPU that need not be there, in a child process, and writes a capture."""

import errno
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from analyzer.errors import InputError, MegascopeError, UsageError
from analyzer.output import FULL
from analyzer.probe_effect import compare
from profiler import diagnose
from profiler.flags import LEVELS, compile_environment, libtpu_flags
from profiler.manifest import add_to_manifest, compile_manifest, write_manifest
from profiler.topology import Topology

_PROJECT = Path(__file__).resolve().parents[1]
# -P: the working folder must not shadow modules; the project's own root joins the path where it is
# not installed.
_BOOT = (
    "import sys; root = sys.argv.pop(1); root in sys.path or sys.path.insert(0, root); "
    "module = sys.argv.pop(1); import importlib; "
    "sys.exit(importlib.import_module(module).main(*sys.argv[1:]))"
)

Progress = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class CompileRequest:
    """What to compile and how.

    Attributes:
        target: A kernel of the registry (`mlp`) or `path/to/file.py:function`.
        topology: The slice to compile for.
        level: Instrumentation level, "off" or "regions".
        options: Keyword options for the kernel's builder.
        extra_flags: More flags for libtpu; they win over ours.
        keep_all_passes: Dump every compiler pass.
        timeout_seconds: The compile is stopped after this time.
    """

    target: str
    topology: Topology
    level: str = "regions"
    options: Mapping[str, Any] = field(default_factory=dict)
    extra_flags: Sequence[str] = ()
    keep_all_passes: bool = False
    timeout_seconds: float = 1800.0


def compile_kernel(
    request: CompileRequest,
    out: Path,
    *,
    force: bool = False,
    progress: Progress = lambda _: None,
    probe_effect: bool = False,
) -> dict[str, Any]:
    """Compile and write the capture `out`; returns its manifest.

    The capture is written beside `out` and renamed when complete. A compile that fails leaves its log
    as `OUT.compile.log` and nothing else.

    Args:
        request: What to compile and how.
        out: Folder of the capture.
        force: Replace a capture that is there.
        progress: Called with what is being done, a few words each.
        probe_effect: Compile at the other level too, into `out/level-off` (or `-regions`), and put the
            comparison into the manifest.

    Raises:
        UsageError: `out` exists and `force` is not set, or libtpu refuses the topology or a flag.
        InputError: the kernel cannot be loaded or compiled; the message is the compiler's own.
    """
    out = out.expanduser().absolute()
    failed_log = out.with_name(out.name + ".compile.log")
    requests = [(request, Path("."))]
    if probe_effect:
        other = next(level for level in LEVELS if level != request.level)
        requests.insert(0, (replace(request, level=other), Path(f"level-{other}")))
    try:
        with capture_folder(out, force) as temporary:
            failed_log.unlink(missing_ok=True)
            for wanted, place in requests:
                folder = temporary / place
                folder.mkdir(exist_ok=True)
                try:
                    manifest = fill_capture(wanted, folder, failed_log, progress)
                except MegascopeError as error:
                    if str(failed_log) in str(error) and (folder / "compile.log").is_file():
                        with suppress(OSError):  # the disk may be what is wrong; the error says more
                            shutil.copyfile(folder / "compile.log", failed_log)
                    raise
                write_manifest(folder, manifest)
        if probe_effect:
            progress("comparing")
            manifest = add_to_manifest(
                out,
                probe_effect={
                    "capture": str(requests[0][1]),
                    "counts": compare({wanted.level: out / place for wanted, place in requests}),
                },
            )
    except OSError as error:
        raise cannot_write(out, error) from error
    return manifest


@contextmanager
def capture_folder(out: Path, force: bool) -> Iterator[Path]:
    """A folder to write a capture in, beside `out`; it becomes `out` when the block ends well, else it goes.

    Raises:
        UsageError: `out` is there already and `force` is not set, or is no capture.
    """
    check_output(out, force)
    out.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".tmp", dir=out.parent))
    temporary.chmod(0o755)
    try:
        with _terminate_as_exception():
            yield temporary
            check_output(out, force)
            publish(temporary, out)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def cannot_write(out: Path, error: OSError) -> InputError:
    """The error for a capture that the file system does not take."""
    reason = (error.strerror or str(error)).lower()
    named = error.filename2 or error.filename
    parts = Path(named).parts if isinstance(named, str) else ()
    inside = [i for i, part in enumerate(parts) if part.startswith(f".{out.name}.")]  # the temporary folder
    file = Path(*parts[inside[0] + 1 :]) if inside else None
    where = out / file if file is not None and file.parts else out
    if error.errno in FULL:
        return InputError(
            where,
            f"cannot write the capture: {reason}",
            "Make room on that disk, or give -o a folder on another.",
        )
    return InputError(where, f"cannot write the capture: {reason}", "Check the folder and its permissions.")


@contextmanager
def _terminate_as_exception() -> Iterator[None]:
    """Let SIGTERM unwind the stack, so that the child ends and the temporary folder goes."""

    def stop(number: int, _: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def check_output(out: Path, force: bool) -> None:
    """Refuse to write over something.

    Raises:
        UsageError: `out` is there and `force` is not set, or it is something that is not a capture.
    """
    if not out.exists():
        return
    if out.is_dir() and not any(out.iterdir()):
        return
    if not (out / "manifest.json").is_file():
        raise UsageError(
            out, "exists and is not a capture, so it is not replaced", "Name another folder with -o."
        )
    if not force:
        raise UsageError(out, "exists", "Give --force to replace it, or name another folder with -o.")


def publish(temporary: Path, out: Path) -> None:
    """Move a complete folder to its name; what had the name goes only once the new one is in place."""
    if not out.exists():
        temporary.rename(out)
        return
    old = Path(tempfile.mkdtemp(prefix=f".{out.name}.", suffix=".old", dir=out.parent))
    out.rename(old / "old")
    try:
        temporary.rename(out)
    except OSError:
        (old / "old").rename(out)
        raise
    finally:
        shutil.rmtree(old, ignore_errors=True)


def fill_capture(
    request: CompileRequest, capture: Path, shown_log: Path, progress: Progress
) -> dict[str, Any]:
    """Compile into the folder `capture` and return the manifest, which is not written yet.

    Args:
        request: What to compile.
        capture: An empty folder.
        shown_log: Where error messages say that the log is.
        progress: Called with what is being done.

    Raises:
        UsageError, InputError: as `compile_kernel`.
    """
    hlo = capture / "hlo"
    hlo.mkdir()
    # libtpu splits its flags at white space, so a dump cannot go to a path that has some.
    splits = len(str(capture).split()) > 1
    dump = Path(tempfile.mkdtemp(prefix="megascope-")) if splits else capture / "dump"
    dump.mkdir(exist_ok=True)
    try:
        flags = libtpu_flags(dump, request.level, request.keep_all_passes, request.extra_flags)
        result = _run_child(request, flags, capture, shown_log, progress)
        if splits:
            shutil.copytree(dump, capture / "dump")
    finally:
        if splits:
            shutil.rmtree(dump, ignore_errors=True)
    if not any((capture / "dump").glob("*final_bundles.txt")):
        raise diagnose.empty_dump(request.target, result, capture / "compile.log", shown_log)
    for text in sorted((capture / "dump").glob("*TLP-hlo.txt")):
        shutil.copyfile(text, hlo / text.name)
    progress("writing the capture")
    public_flags = [f.replace(str(dump), "CAPTURE/dump") for f in flags]
    return compile_manifest(request, capture, result, public_flags)


def _what_went_wrong(
    target: str, failure: dict[str, Any] | None, code: int, stage: str, logs: "_Logs"
) -> MegascopeError | OSError:
    """The error for a child without a result; a full disk is an OSError, as it is when we write ourselves."""
    if failure is not None and failure.get("errno") in FULL:
        return OSError(failure["errno"], os.strerror(failure["errno"]), failure.get("filename") or None)
    if failure is not None:
        return diagnose.failure(target, failure, logs.shown)
    if _disk_is_full(logs.written):
        return OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    return diagnose.death(target, code, stage, logs.written, logs.shown)


def _disk_is_full(log: Path) -> bool:
    """Whether a child that died left a full disk: libtpu ends the process where it cannot write a dump."""
    with suppress(OSError):
        if os.strerror(errno.ENOSPC) in log.read_text(errors="replace")[-100_000:]:
            return True
        return shutil.disk_usage(log.parent).free < 1 << 14
    return False


def _run_child(
    request: CompileRequest, flags: Sequence[str], capture: Path, shown_log: Path, progress: Progress
) -> dict[str, Any]:
    asked = {
        "target": request.target,
        "topology": request.topology.name,
        "level": request.level,
        "options": dict(request.options),
        "hlo": str(capture / "hlo"),
    }
    job = Job("profiler.child", asked, compile_environment(flags), request.target, request.timeout_seconds)
    return run_child(job, capture, shown_log, progress)


@dataclass(frozen=True, slots=True)
class Job:
    """Work for a child process.

    Attributes:
        module: Module whose `main` does it.
        asked: The request it reads, as JSON.
        environment: Its environment variables.
        target: What errors are about.
        timeout_seconds: It is stopped after this time.
    """

    module: str
    asked: Mapping[str, Any]
    environment: Mapping[str, str]
    target: str
    timeout_seconds: float


def run_child(job: Job, capture: Path, shown_log: Path, progress: Progress) -> dict[str, Any]:
    """Run a job and give what it reports; its output goes to `compile.log` of the capture.

    Raises:
        MegascopeError: it failed, died or took too long.
    """
    with tempfile.NamedTemporaryFile("w", prefix="megascope-", suffix=".json") as request_file:
        json.dump(dict(job.asked), request_file)
        request_file.flush()
        read_end, write_end = os.pipe()
        with (capture / "compile.log").open("wb") as log:
            child = subprocess.Popen(
                [
                    sys.executable,
                    "-P",
                    "-c",
                    _BOOT,
                    str(_PROJECT),
                    job.module,
                    request_file.name,
                    str(write_end),
                ],
                env=dict(job.environment),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        os.close(write_end)
        try:
            return _follow(child, read_end, _Logs(capture / "compile.log", shown_log), job, progress)
        finally:
            os.close(read_end)
            if child.poll() is None:
                _end(child)


def _follow(
    child: subprocess.Popen[bytes],
    events: int,
    logs: "_Logs",
    request: Job,
    progress: Progress,
) -> dict[str, Any]:
    """Read the child's events until it ends; its result, or the error that says what went wrong."""
    deadline = time.monotonic() + request.timeout_seconds
    stage, buffer, result, failure = "start", b"", None, None
    with selectors.DefaultSelector() as selector:
        selector.register(events, selectors.EVENT_READ)
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                raise diagnose.timeout(request.target, request.timeout_seconds, stage, logs.shown)
            if not selector.select(min(left, 10.0)):
                progress(f"{stage} takes its time")
                continue
            chunk = os.read(events, 1 << 16)
            if not chunk:
                break
            *lines, buffer = (buffer + chunk).split(b"\n")
            for line in lines:
                event = json.loads(line)
                if event["event"] == "stage":
                    stage = event["stage"]
                    progress(stage)
                elif event["event"] == "failure":
                    failure = event
                else:
                    result = event
    try:
        code = child.wait(timeout=max(5.0, deadline - time.monotonic()))
    except subprocess.TimeoutExpired:
        raise diagnose.timeout(request.target, request.timeout_seconds, stage, logs.shown) from None
    if result is None:
        raise _what_went_wrong(request.target, failure, code, stage, logs)
    return result


@dataclass(frozen=True, slots=True)
class _Logs:
    """Where the log is being written, and where the user will find it if the compile fails."""

    written: Path
    shown: Path


def _end(child: subprocess.Popen[bytes]) -> None:
    """Stop the child and whatever it started: it leads its own process group."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(child.pid, number)
        except ProcessLookupError:
            return
        try:
            child.wait(timeout=5)
        except subprocess.TimeoutExpired:
            continue
        return
