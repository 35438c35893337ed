"""What to say of words that a program's parser would not take: an error, or a doubt where the version is another.

A table is one version's. Where that version runs, what the table does not know the program refuses. Where another runs,
a flag may well be new or gone, so that only slips of the pen are refused, and the rest is doubted.
"""

import re
from collections.abc import Iterator, Sequence
from typing import Final, Literal

from msgspec import Struct

from pdctl.flags.reader import NO_VALUE, Fault, Reading, read
from pdctl.flags.table import TITLES, WRAPPERS, Table, elsewhere, old_spellings

_NUMBERS: Final = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")


class Verdict(Struct, frozen=True):
    """A fault with its code and words. `index`: the word that it is about."""

    code: Literal["PD0010", "PD0030", "PD0031", "PD0032", "PD0033"]
    index: int
    flag: str
    message: str
    hint: str | None
    known: bool = False
    """Whether it is known where the flag belongs: to another release, or to what wraps the engine."""

    @property
    def refused(self) -> bool:
        """Whether the program would not start; else only its own version knows."""
        return self.code != "PD0031"


def read_words(table: Table, words: Sequence[str]) -> Reading:
    """The words as the program reads them; spellings of its other versions are understood as well."""
    return read(table, words, old_spellings(table.program))


def values_of_switches(reading: Reading, words: Sequence[str]) -> Iterator[tuple[str, str, int]]:
    """Switches that are given a value, `--switch=1` or `--switch 1`: the flag, the value, the place of the flag."""
    strays = {fault.index for fault in reading.faults if fault.kind == "stray"}
    for fault in reading.faults:
        if fault.kind == "value" and fault.reason.startswith(NO_VALUE):
            yield fault.word, words[fault.index].partition("=")[2], fault.index
    for one in reading.given:
        if one.flag.takes == 0 and one.index + 1 in strays:
            yield one.spelled, words[one.index + 1], one.index


def verdicts(table: Table, reading: Reading, version: str | None) -> Iterator[Verdict]:
    """One a fault. `version`: the one that will run; None where that is not known."""
    for fault in reading.faults:
        if not _had(table, fault, version):
            yield _verdict(table, fault, version)


def _had(table: Table, fault: Fault, version: str | None) -> bool:
    """Whether the release that will run lies between the first and the last that were seen with the flag."""
    if fault.kind not in ("unknown", "ambiguous", "renamed") or version is None:
        return False
    here, seen = _release(version), [_release(one) for one in elsewhere(table.program).get(fault.word, ())]
    return bool(here and seen) and seen[0] <= here <= seen[-1]


def _release(version: str) -> tuple[int, ...]:
    """The numbers of a release; none of what is not called by numbers."""
    found = _NUMBERS.match(version)
    return tuple(map(int, found.groups())) if found else ()


def _verdict(table: Table, fault: Fault, version: str | None) -> Verdict:
    if wrapper := next((name for start, name in WRAPPERS.items() if fault.word.startswith(start)), None):
        message = f"{fault.word}: belongs to {wrapper}, which takes it before the engine does"
        return Verdict("PD0031", fault.index, fault.word, message, "started without it, the engine refuses it", True)
    message = f"{fault.word}: {fault.reason}"
    near = f"did you mean {fault.near}?" if fault.near else None
    if fault.kind == "ends":
        return Verdict("PD0033", fault.index, fault.word, message, "leave it out")
    if not (version == table.version or (version is None and _in_any_version(table, fault))):
        message += f" in {table.title}"
        known = version is None and fault.word in elsewhere(table.program)
        return Verdict("PD0031", fault.index, fault.word, message, _doubt(table, fault, version), known)
    if fault.kind in ("missing", "value", "choice"):
        switch = fault.kind == "value" and fault.reason.startswith(NO_VALUE)
        hint = f"write {fault.word} alone" if switch else near
        return Verdict("PD0010" if switch else "PD0032", fault.index, fault.word, message, hint)
    hint = near or "its --help lists what it takes"
    return Verdict("PD0030", fault.index, fault.word, f"{message} in {table.title}", hint)


def _doubt(table: Table, fault: Fault, version: str | None) -> str:
    """Why it is only doubted."""
    seen = elsewhere(table.program).get(fault.word)
    if version is not None:
        return f"{version} runs here, whose flags pdctl does not know"
    if seen:
        title = TITLES.get(table.program, table.program)
        return f"{title} {' to '.join(seen)} had it; which version will run is not known"
    return f"which version of {table.program} will run is not known"


def _in_any_version(table: Table, fault: Fault) -> bool:
    """Whether a word is wrong in every version: a slip of the pen, or a value that no flag of its kind could take."""
    if fault.word in elsewhere(table.program):
        return False
    match fault.kind:
        case "missing" | "value" | "ambiguous":
            return True
        case "unknown":
            return fault.near is not None and _distance(fault.word, fault.near) <= (2 if len(fault.near) > 8 else 1)
    return False


def _distance(one: str, other: str) -> int:
    """Letters to add, leave out, change or swap with their neighbour to make one word the other."""
    before: list[int] = []
    row = list(range(len(other) + 1))
    for i, a in enumerate(one, 1):
        last, row = row, [i]
        for j, b in enumerate(other, 1):
            row.append(min(last[j] + 1, row[-1] + 1, last[j - 1] + (a != b)))
            if i > 1 and j > 1 and a == other[j - 2] and one[i - 2] == b:
                row[j] = min(row[j], before[j - 2] + 1)
        before = last
    return row[-1]
