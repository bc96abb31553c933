"""Turns what a compile process did into the one message its user needs."""

import re
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from analyzer.errors import InputError, MegascopeError, UsageError

_MAX_MESSAGE = 900
_MIB = 1 << 20
_WHAT = {
    "start": "JAX did not start",
    "topology": "libtpu did not start",
    "load": "the file could not be imported",
    "build": "build() failed",
    "check": "build() returned what cannot be compiled",
    "trace": "the kernel could not be traced",
    "compile": "the TPU compiler refused the kernel",
    "write": "the result could not be written",
}


def failure(target: str, event: Mapping[str, Any], log: Path) -> MegascopeError:
    """The error for a failure that the child itself reported.

    Args:
        target: What the user asked to compile.
        event: The child's failure: `stage`, `type`, `message`, and perhaps `source` and `cure`.
        log: Where the full log is kept.
    """
    stage = str(event.get("stage"))
    of_registry = ".py" not in target
    if event.get("cure"):
        error = UsageError if of_registry else InputError
        return error(target, str(event["message"]).rstrip("."), str(event["cure"]))
    message = shorten(str(event.get("message") or "no message"))
    kind = str(event.get("type"))
    if stage == "build" and of_registry and kind in ("ValueError", "TypeError"):
        return UsageError(f"{target} --set", message.rstrip("."), "See docs/compile.md for its options.")
    if stage == "topology" and "INVALID_ARGUMENT" in message:
        return UsageError(
            "--topology",
            f"libtpu does not know it: {message.rstrip('.')}",
            "Try 2x2x1 (tpu7x, v5p) or 2x2 (v6e, v5e).",
        )
    said = message if kind in ("JaxRuntimeError", "XlaRuntimeError") else f"{kind}: {message}"
    place = f" (at {event['source']})" if event.get("source") else ""
    return InputError(
        target,
        f"{_WHAT.get(stage, 'the compile failed')}{place}: {said.rstrip('.')}",
        f"{_cure(stage, message)}Full log: {log}".strip(),
    )


def death(target: str, code: int, stage: str, log: Path, shown_log: Path) -> MegascopeError:
    """The error for a child that ended without reporting anything.

    Args:
        target: What the user asked to compile.
        code: Exit code as `subprocess` gives it, negative for a signal.
        stage: The last stage it reported.
        log: The log, to look for the reason in.
        shown_log: Where the user will find it.
    """
    text = _tail(log)
    flag = refused_flag(text)
    if flag:
        return UsageError(
            f"flag {flag[0]}", f"libtpu refused it: {flag[1]}", f"Check --flag. Full log: {shown_log}"
        )
    fatal = re.findall(r"^F\d{4} .*?\] (.*)$", text, re.MULTILINE)
    said = f": {shorten(fatal[-1])}" if fatal else ""
    if code < 0:
        name = signal.Signals(-code).name if -code in {s.value for s in signal.Signals} else str(-code)
        cure = (
            "The machine most likely ran out of memory: compile a smaller size, or give it more memory. "
            if name == "SIGKILL"
            else "This is a crash inside libtpu or the kernel's own code, not a refusal. "
        )
        return InputError(
            target, f"the compile process was ended by {name} while it was in stage {stage!r}{said}",
            f"{cure}Full log: {shown_log}",
        )  # fmt: skip
    return InputError(
        target,
        f"the compile process ended with code {code} in stage {stage!r}{said}",
        f"Full log: {shown_log}",
    )


def timeout(target: str, seconds: float, stage: str, log: Path) -> MegascopeError:
    """The error for a child that was stopped because it took too long."""
    return InputError(
        target, f"no result after {seconds:g} s (stage {stage!r}); the compile was stopped",
        f"Compile a smaller size or raise --timeout. Full log: {log}",
    )  # fmt: skip


def empty_dump(target: str, result: Mapping[str, Any], log: Path, shown_log: Path) -> MegascopeError:
    """The error for a compile that succeeded and wrote no bundles, with the reason where it can be told."""
    if result.get("libtpu_loaded_before"):
        fault = "libtpu was already started in the compile process, so it never read the dump flags"
        cure = (
            "Something starts it with Python itself (sitecustomize, a .pth file, PYTHONSTARTUP): remove that."
        )
    elif result.get("cache_hits"):
        fault = "JAX took the program from its compilation cache, so nothing was compiled"
        cure = (
            "Do not enable jax_enable_compilation_cache inside the kernel's code, or empty the cache folder."
        )
    elif refused_flag(_tail(log)):
        name, said = refused_flag(_tail(log)) or ("", "")
        fault, cure = f"libtpu refused flag {name}: {said}", "Check --flag."
    else:
        fault = "libtpu wrote no bundles, although the compile succeeded"
        cure = "A --flag may have overridden the dump flags, or this libtpu has other names for them."
    return InputError(target, f"no dump: {fault}", f"{cure} Full log: {shown_log}")


def refused_flag(text: str) -> tuple[str, str] | None:
    """The flag that libtpu refused and its own words, None where the log tells of none."""
    match = re.search(
        r"^ERROR: ((?:Unknown command line flag|Illegal value .* specified for flag|.*flag) '([\w-]+)'.*)$",
        text,
        re.MULTILINE,
    )
    return (match.group(2), match.group(1)) if match else None


def shorten(message: str) -> str:
    """A compiler's message on one line, without the program text that some carry, sizes readable."""
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    text = " ".join(lines)
    text = re.sub(r"backend_config=\{.*", "...", text)
    text = re.sub(r"\(?size=(\d{6,})\)?", lambda m: f"({int(m.group(1)) / _MIB:.4g} MiB)", text)
    text = re.sub(r"\s*Please file (an issue|a bug) at \S+", "", text)
    return text if len(text) <= _MAX_MESSAGE else text[: _MAX_MESSAGE - 4].rstrip() + " ..."


def _cure(stage: str, message: str) -> str:
    lower = message.lower()
    if "vmem" in lower and ("exceed" in lower or "resource_exhausted" in lower or "out of memory" in lower):
        return "The kernel's buffers do not fit in VMEM: use smaller tiles or fewer buffers. "
    if "hbm" in lower and "resource_exhausted" in lower:
        return "The operands do not fit in the memory of one core: fewer layers, or more cores. "
    if stage in ("load", "build"):
        return "Mend the file. "
    if stage in ("start", "topology"):
        return "Check the installation of jax[tpu] with `megascope doctor`. "
    return ""


def _tail(log: Path, size: int = 1 << 20) -> str:
    try:
        with log.open("rb") as stream:
            stream.seek(0, 2)
            stream.seek(max(0, stream.tell() - size))
            return stream.read().decode(errors="replace")
    except OSError:
        return ""
