"""The protobuf wire format, for messages small enough to be read one field at a time.

Long lists of events are read in columns instead (analyzer/xplane/columns.py).
"""

import struct
from collections.abc import Iterator

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
Buffer = bytes | memoryview


class WireError(ValueError):
    """The bytes are not a protobuf message.

    Attributes:
        fault: What is wrong, a clause.
        position: Where that showed, counted in the buffer.
        missing: Bytes that a field reaches beyond the end, where that is the fault; else 0.
    """

    def __init__(self, fault: str, position: int, missing: int = 0) -> None:
        super().__init__(f"{fault} at byte {position}")
        self.fault = fault
        self.position = position
        self.missing = missing


def varint(data: Buffer, position: int, end: int) -> tuple[int, int]:
    """The unsigned varint at `position` and the position behind it.

    Raises:
        WireError: it does not end before `end`, or is longer than 64 bits.
    """
    value = shift = 0
    start = position
    while True:
        if position >= end:
            raise WireError("a number is cut off", start)
        byte = data[position]
        position += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & 0xFFFFFFFFFFFFFFFF, position
        shift += 7
        if shift > 63:
            raise WireError("a number is longer than 64 bits", start)


def fields(data: Buffer, start: int, end: int) -> Iterator[tuple[int, int, int, int]]:
    """The fields of the message data[start:end], in order: (number, wire type, value, position behind it).

    value is the number itself for VARINT, and for the other types the position of the field's first byte.

    Raises:
        WireError: the message is damaged.
    """
    position = start
    while position < end:
        tag, after = varint(data, position, end)
        number, kind = tag >> 3, tag & 7
        if number == 0:
            raise WireError("a field has number 0", position)
        if kind == VARINT:
            value, following = varint(data, after, end)
        elif kind == BYTES:
            length, value = varint(data, after, end)
            following = value + length
        elif kind == FIXED64:
            value, following = after, after + 8
        elif kind == FIXED32:
            value, following = after, after + 4
        else:
            raise WireError(f"a field has the unknown wire type {kind}", position)
        if following > end:
            missing = following - end
            raise WireError(f"a field needs {missing:,} bytes more than there are", position, missing)
        yield number, kind, value, following
        position = following


def signed(value: int) -> int:
    """A varint that holds an int64: two's complement."""
    return value - (1 << 64) if value >= 1 << 63 else value


def double(data: Buffer, position: int) -> float:
    """The little-endian double at `position`."""
    return float(struct.unpack_from("<d", data, position)[0])


def text(data: Buffer, start: int, end: int) -> str:
    """UTF-8 text; bytes that are none become U+FFFD."""
    return bytes(data[start:end]).decode("utf-8", errors="replace")
