"""Whatever the bytes of a manifest are, a check ends with a verdict or with file, place and reason."""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from pdctl.cli.app import main

CONTRACTS = Path(__file__).resolve().parents[2] / "data" / "contracts"
GOOD = (CONTRACTS / "hybrid-prefill-tp4.json").read_bytes()
PEER = str(CONTRACTS / "hybrid-decode-tp1.json")

VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(min_value=-(2**70), max_value=2**70),
    st.floats(allow_nan=False, allow_infinity=False),
    st.text(max_size=8),
    st.sampled_from([0, 1, -1, 2**31, 2**63, "", "split", "replicated", "decode", [], {}, [[]], [0, 2**40]]),
)


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One file that every example overwrites."""
    return tmp_path_factory.mktemp("fuzz") / "odd.json"


def _ends_well(data: bytes, scratch: Path, capsys: pytest.CaptureFixture[str]) -> int:
    scratch.write_bytes(data)
    status = main(["check", str(scratch), PEER, "-o", "json"])
    captured = capsys.readouterr()
    assert status in (0, 2, 3)
    if status == 2:
        assert captured.err.startswith("error PD")
        assert "odd.json" in captured.err
        assert "unexpected" not in captured.err
        assert "Traceback" not in captured.err
    else:
        assert json.loads(captured.out)["ok"] == (status == 0)
    return status


def _places(document: Any, path: tuple[str | int, ...] = ()) -> list[tuple[str | int, ...]]:
    found = [path] if path else []
    children = (
        document.items() if isinstance(document, dict) else enumerate(document) if isinstance(document, list) else ()
    )
    for key, value in children:
        found += _places(value, (*path, key))
    return found


PLACES = _places(json.loads(GOOD))


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.sampled_from(PLACES), value=VALUES, drop=st.booleans())
def test_any_value_changed_or_dropped(
    place: tuple[str | int, ...], value: Any, drop: bool, scratch: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Well-formed or not, consistent or not."""
    document = json.loads(GOOD)
    parent = document
    for key in place[:-1]:
        parent = parent[key]
    if drop:
        del parent[place[-1]]
    else:
        parent[place[-1]] = value
    _ends_well(json.dumps(document).encode(), scratch, capsys)


def test_truncated_and_garbled(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A file cut anywhere, and bytes overwritten anywhere."""
    dice = random.Random(7)
    for _ in range(60):
        cut = dice.randrange(len(GOOD))
        assert _ends_well(GOOD[:cut], scratch, capsys) == 2
        garbled = bytearray(GOOD)
        for _ in range(dice.randrange(1, 6)):
            garbled[dice.randrange(len(garbled))] = dice.randrange(256)
        _ends_well(bytes(garbled), scratch, capsys)


@pytest.mark.code("PD0021", "PD0006")
@pytest.mark.parametrize(
    "data",
    [b"", b"   ", b"\xff\xfe", b"\x00" * 100, b"{" * 100_000, b'{"schema": "pdctl.layout/v2"}', b"{}", b'{"a":' * 5000],
    ids=["empty", "blank", "utf-16", "zeros", "deep", "schema", "object", "nested"],
)
def test_what_is_no_manifest(data: bytes, scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 2, with the file's name."""
    assert _ends_well(data, scratch, capsys) == 2


@pytest.mark.code("PD1021")
def test_a_contradiction_is_a_verdict_not_unusable_input(scratch: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Exit 3 with PD1021, and where in the document."""
    document = json.loads(GOOD)
    document["stages"][0]["components"][0]["entries"][0]["item_len"] += 1
    scratch.write_text(json.dumps(document))
    assert main(["check", str(scratch), PEER, "-o", "json"]) == 3
    report = json.loads(capsys.readouterr().out)
    [finding] = report["findings"]
    assert finding["code"] == "PD1021"
    assert "$.stages[0].components[0].entries[0].item_len: found 8193, expected 8192" in finding["message"]
