"""Errors of manifests name a line, as those of fleet files do."""

import json
from pathlib import Path

import pytest

from pdctl.check.places import line_of
from pdctl.cli.app import main

DOCUMENT = {"schema": "x", "role": '[{,"', "stages": [{"a": 1}, {"b": [[], {"c": "}"}, 3]}], "page_size": 4}
TEXT = json.dumps(DOCUMENT, indent=1).encode()


@pytest.mark.parametrize(
    ("path", "reason", "line"),
    [
        ("$.schema", "", '"schema"'),
        ("$.page_size", "", '"page_size"'),
        ("$.stages[0]", "", "{"),
        ("$.stages[1].b", "", '"b"'),
        ("$.stages[1].b[1].c", "", '"c"'),
        ("$.stages[1].b[2]", "", "3"),
        ("$.stages[1].none", "", "{"),
        ("$", f"malformed (byte {TEXT.index(b'page')})", '"page_size"'),
    ],
)
def test_the_line_is_that_of_the_path_or_of_what_is_around_it(path: str, reason: str, line: str) -> None:
    found = line_of(TEXT, path, reason)
    assert found is not None
    assert TEXT.decode().splitlines()[found - 1].strip().startswith(line)


def test_what_is_nowhere_has_no_line() -> None:
    assert line_of(TEXT, "$") is None
    assert line_of(TEXT, "$.none") is None
    assert line_of(b"[" * (5 << 20), "$[0]") is None


@pytest.mark.parametrize(
    ("old", "new"),
    [('"page_size": 16', '"page_size": "x"'), ('"heads": ', '"heads": "x", "was": '), ('"role"', '"role" 3')],
)
def test_a_manifest_is_told_with_its_line(
    old: str, new: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["layout", "--engine", "reference", "--role", "prefill", "--model", "builtin:tiny-hybrid", "-o", "json"]
    assert main(words) == 0
    text = capsys.readouterr().out
    assert old in text
    (tmp_path / "m.json").write_text(text.replace(old, new, 1))
    line = text[: text.index(old)].count("\n") + 1
    assert main(["check", str(tmp_path / "m.json"), "-o", "sarif"]) == 2
    captured = capsys.readouterr()
    assert f"m.json:{line}  " in captured.err
    (result,) = json.loads(captured.out)["runs"][0]["results"]
    assert result["locations"][0]["physicalLocation"]["region"]["startLine"] == line
