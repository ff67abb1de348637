"""Exit statuses, and the error of a command line that cannot be followed."""

from enum import IntEnum


class Exit(IntEnum):
    """Exit statuses of `fleet-term`."""

    ANSWERED = 0
    FAILED = 1
    USAGE = 2
    UNREACHABLE = 3
    NOT_AUTHORISED = 4
    NOT_FOUND = 5
    TIME_LIMIT = 6
    UNKNOWN = 7
    INTEGRITY = 8
    CANCELLED = 130
    READER_GONE = 141
    TERMINATED = 143


class UsageError(Exception):
    """The command line cannot be followed; the message says why and what to do."""
