"""`read_program`: from a final_bundles file to a `Program`."""

import re
from pathlib import Path

from analyzer.errors import InputError
from analyzer.llo import scan, store
from analyzer.llo.file_program import FileProgram

_CURE = "Compile again (megascope compile), or point at a file whose name ends in -final_bundles.txt"
_UNBUNDLED = re.compile(rb"^[ \t]*+\$region\d+: #\{", re.MULTILINE)
_MLIR = re.compile(rb"\bllo\.[a-z_]+\b")


def read_program(path: Path, chip: str | None = None, cache_dir: Path | None = None) -> FileProgram:
    """Read one final_bundles file.

    Args:
        path: The file; its name gives the program's name.
        chip: The chip it was compiled for (`tpu7x`), where the caller knows it. Otherwise the
            generation is inferred from the instructions, then from the other files of the folder.
        cache_dir: Where to keep what was found, so that the next read is fast; None keeps nothing.

    Raises:
        InputError: the file is missing, unreadable, empty, truncated, or not a list of bundles.
    """
    path = Path(path)
    try:
        data = path.read_bytes()
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror or error})", "Check the path") from error
    if cache_dir is None:
        return parse_program(data, path, chip)
    key = store.key_of(data)
    found = store.load(cache_dir, key, len(data))
    if found is not None:
        return FileProgram(data, path, found, chip)
    program = parse_program(data, path, chip)
    program.notes.extend(filter(None, [store.save(cache_dir, key, program.columns)]))
    return program


def parse_program(data: bytes, path: Path, chip: str | None = None) -> FileProgram:
    """The same for text already in memory; `path` names it in errors and need not exist.

    Raises:
        InputError: the text is empty, truncated, or not a list of bundles.
    """
    _refuse_what_is_not_bundles(data, path)
    found = scan.scan(data)
    count = len(found.bundle_head)
    if not count:
        raise InputError(path, "holds no bundles", _CURE)
    if found.unclosed and found.unclosed[-1] == count - 1:
        address = int(found.bundle_address[-1])
        raise InputError(path, f"is truncated inside bundle {address:#x}", _CURE)
    return FileProgram(data, path, found, chip)


def _refuse_what_is_not_bundles(data: bytes, path: Path) -> None:
    if not data.strip():
        raise InputError(path, "is empty", _CURE)
    head = data[:65536]
    start = head.lstrip()
    if start.startswith(b"Schedule analysis:"):
        raise InputError(path, "is a schedule analysis, not bundles", _CURE)
    if start.startswith(b"== CAP"):
        raise InputError(path, "is a utilization file, not bundles", _CURE)
    if scan.HEAD.search(data, 0, 1 << 20) is not None:
        return
    if b"\0" in head:
        wide = start[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in head[:4]
        fault = "is UTF-16 text" if wide else "is binary, not text"
        raise InputError(path, f"{fault}, not a bundles file as libtpu writes it", _CURE)
    if _UNBUNDLED.search(head):
        raise InputError(
            path,
            "is LLO before bundling ($region text), which has no schedule",
            "Dump the pass final_bundles (--xla_jf_dump_llo_pass_label_regex=final_bundles)",
        )
    if _MLIR.search(head):
        raise InputError(
            path,
            "is MLIR (llo dialect), not bundles",
            "Dump the bundles instead (--xla_jf_dump_to=DIR --xla_jf_dump_llo_text=true)",
        )
