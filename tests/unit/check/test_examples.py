"""`pdctl check` on the contract's example manifests, as its user. Goldens: `PDCTL_GOLDEN=write pytest …`."""

import json
import os
import re
from pathlib import Path

import pytest

from pdctl.cli.app import main

DATA = Path(__file__).resolve().parents[2] / "data" / "contracts"
GOLDEN = Path(__file__).parent / "golden"
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "tiny-hybrid.yaml"

HYBRID = ("hybrid-prefill-tp4.json", "hybrid-decode-tp1.json")
PAGE32 = ("hybrid-prefill-tp4.json", "hybrid-decode-tp4-page32.json")
DENSE = ("dense-prefill-tp2.json", "dense-decode-tp8.json")
STAGES = ("hybrid-prefill-tp1-pp2.json", "hybrid-decode-tp1.json")


@pytest.fixture(autouse=True)
def _in_data(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files by name, as in the goldens; a piped width that no environment changes."""
    monkeypatch.chdir(DATA)
    monkeypatch.setenv("COLUMNS", "120")


def _json(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict]:  # type: ignore[type-arg]
    status = main(["check", *args, "-o", "json"])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize(
    ("args", "status", "verdict", "codes"),
    [
        ((*HYBRID,), 0, "fits", []),
        ((*reversed(HYBRID),), 0, "fits", []),
        ((*HYBRID, "--backend", "nixl"), 3, "refused", ["PD1005"]),
        ((*HYBRID, "--backend", "mori"), 3, "refused", ["PD1005"]),
        ((*PAGE32,), 3, "refused", ["PD1001"]),
        ((*DENSE,), 0, "fits", []),
        ((*DENSE, "--backend", "nixl"), 0, "fits", []),
        ((*STAGES,), 0, "fits", []),
        ((*STAGES, "--backend", "mori"), 3, "refused", ["PD1006"]),
        ((*HYBRID, "--prove"), 0, "fits", []),
        ((*HYBRID, "--backend", "nixl", "--ignore", "PD1005"), 0, "fits with warnings", ["PD1005"]),
        ((*PAGE32, "--ignore", "PD1001", "--ignore", "pd1005, PD1002"), 0, "fits with warnings", ["PD1001"]),
        ((*HYBRID, "--backend", "ascend"), 0, "fits with warnings", ["PD1005"]),
        ((*HYBRID, "--backend", "ascend", "--fail-on", "warning"), 4, "fits with warnings", ["PD1005"]),
    ],
)
@pytest.mark.code("PD1001", "PD1005", "PD1006")
def test_verdict_and_exit_status(
    capsys: pytest.CaptureFixture[str], args: tuple[str, ...], status: int, verdict: str, codes: list[str]
) -> None:
    """The acceptance examples, and their neighbours."""
    got, report = _json(capsys, *args)
    assert got == status
    assert [(pair["verdict"], pair["codes"]) for pair in report["pairs"]] == [(verdict, codes)]
    assert report["ok"] == (status in (0, 4))


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("fits", HYBRID),
        ("page32", PAGE32),
        ("nixl", (*HYBRID, "--backend", "nixl")),
        ("ignored", (*PAGE32, "--ignore", "PD1001")),
        ("dense-prove", (*DENSE, "--prove")),
    ],
)
@pytest.mark.parametrize("fmt", ["table", "short"])
def test_golden(capsys: pytest.CaptureFixture[str], name: str, args: tuple[str, ...], fmt: str) -> None:
    """What an operator reads."""
    main(["check", *args, "-o", fmt])
    text = re.sub(r"in \d+\.\d\d s", "in 0.01 s", capsys.readouterr().out)
    path = GOLDEN / f"{name}.{fmt}.txt"
    if os.environ.get("PDCTL_GOLDEN") == "write":
        path.write_text(text, encoding="utf-8")
    assert text == path.read_text(encoding="utf-8")


def test_findings_point_at_lines_of_the_manifest(capsys: pytest.CaptureFixture[str]) -> None:
    """The line of the key, in the file that was given."""
    _, report = _json(capsys, *PAGE32)
    sources = [evidence["source"] for evidence in report["findings"][0]["evidence"]]
    for source, name in zip(sources, PAGE32, strict=True):
        file, line = source.rsplit(":", 1)
        assert file == name
        assert '"page_size"' in Path(file).read_text().splitlines()[int(line) - 1]


def test_output_is_pure(capsys: pytest.CaptureFixture[str]) -> None:
    """Results to standard output, nothing to standard error."""
    main(["check", *HYBRID, "-o", "json"])
    captured = capsys.readouterr()
    json.loads(captured.out)
    assert captured.err == ""


@pytest.mark.code("PD0001", "PD0002")
@pytest.mark.parametrize(
    ("args", "says"),
    [
        ((HYBRID[0], PAGE32[0]), "two manifests of one role: all are prefill"),
        ((HYBRID[0],), "give the decode side as well"),
        ((HYBRID[0], "nowhere.json"), "nowhere.json"),
        ((HYBRID[0], "."), "cannot be read"),
        ((*HYBRID, "--ignore", "PD9999"), "--ignore"),
        ((*HYBRID, "--ignore", "PD101"), "did you mean"),
        ((*HYBRID, "--platfrom", "npu"), "--platform"),
        ((*HYBRID, "--platform", "cuda"), "hopper"),
        ((*HYBRID, "--backend", "moonkake"), "did you mean mooncake"),
        ((*HYBRID, "--backend", "foo"), 'no backend "foo"'),
        ((*HYBRID, "--pre", "--live"), "give one of them"),
        ((*HYBRID, "--live"), "no fleet file"),
        ((), "no fleet is given"),
    ],
)
def test_unusable_input(capsys: pytest.CaptureFixture[str], args: tuple[str, ...], says: str) -> None:
    """Exit 2, on standard error, with what to do; nothing on standard output."""
    assert main(["check", *args]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("error PD")
    assert says in captured.err


def test_files_of_one_name_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """`a/side.json b/side.json` is how exports from two machines look."""
    for folder, name in zip("ab", PAGE32, strict=True):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "side.json").write_bytes((DATA / name).read_bytes())
    monkeypatch.chdir(tmp_path)
    _, report = _json(capsys, "a/side.json", "b/side.json")
    assert [(pair["prefill"], pair["decode"]) for pair in report["pairs"]] == [("a/side.json:side", "b/side.json:side")]
    assert report["findings"][0]["subject"] == "a/side.json:side → b/side.json:side"


def test_an_option_that_changes_nothing_is_said(capsys: pytest.CaptureFixture[str]) -> None:
    """A manifest is for one platform already."""
    _, report = _json(capsys, *DENSE, "--platform", "npu")
    assert "dense-prefill-tp2.json is a manifest: --platform cannot change it" in report["notes"]


@pytest.mark.parametrize(
    ("command", "status"),
    [
        (["check", "PIPE", "hybrid-decode-tp1.json"], 0),
        (["plan", "PIPE", "hybrid-decode-tp1.json"], 0),
        (["layout", "PIPE"], 0),
        (["check", "FLEET"], 0),
        (["plan", "FLEET"], 0),
        (["layout", "FLEET", "--role", "prefill"], 0),
    ],
)
def test_what_comes_through_a_pipe_is_read_once(command: list[str], status: int) -> None:
    """`pdctl check <(…)` and `… | pdctl check /dev/stdin`: a pipe cannot be opened a second time."""
    files = {"PIPE": DATA / HYBRID[0], "FLEET": EXAMPLE}
    (word,) = files.keys() & set(command)
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb"), os.fdopen(writing, "wb") as pipe:
        pipe.write(files[word].read_bytes())  # a few KiB: a pipe holds 64
        pipe.close()
        assert main([f"/dev/fd/{reading}" if part == word else part for part in command]) == status
