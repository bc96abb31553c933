"""Files that a user asked for with -o: folders made, written whole, and errors that say what to do."""

import errno
from pathlib import Path

from analyzer.cache import write_atomically
from analyzer.errors import InputError

FULL = (errno.ENOSPC, errno.EDQUOT)


def write_output(path: Path, data: bytes) -> None:
    """Write a file, and the folders above it where they are missing.

    Raises:
        InputError: that cannot be done.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(path, data)
    except OSError as error:
        raise cannot_write(path, error) from error


def cannot_write(path: Path, error: OSError) -> InputError:
    """The error for a file that the file system does not take."""
    fault = f"cannot be written: {(error.strerror or str(error)).lower()}"
    if error.errno in FULL:
        return InputError(path, fault, "Make room on that disk, or write to another one.")
    return InputError(path, fault, "Check the folder and its permissions, or write elsewhere.")
