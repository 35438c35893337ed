"""What differs between the units that run and those that a fleet file wants: pure, so that it can be shown first."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Literal

from pdctl.launch.base import Started, Unit
from pdctl.redact import hide_argv

Action = Literal["keep", "start", "restart", "stop"]

Pieces = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Running:
    """A unit that runs now. `started` is what it was started from, None where nobody wrote it down."""

    name: str
    digest: str | None
    started: Started | None = None


@dataclass(frozen=True)
class Step:
    """What becomes of one unit, and why: one line a difference."""

    unit: str
    action: Action
    why: tuple[str, ...] = ()


def steps(
    running: Iterable[Running],
    wanted: Sequence[Unit],
    again: Mapping[str, str] | None = None,
    ended: Mapping[str, str] | None = None,
) -> list[Step]:
    """What leads from the units that run to those that are wanted, in the order of `wanted`, then those to end.

    again: units to be restarted although nothing differs, each with its reason. ended: units that were there and do not
    run, each with how it ended.
    """
    have, lost = {one.name: one for one in running}, ended or {}
    found = [_step(have.get(unit.name), unit, (again or {}).get(unit.name), lost.get(unit.name)) for unit in wanted]
    gone = have.keys() - {unit.name for unit in wanted}
    return [*found, *(Step(name, "stop", ("not in the fleet file",)) for name in sorted(gone))]


def named(found: Iterable[Step], *actions: Action) -> frozenset[str]:
    """The units of these actions."""
    return frozenset(step.unit for step in found if step.action in actions)


def _step(running: Running | None, unit: Unit, reason: str | None, ended: str | None) -> Step:
    if running is None:
        return Step(unit.name, "start", (ended or "new",))
    if running.digest != unit.digest:
        return Step(unit.name, "restart", differences(running.started, unit))
    return Step(unit.name, "restart", (reason,)) if reason else Step(unit.name, "keep")


def differences(old: Started | None, unit: Unit) -> tuple[str, ...]:
    """One line for each flag, variable or folder that is another one; secrets are not shown."""
    if old is None:
        return ("what it was started from is not known",)
    lines = [*_flags(pieces(old.argv), pieces(hide_argv(unit.argv))), *_variables(old, unit.env)]
    if old.cwd != unit.cwd:
        lines.append(f"folder: {old.cwd or 'that of pdctl'} → {unit.cwd or 'that of pdctl'}")
    return tuple(lines) or ("a value that is not shown",)


def pieces(argv: Sequence[str]) -> Pieces:
    """A command line as flags with all words up to the next: ("", "python -m x"), ("--port", "1"), …

    Of each flag all values in the order given, joined, for one may be repeated (`--decode URL --decode URL`).
    """
    found: dict[str, list[str]] = {}
    flag, words = "", list[str]()
    for word in argv:
        if word.startswith("--"):
            _add(found, flag, words)
            flag, mark, value = word.partition("=")
            words = [value] if mark else []
        else:
            words.append(word)
    _add(found, flag, words)
    return tuple((name, ", ".join(values)) for name, values in found.items())


def _add(found: dict[str, list[str]], flag: str, words: list[str]) -> None:
    found.setdefault(flag, []).append(" ".join(words))


def _flags(old: Pieces, new: Pieces) -> list[str]:
    before, after = dict(old), dict(new)
    lines = []
    for flag in dict.fromkeys([*before, *after]):
        name = flag or "program"
        if flag not in after:
            lines.append(f"{name} {before[flag]}".rstrip() + " is gone")
        elif flag not in before:
            lines.append(f"{name} {after[flag]}".rstrip() + " is new")
        elif before[flag] != after[flag]:
            lines.append(f"{name}: {_narrowed(before[flag], after[flag])}")
    return lines


def _narrowed(old: str, new: str) -> str:
    """`old → new`; of lists only what differs, or one address among 32 would not be found."""
    olds, news = old.split(", "), new.split(", ")
    if max(len(olds), len(news)) == 1:
        return f"{old or 'nothing'} → {new or 'nothing'}"
    gone, more = [one for one in olds if one not in news], [one for one in news if one not in olds]
    if not gone and not more:
        return "another order"
    return ", ".join(f"{a or 'none'} → {b or 'none'}" for a, b in zip_longest(gone, more))


def _variables(old: Started, env: Mapping[str, str]) -> list[str]:
    lines = [f"env {name} is gone" for name in old.env if name not in env]
    for name, value in env.items():
        if name not in old.env:
            lines.append(f"env {name} is new")
        elif not old.same(name, value):
            lines.append(f"env {name} has another value")
    return lines
