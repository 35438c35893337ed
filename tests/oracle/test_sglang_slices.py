"""Our slices are those of SGLang's own functions, on more than 500 configurations.

`make test` compares with answers recorded from SGLang; `make test-engines` asks the installed SGLang again and checks
that the record is still what it says. To record anew: `python -m tests.oracle.test_sglang_slices`.
"""

import json
import os
import subprocess
import sys
from collections import Counter, defaultdict
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from pdctl_transfer.layout.manifest import Entry, Group
from pdctl_transfer.layout.pairing import pair_entries
from pdctl_transfer.plan import RankId, make_plan
from tests.oracle.installed import sglang_python
from tests.oracle.slice_configs import all_configs, connected
from tests.unit.layout.build import component, manifest, replicated, single, stage

CONFIGS = all_configs()
RECORD = Path(__file__).parents[1] / "data" / "oracle" / "sglang_slices.json"
SCRIPT = Path(__file__).with_name("sglang_slices.py")

Block = tuple[int, int, int]


def ask_sglang(python: str) -> dict[str, Any]:
    links = [connected(c["src_tp"], c["dst_tp"]) if "src_tp" in c else [] for c in CONFIGS]
    question = json.dumps({"configs": CONFIGS, "connected": links})
    environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [python, str(SCRIPT)], input=question, capture_output=True, text=True, check=True, env=environment, timeout=300
    )
    return json.loads(done.stdout)


@cache
def recorded() -> dict[str, Any]:
    return json.loads(RECORD.read_text())


def test_there_are_enough_configurations():
    assert len(CONFIGS) >= 500
    assert len(recorded()["answers"]) == len(CONFIGS)
    assert {c["what"] for c in CONFIGS} == {"heads", "state", "replicated", "pairs"}


@pytest.mark.parametrize("what", ["heads", "state", "replicated", "pairs"])
def test_slices_equal_the_recorded_ones(what):
    compare(recorded()["answers"], what)


@pytest.mark.engines
@pytest.mark.timeout(400)
def test_slices_equal_those_of_the_installed_sglang():
    python = sglang_python()
    if python is None:
        pytest.skip("no environment with SGLang (make test-engines builds one, PDCTL_SGLANG_PYTHON names another)")
    answered = ask_sglang(python)
    for what in ("heads", "state", "replicated", "pairs"):
        compare(answered["answers"], what)
    if answered["version"] == recorded()["version"]:
        assert answered == recorded()


def compare(answers: list[Any], what: str) -> None:
    judge = {"heads": _heads, "state": _state, "replicated": _replicated, "pairs": _pairs}[what]
    judged = 0
    for config, answer in zip(CONFIGS, answers, strict=True):
        if config["what"] == what:
            judge(config, answer)
            judged += 1
    assert judged >= 100


def _ours(entry: Entry, config: dict[str, Any]) -> dict[tuple[int, int], list[Block]]:
    """The plan's contiguous copies by (source rank, destination rank)."""
    part = component("kind", "slot", entry)
    plan = make_plan(single("prefill", config["src_tp"], part), single("decode", config["dst_tp"], part))
    found = defaultdict(list)
    for line in plan.lines():
        found[line.src.tp, line.dst.tp] += [
            (line.src_offset + j * line.src_stride, line.dst_offset + j * line.dst_stride, line.length)
            for j in range(line.count)
        ]
    return found


def _merged(blocks: list[Any]) -> list[Block]:
    """Neighbours joined: SGLang gives one block a sub-block and row, the plan merges."""
    out: list[Block] = []
    for src, dst, length in sorted(blocks, key=lambda block: block[1]):
        if out and (out[-1][0] + out[-1][2], out[-1][1] + out[-1][2]) == (src, dst):
            src, dst, length = out[-1][0], out[-1][1], out.pop()[2] + length
        out.append((src, dst, length))
    return out


def _heads(config: dict[str, Any], answer: list[list[int]]) -> None:
    """Of source ranks with equal copies SGLang lets all write, we elect one: the copies themselves are equal."""
    heads, src_tp = config["heads"], config["src_tp"]
    ours = _ours(Entry(0, "k", "split", 1, (Group(heads, 1),), 1, 0), config)
    copies = max(1, src_tp // heads)
    theirs: dict[tuple[int, int], set[Block]] = defaultdict(set)
    for (src, dst), (src_head, count, dst_head, _) in zip(connected(src_tp, config["dst_tp"]), answer, strict=True):
        theirs[src // copies, dst].add((src_head, dst_head, count))
    elected = Counter((src // copies, dst) for src, dst in ours)
    assert set(elected.values()) == {1}, config
    assert {(src // copies, dst): set(blocks) for (src, dst), blocks in ours.items()} == theirs, config


def _state(config: dict[str, Any], answer: list[list[Block]]) -> None:
    cut = tuple(Group(heads, width) for heads, width in config["groups"])
    ours = _ours(Entry(0, "conv", "split", config["outer"], cut, config["inner"], 0), config)
    pairs = connected(config["src_tp"], config["dst_tp"])
    theirs = {pair: _merged(blocks) for pair, blocks in zip(pairs, answer, strict=True)}
    assert {pair: _merged(blocks) for pair, blocks in ours.items()} == theirs, config


def _replicated(config: dict[str, Any], answer: list[list[Block]]) -> None:
    """One writer a destination on both; ours may be another rank of the same block, so that the work spreads."""
    ours = _ours(replicated(0, "t", config["item_len"], 1, 1), config)
    pairs = connected(config["src_tp"], config["dst_tp"])
    theirs = {dst: [tuple(b) for b in blocks] for (_, dst), blocks in zip(pairs, answer, strict=True) if blocks}
    assert {dst: blocks for (_, dst), blocks in ours.items()} == theirs, config
    assert set(ours) <= set(pairs), config
    assert len(ours) == config["dst_tp"], config


def _pairs(config: dict[str, Any], answer: list[list[int]] | str) -> None:
    """Equal pairs where SGLang pairs; a problem where it refuses. Positions between unequal counts we refuse alone."""
    prefill, decode = (
        component("kv", "page", *(replicated(layer, "latent") for layer in config[side]))
        for side in ("prefill", "decode")
    )
    source = single("prefill", 1, prefill, layers=32)
    if config["pp"] == 2:
        source = manifest("prefill", 1, stage(0, (0, 32), prefill), stage(1, (32, 32)))
    pairing = pair_entries(source, single("decode", 1, decode, layers=32))
    refused = pairing.of("no_partner", "mixed_ids", "uneven_ids", "position")
    if isinstance(answer, str):
        assert refused, (config, answer)
        return
    bare = None in config["prefill"] or None in config["decode"]
    if bare and (config["pp"] == 2 or len(config["prefill"]) != len(config["decode"])):
        assert refused or not config["prefill"], config
        return
    assert not refused, (config, answer)
    assert sorted([pair.src.place.entry, pair.dst.place.entry] for pair in pairing.pairs) == answer, config


def test_sliced_and_unsliced_ranks_reach_the_same_peers():
    """The engine connects only these pairs; a plan that needs others could not be carried out by it."""
    for config in CONFIGS:
        if config["what"] == "state":
            cut = tuple(Group(heads, width) for heads, width in config["groups"])
            part = component("mamba", "slot", Entry(0, "conv", "split", 1, cut, 2, 0))
            plan = make_plan(single("prefill", config["src_tp"], part), single("decode", config["dst_tp"], part))
            reached = {(src.tp, dst) for dst in range(config["dst_tp"]) for src in plan.sources_of(RankId(0, dst))}
            assert reached == set(connected(config["src_tp"], config["dst_tp"]))


if __name__ == "__main__":
    answered = ask_sglang(sglang_python() or sys.exit("no environment with SGLang"))
    RECORD.write_text(json.dumps(answered, separators=(",", ":")) + "\n")
