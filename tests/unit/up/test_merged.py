"""Lines of several logs in the order of their time, whatever way each program writes it."""

import random
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

from pdctl.up import merged
from pdctl.up.lines import start_of_last
from pdctl.up.logs import print_logs
from pdctl.up.merged import in_order, moment, offset_since, time_of

NOW = datetime(2026, 12, 1, 12, 0, 0)
AT = datetime(2026, 12, 1, 11, 6, 33)


@pytest.mark.parametrize(
    ("line", "when"),
    [
        ("2026-12-01 11:06:33,250 INFO pdctl  serves", AT + timedelta(milliseconds=250)),
        ("pdctl-guard 2026-12-01T11:06:33  decode-0 (pid 3) ended", AT),
        ("\x1b[2m2026-12-01 11:06:33\x1b[0m \x1b[32m INFO\x1b[0m smg: up", AT),
        ("[2026-12-01 11:06:33 TP0] Load weight begin.", AT),
        ("INFO 12-01 11:06:33 [api_server.py:1] started", AT),
        ("INFO 12-31 11:06:33 last year's", datetime(2025, 12, 31, 11, 6, 33)),
        ("2026-12-01T11:06:33.123456789Z x", AT.replace(tzinfo=UTC) + timedelta(microseconds=123456)),
        ("2026-12-01T11:06:33+02:00 x", AT.replace(tzinfo=UTC) - timedelta(hours=2)),
        ("Traceback (most recent call last):", None),
        ("2026-13-45 99:99:99 no time", None),
        ("0000-00-00 00:00:00", None),
        ("", None),
        ("x" * 200 + "2026-12-01 11:06:33", None),
    ],
)
def test_the_time_of_a_line(line: str, when: datetime | None) -> None:
    assert time_of(line, NOW) == (when.timestamp() if when else None)


@pytest.mark.parametrize(
    ("text", "when"),
    [
        ("10m", NOW - timedelta(minutes=10)),
        ("1.5h", NOW - timedelta(minutes=90)),
        ("30 s", NOW - timedelta(seconds=30)),
        ("2d", NOW - timedelta(days=2)),
        ("11:30", datetime(2026, 12, 1, 11, 30)),
        ("2026-11-30", datetime(2026, 11, 30)),
        ("2026-12-01T11:30Z", datetime(2026, 12, 1, 11, 30, tzinfo=UTC)),
        ("10", None),
        ("-5m", None),
        ("yesterday", None),
        ("99999999999d", None),
        ("nan", None),
        ("25:99", None),
    ],
)
def test_a_moment_as_one_says_it(text: str, when: datetime | None) -> None:
    assert moment(text, NOW) == (when.timestamp() if when else None)


def test_lines_are_merged_by_time_and_stay_with_the_line_that_they_belong_to() -> None:
    a = ["begins", "2026-12-01 11:00:02 a fails", "  Traceback", "2026-12-01 11:00:05 a again"]
    b = ["2026-12-01 11:00:01 b", "2026-12-01 11:00:03 b", "2026-12-01 11:00:01 b, its clock set back"]
    assert [line for _, line in in_order({"a": a, "b": b}, NOW)] == [
        "begins",
        "2026-12-01 11:00:01 b",
        "2026-12-01 11:00:02 a fails",
        "  Traceback",
        "2026-12-01 11:00:03 b",
        "2026-12-01 11:00:01 b, its clock set back",
        "2026-12-01 11:00:05 a again",
    ]


@pytest.mark.parametrize("block", [7, 64, 1000, 1 << 20])
def test_the_first_line_of_a_moment_is_found_from_the_end(
    block: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As by looking at every line, wherever the blocks are cut."""
    monkeypatch.setattr(merged, "BLOCK", block)
    source = random.Random(3)
    path, seconds, text = tmp_path / "log", 0, []
    for _ in range(60):
        if source.random() < 0.4:
            text.append("x" * source.randrange(40) + "\n")
        else:
            seconds += source.randrange(4)
            text.append(f"{datetime(2026, 12, 1, 10) + timedelta(seconds=seconds)} says {'é' * source.randrange(9)}\n")
    path.write_text("".join(text))
    times = [time_of(line, NOW) for line in text]
    for wanted in range(-2, seconds + 3):
        since = datetime(2026, 12, 1, 10).timestamp() + wanted
        stamps = [at for at, when in enumerate(times) if when is not None and when >= since]
        older = any(when is not None and when < since for when in times)
        first = 0 if not older else stamps[0] if stamps else len(text)
        assert offset_since(path, since, NOW) == len("".join(text[:first]).encode())


@pytest.mark.parametrize("block", [1, 7, 1 << 20])
@pytest.mark.parametrize("end", ["", "\n"])
def test_the_last_lines_are_found_from_the_end(
    block: int, end: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("pdctl.up.lines._BLOCK", block)
    path = tmp_path / "log"
    for count in (0, 1, 2, 5):
        text = "\n".join("line" * (n % 3) for n in range(count)) + (end if count else "")
        path.write_text(text)
        lines = text.splitlines(keepends=True)
        for last in range(count + 2):
            expected = "".join(lines[len(lines) - last :] if last < len(lines) else lines) if last else ""
            with path.open("rb") as file:
                assert text.encode()[start_of_last(file, last) :].decode() == expected


def test_a_log_without_times_is_shown_whole(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one\ntwo\n")
    assert offset_since(path, 0.0, NOW) is None
    said: list[str] = []
    assert print_logs({"u": path}, None, said.append, since=NOW.timestamp()) == {"u": 8}
    assert said == ["one", "two"]


def test_the_last_lines_of_each_are_merged_and_named(tmp_path: Path) -> None:
    for name, seconds in (("a", (1, 4)), ("bb", (2, 3))):
        lines = [f"2026-12-01 11:00:0{second} {name}\n" for second in seconds]
        (tmp_path / name).write_text("2026-12-01 10:00:00 long ago\n" + "".join(lines))
    said: list[str] = []
    offsets = print_logs({name: tmp_path / name for name in ("a", "bb", "none")}, 2, said.append)
    assert said == [
        "a     2026-12-01 11:00:01 a",
        "bb    2026-12-01 11:00:02 bb",
        "bb    2026-12-01 11:00:03 bb",
        "a     2026-12-01 11:00:04 a",
    ]
    assert offsets == {"a": (tmp_path / "a").stat().st_size, "bb": (tmp_path / "bb").stat().st_size, "none": 0}
