"""Lines of several logs in the order of their time, as far as they carry one.

Every program writes its time in a way of its own, and only some lines: what carries none belongs to the line before it.
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime, timedelta
from heapq import merge
from itertools import islice
from os import SEEK_END
from pathlib import Path
from typing import BinaryIO, Final

from pdctl.up.lines import lines_of

BLOCK: Final = 1 << 20
_HEAD: Final = 100
"""Characters of a line in which its time is looked for."""
_TIME: Final = re.compile(
    r"(?:(?P<year>\d{4})-)?(?P<month>\d\d)-(?P<day>\d\d)[ T](?P<clock>\d\d:\d\d:\d\d)(?:[.,](?P<part>\d{1,6})\d*)?"
    r"(?P<zone>Z|[+-]\d\d:?\d\d)?"
)
_LENGTH: Final = re.compile(r"(\d+(?:\.\d+)?)\s*(s|m|min|h|d)")
_SECONDS: Final = {"s": 1, "m": 60, "min": 60, "h": 3600, "d": 86400}


def time_of(line: str, now: datetime) -> float | None:
    """Unix time that a line begins with; None where it has none. Without a zone it is this machine's.

    vLLM leaves the year out: it is the last one in which the day is not yet to come.
    """
    found = _TIME.search(line[:_HEAD])
    if found is None:
        return None
    year = found["year"] or str(now.year)
    zone = (found["zone"] or "").replace("Z", "+00:00")
    text = f"{year}-{found['month']}-{found['day']}T{found['clock']}.{(found['part'] or '0'):0<6}{zone}"
    try:
        when = datetime.fromisoformat(text)
        if found["year"] is None and when.timestamp() > now.timestamp() + 86400:
            when = when.replace(year=now.year - 1)
        return when.timestamp()
    except (ValueError, OverflowError):
        return None


def moment(text: str, now: datetime) -> float | None:
    """Unix time of `10m` ago, `2026-12-01T11:00`, or `11:00` of today; None for what is none of them."""
    length = _LENGTH.fullmatch(text.strip())
    try:
        if length is not None:
            return (now - timedelta(seconds=float(length[1]) * _SECONDS[length[2]])).timestamp()
        if re.fullmatch(r"\d\d:\d\d(:\d\d)?", text):
            return datetime.fromisoformat(f"{now.date()}T{text}").timestamp()
        return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        return None


def timed(lines: Iterable[str], now: datetime, begin: float = 0.0) -> Iterator[tuple[float, str]]:
    """Each line with its time, which never goes back within a log: its lines stay in their order."""
    last = begin
    for line in lines:
        last = max(last, time_of(line, now) or last)
        yield last, line


def in_order(
    logs: Mapping[str, Iterable[str]], now: datetime, begin: Mapping[str, float] | None = None
) -> Iterator[tuple[str, str]]:
    """Lines of all logs with the log's name, merged by time; of equal times those of the first log come first.

    begin: the time before each log's first line, where that is known.
    """
    before = begin or {}

    def tagged(index: int, name: str, lines: Iterable[str]) -> Iterator[tuple[float, int, int, str, str]]:
        for number, (when, line) in enumerate(timed(lines, now, before.get(name, 0.0))):
            yield when, index, number, name, line

    streams = [tagged(index, name, lines) for index, (name, lines) in enumerate(logs.items())]
    return ((name, line) for _, _, _, name, line in merge(*streams))


def offset_since(path: Path, since: float, now: datetime) -> int | None:
    """Where in a log the first line stands that is not older; its end where all are. None: no line carries a time.

    Found from the end, block by block, so that the length of the log does not matter. Raises OSError.
    """
    found: int | None = None
    with path.open("rb") as file:
        size = end = file.seek(0, SEEK_END)
        while end > 0:
            begin = max(end - BLOCK, 0)
            older = False
            for place, when in _times(file, begin, end, now):
                if when >= since:
                    found = place
                    break
                older = True
            if older:
                return size if found is None else found
            end = begin
    return None if found is None else 0


def time_before(path: Path, offset: int, now: datetime) -> float:
    """Time of the last line that carries one, of the block before this place; 0 where none does. Raises OSError."""
    with path.open("rb") as file:
        return max((when for _, when in _times(file, max(offset - BLOCK, 0), offset, now)), default=0.0)


def _times(file: BinaryIO, begin: int, end: int, now: datetime) -> Iterator[tuple[int, float]]:
    """Offset and time of each line that carries one and begins in this part of the file."""
    place = 0
    if begin > 0:
        file.seek(begin - 1)
        place = begin - 1 + sum(line.size for line in islice(lines_of(file), 1))
    file.seek(place)
    for line in lines_of(file, 4 * _HEAD):
        if place >= end:
            return
        when = time_of(line.text, now)
        if when is not None:
            yield place, when
        place += line.size
