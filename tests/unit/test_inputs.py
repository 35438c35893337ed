"""Only files are opened, nothing is waited for, and no more is read than is allowed."""

import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.errors import ConfigError, InputError
from pdctl.inputs import read_input


def test_no_more_is_read_than_tells_that_it_is_too_much(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 100)
    assert read_input(tmp_path / "f", 100) == b"x" * 100
    assert read_input(tmp_path / "f", 10) == b"x" * 11


@pytest.mark.code("PD0041")
@pytest.mark.parametrize(
    ("make", "is_"),
    [
        (os.mkfifo, "a named pipe"),
        (lambda path: socket.socket(socket.AF_UNIX).bind(str(path)), "a socket"),
        (lambda path: Path(path).symlink_to("/dev/zero"), "a device"),
        (lambda path: Path(path).symlink_to("/dev/null"), "a device"),
    ],
)
@pytest.mark.parametrize("kind", [InputError, ConfigError])
def test_what_is_no_file_is_refused_at_once(
    make: "object", is_: str, kind: type[InputError], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pipe without a writer was waited for without end."""
    monkeypatch.chdir(tmp_path)
    make("f")  # type: ignore[operator]
    with pytest.raises(kind, match=f"^is {is_}, not a file") as caught:
        read_input(Path("f"), 100, kind)
    assert (caught.value.code, caught.value.where, caught.value.exit_code) == ("PD0041", "f", 2)


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("none", "no such file or directory"),
        (".", "is a directory"),
        ("x" * 5000, "file name too long"),
        ("a\0b", "null"),
    ],
)
def test_what_cannot_be_read_says_why(name: str, reason: str) -> None:
    with pytest.raises(InputError, match=f"^cannot be read: .*{reason}") as caught:
        read_input(Path(name), 100, missing="write one")
    assert caught.value.code == "PD0002"
    assert caught.value.hint == ("write one" if name == "none" else None)


def test_what_the_shell_hands_over_is_read() -> None:
    """`pdctl check <(render fleet)`: a pipe, and one that has a writer."""
    script = "import sys, pathlib, pdctl.inputs; print(pdctl.inputs.read_input(pathlib.Path(sys.argv[1]), 9))"
    ran = subprocess.run(
        ["bash", "-c", f"'{sys.executable}' -c '{script}' <(printf 'schema: 1')"],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    assert ran.stdout == "b'schema: 1'\n"
