"""The errors a user can cause, and the exit code each one gives.

Every message names the file or argument, says what is wrong, and says what to do about it.
"""

OK = 0
GATE_FAILED = 1
USAGE = 2
INPUT = 3
DATA_ABSENT = 4
INTERNAL = 5


class MegascopeError(Exception):
    """A fault the user can mend; printed as one line, never as a traceback.

    Args:
        where: The file, folder or argument at fault.
        fault: What is wrong with it.
        cure: What to do about it.
    """

    exit_code = INTERNAL

    def __init__(self, where: object, fault: str, cure: str) -> None:
        super().__init__(f"{where}: {fault}. {cure}")
        self.where = str(where)
        self.fault = fault
        self.cure = cure


class UsageError(MegascopeError):
    """A command was called with arguments that make no sense together."""

    exit_code = USAGE


class InputError(MegascopeError):
    """A file is missing, unreadable, truncated, or not what its place says it is."""

    exit_code = INPUT


class DataAbsentError(MegascopeError):
    """The input is sound but does not hold what the question needs."""

    exit_code = DATA_ABSENT


class UnsupportedProgramError(MegascopeError):
    """The simulator met something it cannot execute exactly, and does not guess past it."""

    exit_code = INPUT
