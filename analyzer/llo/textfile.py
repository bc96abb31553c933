"""Reading of the small text files that libtpu writes beside the bundles."""

from pathlib import Path

from analyzer.errors import InputError


def read_text(path: Path) -> str:
    """The text of a file; bytes that are no UTF-8 are replaced.

    Raises:
        InputError: it is missing or cannot be read.
    """
    try:
        return Path(path).read_text("utf-8", "replace")
    except OSError as error:
        raise InputError(path, f"cannot be read ({error.strerror or error})", "Check the path") from error


def wrong_form(path: Path, what: str, label: str) -> InputError:
    """The error for a file that is not what its name says."""
    return InputError(
        path, f"is not a {what}", f"Compile again with the pass label {label}, or leave the file out"
    )
