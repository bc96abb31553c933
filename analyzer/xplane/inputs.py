"""Finds the traces a user points at, and says what is wrong with files that are none.

A profiler writes `<logdir>/plugins/profile/<run>/<host>.xplane.pb`. A log folder (its newest run), a run
folder and a single file are all accepted; the files of one run belong together, one per host.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from analyzer.errors import InputError
from analyzer.xplane.space import Space, map_file, read_space
from analyzer.xplane.wire import BYTES, WireError, fields, text, varint

SUFFIX = ".xplane.pb"
_FRESH = "Record again (fewer steps give a smaller file), or copy the original again."


@dataclass(slots=True)
class Trace:
    """A recorded run.

    Attributes:
        path: What the user pointed at.
        run: The run's folder, or the file's.
        spaces: One per readable host, by file name.
        notes: Choices made and hosts left out.
    """

    path: Path
    run: Path
    spaces: list[Space]
    notes: list[str] = field(default_factory=list)


def open_trace(path: Path | str) -> Trace:
    """Open a log folder, a run folder or an xplane file.

    Raises:
        InputError: there is no readable trace; with one file the message says what is wrong with it.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise InputError(path, "does not exist", "Check the path.")
    if path.is_file():
        return Trace(path, path.parent, [open_file(path)])
    run, files, notes = find_run(path)
    spaces, bad = [], []
    for file in files:
        try:
            spaces.append(open_file(file))
        except InputError as error:
            bad.append(error)
    if not spaces:
        if len(bad) == 1:
            raise bad[0]
        faults = "; ".join(f"{Path(e.where).name}: {e.fault}" for e in bad[:4])
        raise InputError(run, f"none of its {len(bad)} traces can be read ({faults})", bad[0].cure)
    if bad:
        notes += [f"{len(spaces)} of {len(files)} hosts read"]
        notes += [f"left out {Path(e.where).name}: {e.fault}" for e in bad]
    return Trace(path, run, spaces, notes)


def find_run(folder: Path) -> tuple[Path, list[Path], list[str]]:
    """The run to read in a folder: its folder, its xplane files, and notes on what was chosen.

    Raises:
        InputError: there is no xplane file in the folder or below it.
    """
    runs: dict[Path, list[Path]] = {}
    for pattern in ("*", "plugins/profile/*/*", "*/*", "*/plugins/profile/*/*"):
        for file in folder.glob(pattern + SUFFIX):
            runs.setdefault(file.parent, []).append(file)
        if runs:
            break
    if not runs:
        raise InputError(
            folder,
            f"holds no {SUFFIX} file, nor a plugins/profile/<run>/ with one",
            "Point at the folder given to jax.profiler.trace, or at the file.",
        )
    # Runs are named by their time; where they are not, the time of the files decides.
    newest = max(runs, key=lambda run: (max(f.stat().st_mtime_ns for f in runs[run]), run.name))
    dated = [run for run in runs if run.name[:4].isdigit() and "_" in run.name]
    if len(dated) == len(runs):
        newest = max(runs, key=lambda run: run.name)
    notes = []
    if newest != folder:
        others = f", the newest of {len(runs)} runs" if len(runs) > 1 else ""
        notes.append(f"read run {newest.relative_to(folder)}{others}")
    return newest, sorted(runs[newest]), notes


def open_file(path: Path) -> Space:
    """Read the directory of one xplane file that holds a TPU's trace.

    Raises:
        InputError: it is no xplane file, a damaged one, or one without a TPU; each with its cause and cure.
    """
    try:
        with path.open("rb") as stream:
            head = stream.read(1 << 16)
        if not head:
            raise InputError(path, "is empty: the profiler failed to write it (it does past 2 GB)", _FRESH)
        _refuse_other_formats(path, head)
        space = read_space(path)
    except OSError as error:
        raise InputError(
            path, f"cannot be read ({error.strerror or error})", "Check its permissions."
        ) from error
    except WireError as error:
        raise _damage(path, error) from None
    if not space.planes:
        raise InputError(path, "holds no planes: it is no profiler trace, or an empty one", _FRESH)
    if not tpu_planes(space):
        raise InputError(path, _without_tpu(space), "Record on a TPU; for other devices use xprof.")
    return space


def tpu_planes(space: Space) -> list[int]:
    """Indices of the planes of TPU cores, in the order of the file."""
    return [i for i, p in enumerate(space.planes) if p.name.startswith("/device:TPU:") and " " not in p.name]


def _refuse_other_formats(path: Path, head: bytes) -> None:
    if head.startswith(b"version https://git-lfs"):
        raise InputError(path, "is a Git LFS pointer, not the file itself", "Run `git lfs pull`.")
    if head.startswith(b"\x1f\x8b"):
        raise InputError(path, "is compressed with gzip", "Unpack it with gunzip.")
    if head.lstrip()[:1] in (b"{", b"<"):
        raise InputError(
            path, "is text (JSON or HTML), not an xplane protobuf", f"Point at the {SUFFIX} file."
        )
    if head.count(b"\xef\xbf\xbd") > max(8, len(head) // 200):
        raise InputError(
            path,
            "was mangled by being handled as text: bytes became U+FFFD, which cannot be undone",
            "Copy the original again as binary (base64, scp, gsutil cp).",
        )


def _damage(path: Path, error: WireError) -> InputError:
    """The error for a file that is no XSpace message; cut off, where a plane is longer than what is left."""
    cut = _cut_plane(path)
    if cut is None:
        return InputError(path, f"is no xplane protobuf, or a damaged one ({error})", _FRESH)
    name, missing = cut[0] if cut[0].isprintable() else "", cut[1]
    return InputError(
        path, f"is truncated: {missing:,} bytes of its plane {name or '(unnamed)'} are missing", _FRESH
    )


def _cut_plane(path: Path) -> tuple[str, int] | None:
    """Name of the plane that reaches beyond the end of the file and by how much; None where none does."""
    data = map_file(path)
    position = planes = 0
    try:
        for number, kind, _, following in fields(data, 0, len(data)):
            if number > 4 or kind != BYTES:
                return None
            position, planes = following, planes + 1
    except WireError as error:
        if not error.missing or data[position] != (1 << 3 | BYTES):
            return None
        _, inside = varint(data, position + 1, len(data))
        try:
            for number, kind, value, following in fields(data, inside, len(data)):
                if number == 2 and kind == BYTES:
                    return text(data, value, following), error.missing
        except WireError:
            pass
        # Any two bytes can look like the start of a plane: believe it where others came before.
        return ("", error.missing) if planes else None
    return None


def _without_tpu(space: Space) -> str:
    devices = [p.name for p in space.planes if p.name.startswith("/device:") and p.lines]
    if devices:
        facts = [p.stats for p in space.planes if p.name in devices]
        kinds = [str(f.get("device_type_string") or f.get("device_vendor") or "") for f in facts]
        kind = next((f" ({k})" for k in kinds if k), "")
        return f"holds no TPU plane: it is a trace of {_list(devices)}{kind}"
    names = _list([p.name for p in space.planes])
    return f"holds no TPU plane, only {names}: the device's events were not recorded"


def _list(names: Sequence[str]) -> str:
    names = [name if name.isprintable() else "(damaged name)" for name in names]
    return ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
