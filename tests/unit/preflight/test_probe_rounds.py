"""Rounds of the probe, culprits, and what is moved."""

from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pdctl.preflight.probe.agent import BULK, POISON, TAIL, Agent, pattern
from pdctl.preflight.probe.blocks import BLOCKS, BYTES, load_of, plain_load
from pdctl.preflight.probe.measure import Measure, telling
from pdctl.preflight.probe.rounds import rounds
from pdctl.preflight.probe.verdict import culprits, outcomes
from pdctl.report import make_report
from pdctl_transfer.layout.read import read_manifest
from pdctl_transfer.rules.outcome import Finding, Held


def check_rounds(pairs: set[tuple[str, str]]) -> list[list[tuple[str, str]]]:
    found = rounds(sorted(pairs))
    assert sorted(pair for turn in found for pair in turn) == sorted(pairs), "every pair once"
    for turn in found:
        hosts = Counter(host for pair in turn for host in set(pair))
        assert set(hosts.values()) <= {1}, "no host twice in a round"
    return found


@given(st.integers(1, 12), st.integers(1, 12))
def test_prefill_and_decode_apart_need_as_many_rounds_as_the_larger_side(sources: int, targets: int):
    pairs = {(f"p{i}", f"d{j}") for i in range(sources) for j in range(targets)}
    assert len(check_rounds(pairs)) == max(sources, targets)


@given(st.integers(1, 14))
def test_hosts_that_play_both_roles_need_rounds_linear_in_their_number(hosts: int):
    pairs = {(f"h{i}", f"h{j}") for i in range(hosts) for j in range(hosts)}
    assert len(check_rounds(pairs)) <= 2 * hosts + 1


@given(st.sets(st.tuples(st.sampled_from("abcdef"), st.sampled_from("defghi"))))
def test_any_pairs_are_each_probed_once(pairs: set[tuple[str, str]]):
    check_rounds(pairs)


def every(sources: str, targets: str) -> set[tuple[str, str]]:
    return {pair for s in sources for t in targets for pair in ((s, t), (t, s))}


def test_a_host_that_is_bad_to_all_is_one_culprit_and_a_cut_link_another():
    directions = every("ab", "cd")
    bad = {pair for pair in directions if "d" in pair} | {("a", "c"), ("c", "a")}
    assert [subject for subject, _ in culprits(bad, directions)] == ["all pairs with a", "all pairs with d"]
    bad -= {("a", "c"), ("c", "a")}
    assert [subject for subject, _ in culprits(bad, directions)] == ["all pairs with d"]
    assert [subject for subject, _ in culprits({("a", "c"), ("c", "a")}, directions)] == ["a ↔ c"]
    assert [subject for subject, _ in culprits({("c", "a")}, directions)] == ["c → a"]


def test_with_one_pair_nobody_can_say_which_host_it_is():
    assert [subject for subject, _ in culprits(every("a", "b"), every("a", "b"))] == ["a ↔ b"]


GOOD = Measure("a", "c", "tcp", bytes=1 << 24, blocks=256, seconds=0.01, rate=1e9, latency=1e-4, transport="tcp")


def said(*measures: Measure) -> dict[str, str]:
    found = tuple(outcomes(measures))
    make_report("preflight", found)
    return {item.code: item.subject for item in found if isinstance(item, Finding)}


def changed(**changes: object) -> Measure:
    return Measure(**{**{name: getattr(GOOD, name) for name in GOOD.__struct_fields__}, **changes})  # type: ignore[arg-type]


@pytest.mark.code("PD2301")
@pytest.mark.code("PD2302")
@pytest.mark.code("PD2304")
def test_cut_corrupted_and_slow_directions_are_told_apart():
    measures = (
        GOOD,
        changed(target="d", fault="10.0.0.4 does not answer within 3 s"),
        changed(source="b", wrong=7),
        changed(source="b", target="d", rate=1e7),
    )
    assert said(*measures) == {"PD2301": "a → d", "PD2302": "b → c", "PD2304": "b → d"}


@pytest.mark.code("PD2303")
@pytest.mark.parametrize(
    ("transport", "counted"), [("tcp", {}), ("rdma", {"mlx5_0 port_xmit_data": 0}), ("unknown", {}), ("shm", {})]
)
def test_only_rdma_that_the_kernel_counted_passes_for_rdma(transport: str, counted: dict[str, int]):
    assert said(changed(asked="rdma", transport=transport, counted=counted)) == {"PD2303": "a → c"}


def test_rdma_with_packets_counted_holds():
    found = list(outcomes((changed(asked="rdma", transport="rdma", counted={"mlx5_0 port_xmit_data": 9999}),)))
    assert isinstance(found[0], Held)
    assert "+9999" in found[0].saw


def test_the_log_lines_that_tell_the_transport_are_kept_once():
    log = (
        "I1129 16:20:22.436 208 transfer_engine_impl.cpp:274] Topology discovery complete. Found 0 HCAs.\n"
        "E1129 16:20:22.444 208 transfer_metadata.cpp:1098] Local segment descriptor not found\n"
        "I1129 16:20:22.460 208 tcp_transport.cpp:391] TcpTransport: listen on port 15798\n"
    )
    assert telling(log) == ("Topology discovery complete. Found 0 HCAs.", "TcpTransport: listen on port 15798")


def test_plain_blocks_do_not_overlap():
    load = plain_load()
    ends = sorted((at, at + size) for at, size in zip(load.dst, load.length, strict=True))
    assert all(end <= start for (_, end), (start, _) in pairwise(ends))
    assert load.total == load.dst_bytes


CONTRACTS = Path(__file__).parents[2] / "data" / "contracts"


@pytest.mark.parametrize(
    ("prefill", "decode"),
    [("dense-prefill-tp2", "dense-decode-tp8"), ("hybrid-prefill-tp4", "hybrid-decode-tp1")],
)
def test_what_is_moved_is_the_plan_of_two_ranks_within_the_budget(prefill: str, decode: str):
    sides = [read_manifest(next(CONTRACTS.rglob(f"{name}.json"))) for name in (prefill, decode)]
    load = load_of(*sides)
    assert 0 < load.total <= BYTES
    assert len(load.length) <= BLOCKS
    ends = sorted((at, at + size) for at, size in zip(load.dst, load.length, strict=True))
    assert all(end <= start for (_, end), (start, _) in pairwise(ends)), "no byte is written twice"
    assert ends[-1][1] <= load.dst_bytes
    assert max(at + size for at, size in zip(load.src, load.length, strict=True)) <= load.src_bytes


@pytest.mark.parametrize("place", ["inside", "outside", "large"])
def test_a_single_changed_byte_is_counted_in_a_block_and_beside_it(place: str):
    agent = Agent()
    agent.dst = np.full(200 + TAIL + BULK, POISON, dtype=np.uint8)
    sent = pattern(7, BULK)
    agent.dst[100:150] = sent[200:250]
    agent.dst[200 + TAIL : 200 + TAIL + 4096] = sent[:4096]
    ask = {"seed": 7, "src": [200], "dst": [100], "length": [50], "src_bytes": 300, "dst_bytes": 200, "bulk": 4096}
    assert agent.verify(ask) == {"wrong": 0, "first": None}
    at = {"inside": 120, "outside": 190, "large": 200 + TAIL + 4095}[place]
    agent.dst[at] ^= 1
    assert agent.verify(ask) == {"wrong": 1, "first": at}
