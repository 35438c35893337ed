"""Captured hosts: judged again from a file they are judged as they were live, and half a file is judged not at all."""

import json
import math
import platform
from pathlib import Path
from typing import Any

import msgspec
import pytest

from pdctl.cli import app
from pdctl.errors import InputError
from pdctl.fleet import parse_fleet
from pdctl.preflight.document import (
    Facts,
    decode,
    encode,
    environment_of,
    facts_of_snapshot,
    read_facts_files,
    snapshot_from,
)
from pdctl.preflight.facts import Distribution, Software, facts_of
from pdctl.preflight.rules import judge
from pdctl.preflight.snapshot import Snapshot, Unread
from pdctl.preflight.wants import router_of, wants_of
from pdctl_topology import FolderTree, read_host
from tests import machines

TEXT = (
    "schema: pdctl.fleet/v1\nname: f\nmodel: {path: builtin:tiny-hybrid}\nengine: sglang\n"
    "transfer: {backend: mooncake, protocol: rdma}\n"
    "prefill: {hosts: [node-1], devices: ['0'], environment: /env}\ndecode: {hosts: [node-2.lab, node-3]}\n"
)


def snapshot(root: Path) -> Snapshot:
    """Two hosts that were read, one that was not; limits without end, and much that is unknown."""
    loaded = parse_fleet(TEXT.encode(), Path("f.yaml"))
    hosts: dict[str, Any] = {}
    for name, machine in (("", "disabled-port"), ("node-1", "disabled-port"), ("node-2.lab", "disabled-port")):
        host = read_host(FolderTree(machines.build(machine, root / (name or "here"))))
        limits = {"/proc/self/limits": "Max locked memory  unlimited  unlimited  bytes\n"} if name == "node-1" else {}
        hosts[name] = facts_of(
            name,
            msgspec.structs.replace(host, name=name.partition(".")[0] or "control"),
            limits,
            shared_memory=None,
            own_addresses=("127.0.0.1",),
            clock_offset=(-0.5, 9.25),
        )
    hosts["node-3"] = Unread("no route to host", "look at the cable")
    software: dict[tuple[str, str], Any] = {
        (want.host, want.python): Unread("no such file") for want in wants_of(loaded)
    }
    dists = (Distribution("sglang", "0.5.2", "index"),)
    software["node-1", "/env/bin/python"] = Software("3.11", "/env/bin/python", None, dists, None, {"x.so": ("liby",)})
    return Snapshot(wants_of(loaded, {"MC_GID_INDEX": "3"}), hosts, software, router_of(loaded), frozenset({30000}))


def through_a_file(seen: Snapshot, environment: dict[str, str]) -> Facts:
    return decode(encode(facts_of_snapshot(seen, environment, 1.0)), "facts.json")


def test_what_is_read_back_is_what_was_written_and_judged_alike(tmp_path: Path) -> None:
    seen = snapshot(tmp_path)
    document = through_a_file(seen, {"MC_GID_INDEX": "3"})
    loaded = parse_fleet(TEXT.encode(), Path("f.yaml"))
    again = snapshot_from([document], wants_of(loaded, environment_of([document])), router_of(loaded))
    assert again == seen
    facts = again.hosts["node-1"]
    assert not isinstance(facts, Unread)
    assert facts.locked_bytes == math.inf
    assert judge(again) == judge(seen)
    assert {getattr(one, "code", None) for one in judge(again)} > {None}, "something was found"


def test_hosts_that_captured_themselves_are_found_by_their_own_names(tmp_path: Path) -> None:
    """One file from each host, as a bundle brings them."""
    seen = snapshot(tmp_path)
    files = []
    for name in ("node-1", "node-2.lab"):
        alone = Snapshot((), {"": seen.hosts[name]}, {})
        files.append(tmp_path / f"{name}.json")
        files[-1].write_bytes(encode(facts_of_snapshot(alone, {}, 1.0)))
    again = snapshot_from(read_facts_files(files), seen.wants, None)
    assert again.hosts["node-1"] == seen.hosts["node-1"]
    assert again.hosts["node-2.lab"] == seen.hosts["node-2.lab"]
    missing = again.hosts["node-3"]
    assert isinstance(missing, Unread), "what is not there is not held"
    assert missing.reason == "it is not in the facts that were given"


@pytest.mark.code("PD0026")
@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(schema="pdctl.facts/v9"), "$.schema: found 'pdctl.facts/v9', this version reads"),
        (lambda d: d.pop("schema"), "$: Object missing required field `schema`"),
        (lambda d: d.pop("hosts"), "$: Object missing required field `hosts`"),
        (lambda d: d["hosts"][0].pop("name"), "$.hosts[0]: Object missing required field `name`"),
        (lambda d: d["hosts"][1]["seen"].update(listening="all"), "$.hosts[1].seen.listening: Expected `array | null`"),
        (
            lambda d: d["hosts"][1]["seen"].update(locked_bytes="much"),
            "$.hosts[1].seen.locked_bytes: Invalid enum value",
        ),
        (
            lambda d: d["hosts"][1]["seen"]["host"]["hcas"][0].update(ports=3),
            ".seen.host.hcas[0].ports: Expected `array`",
        ),
        (lambda d: d["hosts"].append(d["hosts"][1]), "node-1 is in it twice"),
    ],
)
def test_an_unusable_document_is_refused_with_its_path_and_key(change: Any, says: str, tmp_path: Path) -> None:
    document = json.loads(encode(facts_of_snapshot(snapshot(tmp_path), {}, 1.0)))
    assert document["hosts"][1]["name"] == "node-1"
    change(document)
    path = tmp_path / "facts.json"
    path.write_text(json.dumps(document))
    with pytest.raises(InputError) as caught:
        read_facts_files([path])
    assert (caught.value.code, caught.value.where) == ("PD0026", str(path))
    assert says in caught.value.message


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000, b'{"schema": "pdctl.layout/v1"}'])
def test_what_is_no_such_document_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(content)
    with pytest.raises(InputError) as caught:
        read_facts_files([tmp_path / "x"])
    assert caught.value.code == "PD0026"


def test_a_host_in_two_files_is_refused(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).write_bytes(encode(facts_of_snapshot(snapshot(tmp_path / f"of-{name}"), {}, 1.0)))
    with pytest.raises(InputError, match=rf"\$\.hosts: control is in {tmp_path}/a as well"):
        read_facts_files([tmp_path / "a", tmp_path / "b"])


def report(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    app.main(["preflight", *words, "-o", "json"])
    document = json.loads(capsys.readouterr().out)
    return {key: value for key, value in document.items() if key != "seconds"}


def test_this_machine_is_judged_from_its_file_as_it_is_live(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MC_FORCE_TCP", "1")
    assert app.main(["init", "f.yaml"]) == 0
    capsys.readouterr()
    live = report(capsys, "f.yaml", "--save-facts", "fleet.json")
    alone = report(capsys, "--protocol", "rdma", "--save-facts", "alone.json")
    monkeypatch.delenv("MC_FORCE_TCP")
    assert report(capsys, "f.yaml", "--facts", "fleet.json") == live
    assert report(capsys, "--protocol", "rdma", "--facts", "alone.json") == alone
    assert live["held"]
    assert alone["findings"], "there is no adapter here, or the variable undoes it"
    assert platform.node() in Path("alone.json").read_text()


@pytest.mark.parametrize(
    ("words", "status", "says"),
    [
        (["--facts", "no.json"], 2, "error PD0002 no.json  cannot be read: no such file"),
        (["--facts", "facts.json", "--wait", "3"], 2, "captured hosts do not change"),
        (["--facts", "facts.json", "--save-facts", "x"], 2, "captured hosts do not change"),
        (["--save-facts", "no/x.json"], 2, "error PD0025 no/x.json  cannot be written: no such file or directory"),
    ],
)
def test_what_cannot_be_is_refused(
    words: list[str], status: int, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    Path("facts.json").write_bytes(encode(facts_of_snapshot(snapshot(tmp_path), {}, 1.0)))
    assert app.main(["preflight", *words]) == status
    assert says in capsys.readouterr().err
