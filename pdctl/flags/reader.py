"""Words of a command line as argparse reads them: aliases, `--a=b`, abbreviations, how many values follow.

The one reader: derivation, rules over flags, adapters, preflight and routers all ask it. It judges nothing beyond what
the program's own parser would: what is wrong is a `Fault` with the place of its word, and the rest is read as well.
"""

import re
from collections.abc import Mapping, Sequence
from typing import Literal

from msgspec import Struct

from pdctl.flags.table import Flag, Table

_NEGATIVE = re.compile(r"-\d+|-\d*\.\d+")
_OPEN = re.compile(r"\$[A-Za-z_({]|\{\{|<[A-Za-z_]")
"""A placeholder that somebody fills in later: `$(TP)`, `${TP}`, `{{ tp }}`, `<tp>`."""

NO_VALUE = "takes no value"


class Given(Struct, frozen=True):
    """A flag as it was given. `index` is the place of its word; `part` the rest of a dotted one (`--config.part`)."""

    flag: Flag
    spelled: str
    values: tuple[str, ...]
    index: int
    part: str = ""
    off: bool = False
    """A switch spelled `--no-…` beside its other spelling."""

    @property
    def name(self) -> str:
        """The spelling that flags are compared by, whatever was written."""
        return self.flag.name

    @property
    def value(self) -> str:
        """Its value, several with blanks between them; empty for a switch."""
        return " ".join(self.values)

    def called(self, *names: str) -> bool:
        """Whether this is the flag that has one of these spellings."""
        return any(name in self.flag.names for name in names)


class Fault(Struct, frozen=True):
    """A word that the parser would not take."""

    kind: Literal["unknown", "ends", "ambiguous", "missing", "value", "choice", "stray", "renamed"]
    index: int
    word: str
    """As it was spelled, without its value."""
    reason: str
    near: str | None = None
    """The spelling that was probably meant."""


class Reading(Struct, frozen=True):
    """What a list of words says."""

    given: tuple[Given, ...]
    faults: tuple[Fault, ...]

    def last(self, *names: str) -> Given | None:
        """The last mention of a flag by any of its spellings, which is the one that counts."""
        return next((one for one in reversed(self.given) if one.called(*names)), None)

    def value(self, *names: str) -> str | None:
        """Its value; None where it is not there."""
        found = self.last(*names)
        return None if found is None else found.value


def read(table: Table, words: Sequence[str], renamed: Mapping[str, str] | None = None) -> Reading:
    """The flags of some words. Total: whatever the words are, something is read and nothing is raised.

    `renamed`: what other versions of the program call a flag of this one. They are read as it, and are faults.
    """
    table = table.with_names(renamed or {})
    given: list[Given] = []
    faults: list[Fault] = []
    place, unknown = 0, False
    while place < len(words):
        word = words[place]
        if word == "--":
            faults.append(Fault("stray", place, word, "nothing after it is a flag"))
            break
        if not _is_flag(table, word):
            if not unknown and not is_open(word):
                faults.append(Fault("stray", place, word, "no flag takes it"))
            place += 1
            continue
        one, fault, after = _one(table, words, place)
        unknown = one is None
        if one is not None:
            given.append(one)
        if fault is not None:
            faults.append(fault)
        place = after
    return Reading(tuple(given), tuple(faults))


def is_open(value: str) -> bool:
    """Whether a value holds a placeholder, so that nothing can be said of it."""
    return _OPEN.search(value) is not None


def _is_flag(table: Table, word: str) -> bool:
    if not word.startswith("-") or word == "-":
        return False
    if word.partition("=")[0] in table.by_name:
        return True
    return not _NEGATIVE.fullmatch(word) and " " not in word.partition("=")[0]


def _one(table: Table, words: Sequence[str], place: int) -> tuple[Given | None, Fault | None, int]:
    """The flag at a place with its values, what is wrong with it, and the place after."""
    spelled, equals, inline = words[place].partition("=")
    head, part = _normal(table, spelled)
    if table.flexible and head.startswith("-O"):  # -O3, -O=3, -O 3
        head, equals, inline = "--optimization-level", equals or head[2:], inline or head[2:]
    names = _meant(table, head)
    if len(names) > 1:
        return None, Fault("ambiguous", place, spelled, f"could be {_either(names)}"), place + 1
    if not names:
        return None, Fault("unknown", place, spelled, "no such flag", table.near(head)), place + 1
    flag = table.by_name[names[0]]
    if flag.ends:
        return None, Fault("ends", place, spelled, "it prints and ends"), place + 1
    values: tuple[str, ...] = (inline,)
    after = place + 1
    if equals:
        if flag.takes == 0:
            return None, Fault("value", place, spelled, f"{NO_VALUE}, found {inline!r}"), after
    else:
        values, after = _following(table, flag, words, place + 1, bool(part))
    fault = _judge(flag, values, place, spelled) if not part else None
    if fault is None and head in table.renamed:
        fault = Fault("renamed", place, spelled, f"is called {flag.name}", flag.name)
    off = flag.takes == 0 and len(flag.names) > 1 and names[0].startswith("--no-")
    return Given(flag, spelled, values, place, part, off), fault, after


def _normal(table: Table, spelled: str) -> tuple[str, str]:
    """A flag's spelling as the table has it, and what stands after its dot."""
    if not table.flexible:
        return spelled, ""
    head, _, part = spelled.partition(".")
    return (head.replace("_", "-") if head.startswith("--") else head), part


def _meant(table: Table, head: str) -> list[str]:
    """The spellings that a word may stand for: its own, or those that it begins; one a flag."""
    if head in table.by_name:
        return [head]
    if not table.abbreviations or not head.startswith("--") or len(head) < 3:
        return []
    return sorted({flag: name for name, flag in table.by_name.items() if name.startswith(head)}.values())


def _following(table: Table, flag: Flag, words: Sequence[str], place: int, dotted: bool) -> tuple[tuple[str, ...], int]:
    """The values after a flag, and the place after them."""
    most = 1 if dotted or flag.takes == "?" else flag.takes
    values: list[str] = []
    for word in words[place:]:
        if (isinstance(most, int) and len(values) >= most) or word == "--" or _is_flag(table, word):
            break
        values.append(word)
    return tuple(values), place + len(values)


def _judge(flag: Flag, values: tuple[str, ...], place: int, spelled: str) -> Fault | None:
    """Whether the values are as many as the flag takes, and such as it takes."""
    least = flag.takes if isinstance(flag.takes, int) else 1 if flag.takes == "+" else 0
    if len(values) < least:
        return Fault("missing", place, spelled, "a value is missing")
    return next(filter(None, (_value(flag, value, place, spelled) for value in values)), None)


def _value(flag: Flag, value: str, place: int, spelled: str) -> Fault | None:
    if is_open(value):
        return None
    if flag.kind != "text" and not _is_number(flag.kind, value):
        wanted = "a whole number" if flag.kind == "int" else "a number"
        return Fault("value", place, spelled, f"found {value!r}, expected {wanted}")
    if flag.choices is None or value in flag.choices:
        return None
    from difflib import get_close_matches

    near = get_close_matches(value, flag.choices, n=1)
    shown = ", ".join(choice for choice in flag.choices if choice)
    reason = f"found {value!r}, expected one of {shown}"
    return Fault("choice", place, spelled, reason, near[0] if near else None)


def _is_number(kind: str, value: str) -> bool:
    try:
        int(value) if kind == "int" else float(value)
    except ValueError:
        return False
    return True


def _either(names: Sequence[str]) -> str:
    """`--a, --b or --c`, the first four of them."""
    shown = list(names[:4])
    return " or ".join(filter(None, (", ".join(shown[:-1]), shown[-1]))) + (" …" if len(names) > 4 else "")
