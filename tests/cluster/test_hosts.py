"""Hosts reached by the OpenSSH client: four network namespaces with an sshd each (`make test-cluster`)."""

import os
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pdctl.errors import HostError
from pdctl.fleet import parse_fleet
from pdctl.hosts.exec import SshHost, host_exec
from pdctl.preflight.collect import collect, read_facts
from pdctl.preflight.probe.run import probe_fleet
from pdctl.preflight.rules import judge
from pdctl.preflight.run import fleet_snapshot
from pdctl.preflight.wants import router_of, wants_of
from pdctl_transfer.rules.outcome import Finding, Held, Outcome

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

LAB = Path(__file__).parents[2] / "labs" / "netns_lab.sh"
FLEET = """
schema: pdctl.fleet/v1
name: spread
model: {path: builtin:tiny-hybrid}
engine: reference
transfer: {backend: mooncake, protocol: tcp}
prefill: {replicas: 2, attn_tp: 2, page_size: 16, hosts: [h1, h2], environment: ENV}
decode: {replicas: 2, attn_tp: 1, page_size: 16, hosts: [h3, h4], environment: ENV}
"""


@pytest.fixture(scope="module", autouse=True)
def needs_lab() -> None:
    if not os.environ.get("NETNS_LAB"):
        pytest.fail("needs the hosts: run `make test-cluster`")


def lab(*words: str) -> None:
    subprocess.run(["bash", str(LAB), *words], check=True, capture_output=True)


def address(number: int) -> str:
    return f"{os.environ['NETNS_NET']}.{number}"


@pytest.fixture
def fleet():
    return parse_fleet(FLEET.replace("ENV", sys.prefix).encode(), Path("fleet.yaml"))


def probe(fleet) -> tuple[Outcome, ...]:
    found = probe_fleet(fleet, fleet_snapshot(fleet), lambda text: None)
    for outcome in found:
        print(outcome)
    return found


def findings(outcomes: tuple[Outcome, ...]) -> set[tuple[str, str]]:
    return {(item.code, item.subject) for item in outcomes if isinstance(item, Finding)}


def test_commands_arrive_whole_and_run_on_the_host_that_was_asked():
    words = ["a b", "$HOME", "it's", "*", "", 'quo"te', "\\"]
    script = "import socket, sys; print(socket.gethostname(), sys.argv[1:], sys.stdin.read())"
    done = host_exec("h2").run([sys.executable, "-c", script, *words], stdin=b"in")
    assert done.stdout.decode().strip() == f"h2 {words} in"
    assert host_exec("h1").run(["sh", "-c", "exit 7"]).status == 7


def test_a_process_ends_with_its_input():
    script = "import sys; print('up', flush=True); sys.stdin.read(); print('down', flush=True)"
    process = host_exec("h1").start([sys.executable, "-c", script])
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    process.stdin.close()
    assert process.stdout.read() == b"down\n"
    assert process.wait() == 0


def test_an_unknown_host_key_is_refused(tmp_path: Path):
    client = [*shlex.split(os.environ["PDCTL_SSH"]), "-o", f"UserKnownHostsFile={tmp_path / 'none'}"]
    with pytest.raises(HostError, match="host key is not known"):
        SshHost("h1", client).run(["true"])


def test_the_facts_are_those_of_the_host():
    facts = read_facts("h3")
    assert facts.host.name == "h3"
    assert address(3) in (facts.host.addresses or ())
    assert facts.listening == {22}
    low, high = facts.clock_offset
    assert low <= 0 <= high


@pytest.mark.code("PD2201")
def test_a_host_whose_cable_is_pulled_is_one_finding(fleet):
    lab("cut", "2")
    try:
        snapshot = collect(wants_of(fleet), router_of(fleet))
    finally:
        lab("heal", "2")
    assert [item for item in findings(judge(snapshot)) if item[0] == "PD2201"] == [("PD2201", "h2")]
    assert {facts.name for facts in snapshot.read_hosts()} == {"", "h1", "h3", "h4"}


@pytest.mark.code("PD2202")
def test_a_port_that_is_taken_on_one_host(fleet):
    script = "import socket, sys; s = socket.create_server(('', 8998)); print('up', flush=True); sys.stdin.read()"
    process = host_exec("h1").start([sys.executable, "-c", script])
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stdout.readline() == b"up\n"
    text = FLEET.replace("ENV", sys.prefix).replace("hosts: [h1, h2],", "hosts: [h1, h2], ports: {bootstrap: 8998},")
    try:
        outcomes = judge(fleet_snapshot(parse_fleet(text.encode(), Path("fleet.yaml"))))
    finally:
        process.stdin.close()
        process.wait()
    assert findings(outcomes) == {("PD2202", "h1")}


def test_every_pair_moves_both_ways_in_as_many_rounds_as_hosts_a_side(fleet):
    notes: list[str] = []
    outcomes = probe_fleet(fleet, fleet_snapshot(fleet), notes.append)
    assert {code for code, _ in findings(outcomes)} <= {"PD2304"}, "timing may vary on a busy machine"
    crossed = {item.subject for item in outcomes if isinstance(item, Held)}
    sides = [(s, t) for s in ("h1", "h2") for t in ("h3", "h4")]
    assert crossed == {f"{a} → {b}" for pair in sides for a, b in (pair, pair[::-1])}
    assert len(notes) == 2


@pytest.fixture
def broken_and_shaped() -> Iterator[None]:
    """The link between h1 and h3 is cut, both still reach everyone else; h4 has a hundredth of the others' rate."""
    rules = [("INPUT", "-s"), ("OUTPUT", "-d")]
    for chain, side in rules:
        lab("exec", "1", "iptables", "-w", "-I", chain, side, address(3), "-j", "DROP")
    lab("rate", "4", "20mbit")
    yield
    for number in ("1", "4"):
        lab("heal", number)


@pytest.mark.code("PD2301")
@pytest.mark.code("PD2304")
@pytest.mark.usefixtures("broken_and_shaped")
def test_the_cut_link_and_the_slow_host_are_named(fleet):
    outcomes = probe(fleet)
    assert findings(outcomes) >= {("PD2301", "h1 ↔ h3"), ("PD2304", "all pairs with h4")}
    assert {code for code, _ in findings(outcomes)} == {"PD2301", "PD2304"}
    whole = {item.subject for item in outcomes if isinstance(item, Held)}
    assert {"h2 → h3", "h3 → h2"} <= whole
