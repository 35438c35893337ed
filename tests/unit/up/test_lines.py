"""Logs larger than memory, and lines larger than memory."""

import io
import resource
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.up.lines import lines_of, start_of_last
from pdctl.up.logs import Tail, follow_logs

CONTENTS = st.lists(st.sampled_from([b"\n", b"a", b"bc\n", b"\r\n", "é".encode()]), max_size=30).map(b"".join)


@given(CONTENTS, st.integers(0, 12))
def test_the_last_lines_are_the_last_lines(content: bytes, lines: int) -> None:
    start = start_of_last(io.BytesIO(content), lines)
    assert content[start:] == b"".join(content.splitlines(keepends=True)[-lines:] if lines else [])


@pytest.mark.parametrize("lines", [1, 2, 3, 1000])
def test_lines_over_the_ends_of_blocks_are_found(lines: int) -> None:
    content = b"".join(b"%d " % n + b"x" * (n * 7919 % 300_000) + b"\n" for n in range(60))
    start = start_of_last(io.BytesIO(content), lines)
    assert content[start:] == b"".join(content.splitlines(keepends=True)[-lines:])


@given(CONTENTS)
def test_lines_are_told_with_their_sizes(content: bytes) -> None:
    lines = list(lines_of(io.BytesIO(content)))
    assert sum(line.size for line in lines) == len(content)
    assert [line.whole for line in lines[:-1]] == [True] * (len(lines) - 1) if lines else True
    assert [line.text for line in lines] == [line.decode().rstrip("\r\n") for line in io.BytesIO(content).readlines()]


def test_a_long_line_is_cut_and_says_so() -> None:
    first, second = lines_of(io.BytesIO(b"x" * 50 + b"\n" + b"y"), longest=10)
    assert first == ("x" * 10 + "… (41 more bytes)", 51, True)
    assert second == ("y", 1, False)


def test_following_takes_whole_lines_up_and_none_of_any_length_whole(tmp_path: Path) -> None:
    log = tmp_path / "unit.log"
    log.write_bytes(b"one\ntw")
    tail = Tail(log, 0)
    assert tail.added() == ["one"]
    with log.open("ab") as file:
        file.write(b"o\n" + b"x" * (1 << 20) + b"\nthree\n")
    assert [line[:20] for line in tail.added()] == ["two", "x" * 20, "three"]
    assert (tail.offset, tail.anew) == (log.stat().st_size, False)
    log.write_bytes(b"anew\n")
    assert (tail.added(), tail.anew) == (["anew"], True)
    assert Tail(tmp_path / "none", 0).added() == []


def test_what_was_written_before_a_log_was_moved_away_is_read_to_its_end(tmp_path: Path) -> None:
    """The new file may be longer than the old one was when it is first looked at."""
    log = tmp_path / "unit.log"
    log.write_bytes(b"one\n")
    tail = Tail(log, 0)
    assert tail.added() == ["one"]
    with log.open("ab") as file:
        file.write(b"two\n")
    log.rename(tmp_path / "unit.log.1")
    assert (tail.added(), tail.anew) == (["two"], False)
    log.write_bytes(b"three\n" * 10)
    assert tail.added() + tail.added() == ["three"] * 10
    assert tail.anew


def test_whoever_follows_is_told_that_a_log_was_begun_anew(tmp_path: Path) -> None:
    """Cut, as `copytruncate` does it, between two looks; the other log goes on."""
    logs = {name: tmp_path / name for name in ("decode-0", "prefill-0")}
    for path in logs.values():
        path.write_text("old and long\n")
    said: list[str] = []

    def write(line: str) -> None:
        said.append(line)
        if line.endswith("more"):
            logs["decode-0"].write_text("anew\n")

    def say(text: str) -> None:
        said.append(text)
        raise KeyboardInterrupt

    logs["prefill-0"].write_text("old and long\nmore\n")
    with pytest.raises(KeyboardInterrupt):
        follow_logs(logs, dict.fromkeys(logs, len("old and long\n")), write, say)
    assert said == [
        "prefill-0  more",
        "decode-0   anew",
        f"decode-0: its log was begun anew: {logs['decode-0']}",
    ]


def test_a_line_of_300_mb_costs_little(tmp_path: Path) -> None:
    """`pdctl logs -n 1` took 1.2 GB for it."""
    with (tmp_path / "unit.log").open("wb") as log:
        log.write(b"begins\n")
        log.truncate(300 << 20)
    script = (
        "import sys; from pdctl.up.lines import *\n"
        "with open(sys.argv[1], 'rb') as f:\n"
        "    f.seek(start_of_last(f, 1)); print(*(line.size for line in lines_of(f)))"
    )

    def little() -> None:
        resource.setrlimit(resource.RLIMIT_AS, (150 << 20, 150 << 20))

    ran = subprocess.run(
        [sys.executable, "-c", script, tmp_path / "unit.log"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
        preexec_fn=little,
    )
    assert int(ran.stdout) == (300 << 20) - len("begins\n")
