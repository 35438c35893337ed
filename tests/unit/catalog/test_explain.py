"""`pdctl explain`, as its user."""

import json

import pytest

from pdctl.cli.app import main


def test_explains_offline_in_any_case(capsys: pytest.CaptureFixture[str]) -> None:
    """Copied from a report or typed by hand."""
    assert main(["explain", "pd1001"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("PD1001  error  page sizes differ")
    assert "--page-size" in out
    assert "/codes/PD1001.html" in out


def test_json(capsys: pytest.CaptureFixture[str]) -> None:
    """The same for a program."""
    assert main(["explain", "PD1001", "-o", "json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["code"], document["severity"], document["section"]) == ("PD1001", "error", "layout")


def test_unknown_code_is_unusable_input_with_suggestions(capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, and what was probably meant."""
    assert main(["explain", "PD1O01"]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "did you mean" in captured.err
    assert "PD1001" in captured.err


def test_lists_all_by_section(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a code: a table of contents."""
    assert main(["explain"]) == 0
    out = capsys.readouterr().out
    assert "layout\n" in out
    assert "  PD1002  error    KV cache dtypes differ" in out


def test_lists_all_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    """One array."""
    assert main(["explain", "-o", "json"]) == 0
    assert "PD1021" in {entry["code"] for entry in json.loads(capsys.readouterr().out)}
