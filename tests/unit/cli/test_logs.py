"""`pdctl logs` over a fleet's folder: which units, from when on."""

from datetime import datetime, timedelta

import pytest

from pdctl.cli import app
from pdctl.launch.state import FleetFolder, FleetState, UnitEntry


@pytest.fixture(autouse=True)
def _fleet() -> None:
    folder = FleetFolder("f")
    names = ("prefill-0", "decode-0", "router")
    units = tuple(UnitEntry(name, name.split("-")[0], "127.0.0.1", {"http": 1}) for name in names)
    for age, name in enumerate(names[:2], 1):
        (folder.units / name).mkdir(parents=True)
        old, new = (datetime.now() - timedelta(minutes=minutes) for minutes in (60 + age, age))
        (folder.units / name / "unit.log").write_text(f"{old} {name} old\n  more\n{new} {name} new\n  more\n")
    state = FleetState(fleet="f", file="/f", digest="", pdctl="0", phase="decode", since=0.0, units=units)
    folder.write(state)


def said(capsys: pytest.CaptureFixture[str], *words: str) -> list[str]:
    assert app.main(["logs", "f", *words]) == 0
    lines = capsys.readouterr().out.splitlines()
    return [" ".join(word for word in line.split() if not word[0].isdigit()) for line in lines]


def test_all_units_some_and_one(capsys: pytest.CaptureFixture[str]) -> None:
    old = ["decode-0 decode-0 old", "decode-0 more", "prefill-0 prefill-0 old", "prefill-0 more"]
    new = [line.replace("old", "new") for line in old]
    assert said(capsys) == said(capsys, "prefill-0", "decode-0") == old + new
    assert said(capsys, "decode-0") == ["decode-0 old", "more", "decode-0 new", "more"]


@pytest.mark.parametrize("since", ["10m", "0.5h", "a time"])
def test_since(since: str, capsys: pytest.CaptureFixture[str]) -> None:
    since = (datetime.now() - timedelta(minutes=20)).isoformat() if since == "a time" else since
    new = ["decode-0 decode-0 new", "decode-0 more", "prefill-0 prefill-0 new", "prefill-0 more"]
    assert said(capsys, "--since", since) == new
    assert said(capsys, "--since", since, "-n", "1") == [new[1], new[3]]


@pytest.mark.code("PD3015")
@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--since", "soon"], 'error PD0001 --since  found "soon", expected a length or a time\n  30s, 10m'),
        (["decod-0"], 'error PD3015  f has no unit decod-0\n  did you mean "decode-0"?'),
        (["router"], "error PD3015  router has not been started yet\n  `pdctl status f`"),
        (["prefill-0", "x"], "error PD3015  f has no unit x\n  it has prefill-0, decode-0, router"),
    ],
)
def test_what_is_not_there_is_refused(words: list[str], says: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert app.main(["logs", "f", *words]) == 2
    assert says in capsys.readouterr().err
