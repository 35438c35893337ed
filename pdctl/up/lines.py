"""Lines of logs that may be larger than memory, as may one of their lines: only a part of each is ever held."""

from collections.abc import Iterator
from os import SEEK_END
from typing import BinaryIO, Final, NamedTuple

LONGEST: Final = 64 << 10
"""Bytes of a line that are kept."""
_BLOCK: Final = 1 << 20


class Line(NamedTuple):
    """`text` without its end, cut after `LONGEST` bytes; `size`: bytes of all of it, its end included."""

    text: str
    size: int
    whole: bool
    """Whether its end was there: a log's last line may still be written."""


def lines_of(file: BinaryIO, longest: int = LONGEST) -> Iterator[Line]:
    """The lines from the file's place on, at most `longest` bytes of each."""
    while kept := file.readline(longest):
        size, whole = len(kept), kept.endswith(b"\n")
        while not whole and (more := file.readline(_BLOCK)):
            size, whole = size + len(more), more.endswith(b"\n")
        text = kept.decode("utf-8", "replace").rstrip("\r\n")
        left_out = size - len(kept)
        yield Line(f"{text}… ({left_out} more bytes)" if left_out > 1 else text, size, whole)


def start_of_last(file: BinaryIO, lines: int) -> int:
    """Where the last `lines` lines begin, found from the end in blocks. A last line without its end counts."""
    end = at = file.seek(0, SEEK_END)
    left = lines
    if left <= 0:
        return end
    while at > 0:
        begin = max(at - _BLOCK, 0)
        file.seek(begin)
        block = file.read(at - begin)
        place = len(block) - (at == end and block.endswith(b"\n"))
        while (place := block.rfind(b"\n", 0, place)) >= 0:
            left -= 1
            if left == 0:
                return begin + place + 1
        at = begin
    return 0
