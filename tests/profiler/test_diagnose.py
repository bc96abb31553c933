"""Messages made from what a compile process left behind."""

import errno
from pathlib import Path
from types import SimpleNamespace

import pytest

from analyzer.errors import InputError, UsageError
from profiler import compile as compile_module
from profiler import diagnose
from profiler.compile import cannot_write

LOG = Path("/somewhere/out.compile.log")


def test_compiler_message_without_the_python_type() -> None:
    event = {
        "stage": "compile",
        "type": "JaxRuntimeError",
        "message": "RESOURCE_EXHAUSTED: in vmem (size=134217728)",
    }
    error = diagnose.failure("k.py:build", event, LOG)
    assert isinstance(error, InputError)
    assert str(error) == (
        "k.py:build: the TPU compiler refused the kernel: RESOURCE_EXHAUSTED: in vmem (128 MiB). "
        "The kernel's buffers do not fit in VMEM: use smaller tiles or fewer buffers. "
        "Full log: /somewhere/out.compile.log"
    )


def test_long_messages_are_one_short_line() -> None:
    message = "Mosaic failed\n  at %x = custom-call(), backend_config={" + "A" * 90_000 + "}\n" + "b\n" * 9000
    text = str(
        diagnose.failure("k.py", {"stage": "compile", "type": "JaxRuntimeError", "message": message}, LOG)
    )
    assert "\n" not in text
    assert len(text) < 1200
    assert "Mosaic failed at %x = custom-call()" in text


def test_wrong_option_of_a_known_kernel_is_a_usage_error() -> None:
    event = {"stage": "build", "type": "ValueError", "message": "ffn is 1000", "source": "config.py:3"}
    assert isinstance(diagnose.failure("mlp", event, LOG), UsageError)
    assert isinstance(diagnose.failure("k.py:build", event, LOG), InputError)


@pytest.mark.parametrize(
    ("line", "flag"),
    [
        ("ERROR: Unknown command line flag 'xla_nosuch'", "xla_nosuch"),
        ("ERROR: Illegal value 'banana' specified for flag 'xla_jf_dump_llo_text'", "xla_jf_dump_llo_text"),
    ],
)
def test_refused_flag(tmp_path: Path, line: str, flag: str) -> None:
    log = tmp_path / "log"
    log.write_text(f"WARNING: Logging before InitGoogle()\n{line}\n")
    error = diagnose.death("mlp", 1, "topology", log, LOG)
    assert isinstance(error, UsageError)
    assert flag in str(error)


def test_fatal_line_of_libtpu_is_shown(tmp_path: Path) -> None:
    log = tmp_path / "log"
    log.write_text(
        "F1130 17:15:26.006701   22323 lowering.cc:1] Check failed: a == b (1 vs. 2)\n*** SIGABRT\n"
    )
    text = str(diagnose.death("mlp", -6, "compile", log, LOG))
    assert "ended by SIGABRT while it was in stage 'compile': Check failed: a == b (1 vs. 2)" in text


@pytest.mark.parametrize(
    ("result", "log", "said"),
    [
        ({"libtpu_loaded_before": True}, "", "libtpu was already started"),
        ({"cache_hits": 1}, "", "compilation cache"),
        ({}, "ERROR: Unknown command line flag 'xla_jf_dump_to'\n", "libtpu refused flag xla_jf_dump_to"),
        ({}, "", "libtpu wrote no bundles, although the compile succeeded"),
    ],
)
def test_empty_dump_says_why(tmp_path: Path, result: dict[str, object], log: str, said: str) -> None:
    path = tmp_path / "log"
    path.write_text(log)
    text = str(diagnose.empty_dump("mlp", result, path, LOG))
    assert said in text
    assert str(LOG) in text


def test_a_full_disk_names_the_file_in_the_capture(tmp_path: Path) -> None:
    inside = tmp_path / ".cap.abc123.tmp" / "hlo" / "a.txt"
    error = OSError(errno.ENOSPC, "No space left on device", str(inside))
    assert str(cannot_write(tmp_path / "cap", error)) == (
        f"{tmp_path}/cap/hlo/a.txt: cannot write the capture: no space left on device."
        " Make room on that disk, or give -o a folder on another."
    )
    copied = OSError(errno.ENOSPC, "No space left on device", "/src/model.py", None, str(inside))
    assert cannot_write(tmp_path / "cap", copied).where == f"{tmp_path}/cap/hlo/a.txt"
    other = cannot_write(tmp_path / "cap", PermissionError(errno.EACCES, "Permission denied"))
    assert str(other).endswith("permission denied. Check the folder and its permissions.")


@pytest.mark.parametrize("how", ["failure", "log", "space"])
def test_a_child_that_met_a_full_disk(tmp_path: Path, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "compile.log"
    dump = "F0101 xla.cc:12] Check failed: RESOURCE_EXHAUSTED: fclose: No space left on device\n"
    log.write_text(dump if how == "log" else "all well\n")
    if how == "space":
        monkeypatch.setattr(compile_module.shutil, "disk_usage", lambda _: SimpleNamespace(free=0))
    failed = {"stage": "write", "type": "OSError", "message": "x", "errno": errno.ENOSPC, "filename": "/f"}
    logs = compile_module._Logs(log, tmp_path / "shown.log")
    found = compile_module._what_went_wrong("k", failed if how == "failure" else None, -6, "compile", logs)
    assert isinstance(found, OSError)
    assert found.errno == errno.ENOSPC
    assert found.filename == ("/f" if how == "failure" else None)


def test_a_crash_with_room_on_the_disk_is_a_crash(tmp_path: Path) -> None:
    log = tmp_path / "compile.log"
    log.write_text("F0101 xla.cc:12] Check failed: x > 0\n")
    logs = compile_module._Logs(log, log)
    found = compile_module._what_went_wrong("k", None, -6, "compile", logs)
    assert "SIGABRT" in str(found)
