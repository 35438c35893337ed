"""How a bring-up is watched: a moving line on a terminal, plain lines elsewhere. All of it on standard error."""

import sys
import threading
import time
from collections.abc import Sequence

from pdctl.cli.output import paint, width_of
from pdctl.cli.verbosity import tell, watched
from pdctl.launch.state import PhaseEntry
from pdctl.redact import clean_line
from pdctl.up.diff import Step

_MARKS = {"done": ("✓", "green"), "doubtful": ("?", "yellow"), "skipped": ("–", "dim"), "failed": ("✗", "red")}
_ACTIONS = {"start": "+", "restart": "~", "stop": "-"}
_FRAMES = "⠋⠙⠹⠸⠼⠴⠦⠧⠇⠏"
_FRAME_S = 0.1


class Lines:
    """A line when a phase ends, and one when what it waits for changes: readable in a log."""

    def __init__(self, width: int) -> None:
        self._width = width
        self._said = ""
        self.steps: tuple[Step, ...] = ()
        self.phases = 0
        """How many have ended."""

    def phase_began(self, name: str, says: str) -> None:
        """Nothing yet: the line comes when it is known how it went."""
        self._said = ""

    def progress(self, text: str) -> None:
        """What is waited for, once."""
        if text != self._said:
            self._said = text
            tell(f"  {'':<{self._width}}  {text} …")

    def phase_ended(self, entry: PhaseEntry) -> None:
        """The phase's line."""
        self.phases += 1
        tell(*phase_line(entry, self._width))

    def cleaning(self, text: str) -> None:
        """One line."""
        tell(f"{text} …")

    def decided(self, steps: Sequence[Step]) -> None:
        """What is to change, one line a difference; kept for whoever asks afterwards."""
        self.steps = tuple(steps)
        for line in change_lines(steps):
            tell(line)

    def close(self) -> None:
        """Nothing is open."""


class Spinner(Lines):
    """The same lines, with the running phase in a last line that moves."""

    def __init__(self, width: int) -> None:
        super().__init__(width)
        self._lock = threading.Lock()
        self._done = threading.Event()
        self._phase: tuple[str, str, float] | None = None
        self._thread = threading.Thread(target=self._turn, daemon=True)
        self._thread.start()

    def phase_began(self, name: str, says: str) -> None:
        """The moving line shows this phase from now on."""
        with self._lock:
            self._phase = (name, f"until {says}", time.monotonic())

    def progress(self, text: str) -> None:
        """What is waited for, in the moving line."""
        with self._lock:
            if self._phase is not None:
                self._phase = (self._phase[0], text, self._phase[2])

    def phase_ended(self, entry: PhaseEntry) -> None:
        """The phase's line, in place of the moving one."""
        with self._lock:
            self._phase = None
            self._clear()
            super().phase_ended(entry)

    def cleaning(self, text: str) -> None:
        """A phase of its own to look at."""
        with self._lock:
            self._phase = ("", text, time.monotonic())

    def close(self) -> None:
        """Leave the terminal clean."""
        self._done.set()
        self._thread.join()
        self._clear()

    def _turn(self) -> None:
        frame = 0
        while not self._done.wait(_FRAME_S):
            frame += 1
            with self._lock:
                if self._phase is None:
                    continue
                name, text, began = self._phase
                turn, seconds = _FRAMES[frame % len(_FRAMES)], time.monotonic() - began
                line = f"{turn} {name:<{self._width}}  {seconds:5.1f} s  {text}"
                columns = width_of(sys.stderr) or 80
                sys.stderr.write(f"\r\x1b[2K{clean_line(line)[: columns - 1]}")
                sys.stderr.flush()

    def _clear(self) -> None:
        sys.stderr.write("\r\x1b[2K")
        sys.stderr.flush()


def watcher(width: int) -> Lines:
    """The right one for standard error."""
    return Spinner(width) if watched() else Lines(width)


def change_lines(steps: Sequence[Step]) -> list[str]:
    """`~ decode-0  --page-size: 16 → 32`, one line a difference; those that stay in one line. None where all stay."""
    changed = [step for step in steps if step.action != "keep"]
    if not changed:
        return []
    width = max(len(step.unit) for step in changed)
    lines = []
    for step in changed:
        for index, why in enumerate(step.why):
            mark, name = (_ACTIONS[step.action], step.unit) if index == 0 else (" ", "")
            lines.append(clean_line(f"{mark} {name:<{width}}  {why}"))
    kept = [step.unit for step in steps if step.action == "keep"]
    more = f" and {len(kept) - 4} more" if len(kept) > 4 else ""
    return [*lines, *([f"= {', '.join(kept[:4])}{more}"] if kept else [])]


def phase_line(entry: PhaseEntry, width: int) -> tuple[str, str]:
    """`prefill     1.8 s  prefill-0 :20123`, and the mark before it."""
    mark, style = _MARKS[entry.outcome]
    seconds = f"{entry.seconds:5.1f} s" if entry.outcome != "skipped" else " " * 7
    return f" {entry.name:<{width}}  {seconds}  {entry.note or ''}".rstrip(), paint(mark, style)
