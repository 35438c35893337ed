"""`status` shows which way each pair takes, by the engines' own word; what they do not say is unknown and said so."""

import json
from pathlib import Path
from typing import Any

import pytest

from pdctl.cli.app import main
from pdctl.engines.live import Running
from pdctl.engines.ways import NO_PLUGIN, ways_of
from pdctl.fleet import parse_fleet
from pdctl.launch.state import DOWN, UP, FleetFolder, FleetState, UnitEntry
from pdctl.running import find
from pdctl.running.external import by_file
from pdctl.up.plan import make_plan
from pdctl.up.status import FleetView, status_of
from tests.unit.engines.outside import Answers, at, sglang, vllm

CORE = {"peer": "127.0.0.1:9100", "way": "core", "code": "PD3136", "reason": "attention TP is unequal"}
OWN = CORE | {"way": "engine", "code": "PD3130", "reason": "no core answers at the prefill engine's bootstrap port"}


def decode(*ways: Any) -> Answers:
    """A decode engine of SGLang of two ranks, whose plugin shows these."""
    return sglang("decode", internal_states=[{"pdctl": {"ways": list(ways)}}, {"pdctl": {"ways": list(ways)}}])


def text(prefill: str, decode_url: str, core: str, engine: str, bootstrap: int = 9100) -> str:
    return (
        "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-llama}\n"
        f"engine: {engine}\nlauncher: {{kind: external}}\ntransfer: {{core: {core}}}\n"
        f"prefill: {{urls: [{{url: '{prefill}', bootstrap: {bootstrap}}}]}}\n"
        f"decode: {{urls: ['{decode_url}'], transfer: {{core: {core}}}}}\n"
    )


def look(
    prefill: str, decode_url: str, core: str = "pdctl", engine: str = "sglang", bootstrap: int = 9100
) -> FleetView:
    file = text(prefill, decode_url, core, engine, bootstrap)
    return status_of(by_file(parse_fleet(file.encode(), Path("f.yaml"))))


def carried(view: FleetView) -> dict[str, Any]:
    return {unit["name"]: unit["carried"] for unit in view.document()["units"]}


def test_the_peer_has_its_name_and_the_way_its_code_and_reason() -> None:
    with at({}) as p:
        port = p.server_address[1]
        p.answers |= sglang("prefill", port, internal_states=[{"pdctl": {"ways": []}}])
        way = CORE | {"peer": f"127.0.0.1:{port}"}
        with at(decode(way)) as d:
            view = look(p.url, d.url, bootstrap=port)
    said = carried(view)
    assert said["prefill-0"] == {"core": "pdctl", "pairs": [], "unknown": None}
    assert said["decode-0"]["pairs"] == [way | {"unit": "prefill-0"}]  # one pair, whatever its ranks repeat
    assert not [note for note in view.notes if "PD31" in note]


def test_a_peer_that_is_no_member_has_its_address_alone() -> None:
    """An engine keeps what it chose for one that is gone."""
    with at(decode(CORE | {"peer": "10.0.0.9:8998"})) as d:
        pairs = carried(look("http://127.0.0.1:1", d.url))["decode-0"]["pairs"]
    assert [(one["peer"], one["unit"]) for one in pairs] == [("10.0.0.9:8998", None)]


@pytest.mark.code("PD3124")
@pytest.mark.parametrize(("core", "noted"), [("pdctl", True), ("auto", False)])
def test_a_pair_by_the_engines_own_transfer_is_noted_where_the_core_was_asked_for(core: str, noted: bool) -> None:
    with at(sglang("prefill")) as p, at(decode(OWN)) as d:
        notes = [note for note in look(p.url, d.url, core).notes if note.startswith("PD3124")]
    assert bool(notes) is noted
    assert all("decode-0" in note and "prefill-0" in note and "PD3130" in note for note in notes)


@pytest.mark.code("PD3123")
@pytest.mark.parametrize(
    ("answers", "why"),
    [
        (sglang("decode"), "without pdctl's plugin"),
        (sglang("decode", internal_states="?"), "without pdctl's plugin"),
        (decode({"peer": "x"}), "no list of ways"),
        (decode(CORE | {"way": "sideways"}), "no list of ways"),
        (decode("text"), "no list of ways"),
        ({}, "does not answer"),
    ],
)
def test_what_is_not_said_is_unknown_and_never_right(answers: Answers, why: str) -> None:
    with at(answers) as d:
        view = look("http://127.0.0.1:1", d.url)
    said = carried(view)["decode-0"]
    assert said["pairs"] is None
    assert why in said["unknown"]
    assert any(note.startswith("PD3123 decode-0") for note in view.notes)


def test_vllm_is_asked_on_a_route_of_its_own() -> None:
    shown = vllm(**{"pdctl/ways": (200, json.dumps([CORE]).encode())})
    with at(shown) as p, at(vllm()) as d:
        said = carried(look(p.url, d.url, engine="vllm"))
    assert [one["way"] for one in said["prefill-0"]["pairs"]] == ["core"]
    assert said["decode-0"]["unknown"] == NO_PLUGIN


def test_a_fleet_without_the_core_is_asked_nothing() -> None:
    with at(sglang("prefill")) as p, at(decode(CORE)) as d:
        view = look(p.url, d.url, "engine")
    assert set(carried(view).values()) == {None}


def test_the_reference_engine_has_no_choice() -> None:
    assert "no other way" in str(ways_of(Running("d", "decode", "reference", "http://127.0.0.1:1")).unknown)


def test_the_table_has_a_line_for_each_pair(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with at(sglang("prefill")) as p, at(decode(CORE)) as d:
        path = tmp_path / "f.yaml"
        path.write_text(text(p.url, d.url, "auto", "sglang"))
        main(["status", str(path)])
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert ["pair", "of", "with", "way", "code", "reason"] in lines
    assert ["decode-0", "prefill-0", "core", "PD3136", "attention", "TP", "is", "unequal"] in lines


def test_what_was_asked_for_is_recorded_with_the_fleet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """So that `status` of a fleet of ours asks those that it should."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    own = "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-llama}\nengine: sglang\n"
    own += "transfer: {core: auto, protocol: tcp}\nprefill: {}\ndecode: {transfer: {core: pdctl}}\n"
    plan = make_plan(parse_fleet(own.encode(), Path("f.yaml")))
    assert {one.name: one.core for one in plan.entries()} == {
        "prefill-0": "auto",
        "decode-0": "pdctl",
        "router": "engine",
    }


def test_a_fleet_that_is_down_is_not_asked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody wonders which way the pairs of what is not there take."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    units = tuple(
        UnitEntry(f"{role}-0", role, "127.0.0.1", {"http": 1}, core="pdctl") for role in ("prefill", "decode")
    )
    for phase, told in ((UP, 2), (DOWN, 0)):
        state = FleetState(fleet="f", file="f.yaml", digest="0", pdctl="0", phase=phase, since=0.0, units=units)
        folder = FleetFolder("f")
        with folder.lock("up"):
            folder.write(state)
        assert len(status_of(find("f")).carried) == told
