"""The parity matrix: a pair of any sizes gives what one engine alone gives, over each fabric, draft and all.

Also its own proof: with the rule for concatenated states or for repeated heads broken, it must fail.
"""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import pdctl_transfer.session.bytes.work as session_work
from pdctl.engines.reference.options import EngineOptions
from pdctl.engines.reference.request import Request
from pdctl.engines.reference.sampling import Sampling
from pdctl_transfer.layout.manifest import Component, Entry, Group, Manifest, Stage
from pdctl_transfer.plan import Plan, make_plan
from tests.integration.reference.harness import alone, pair, prompts, result, start

BASE = EngineOptions(max_total_tokens=8192)


class Load(NamedTuple):
    """What a pair is asked: so many prompts of these lengths, new tokens for each, so many at once."""

    prompts: tuple[tuple[int, ...], ...]
    new: int
    at_once: int

    @property
    def sampling(self) -> Sampling:
        return Sampling(max_new_tokens=self.new, temperature=0, ignore_eos=True)


SHORT, MIXED = tuple(prompts(16, 5, 90, seed=1)), tuple(prompts(4, 15, 300, seed=2))
LOADS = (Load(MIXED, 64, 4), Load(SHORT, 1, 16), Load(MIXED[:1], 64, 1), Load(SHORT, 1, 4))
#: Enough to see a wrong byte of any kind.
FEW = (Load(MIXED[1:3], 24, 2), Load(SHORT[:4], 1, 4))

TPS = list(itertools.product((1, 2, 4), (1, 2, 4)))
PPS = [(1, 1), (2, 1), (2, 2)]
BACKENDS = ["mooncake", "nixl"]
FULL = list(itertools.product(TPS, PPS, [False, True], BACKENDS))
#: Each pair of TP sizes once, with every value of the other axes beside every other.
SUBSET = [(tps, PPS[(i + i // 3) % 3], bool(i % 2), BACKENDS[(i // 2) % 2]) for i, tps in enumerate(TPS)]


@cache
def expected(options: EngineOptions, load: Load) -> tuple[Request, ...]:
    """What one engine of one rank answers."""
    with alone(options) as engine:
        return tuple(start(engine, prompt, load.sampling).wait() for prompt in load.prompts)


def check_parity(
    prefill: EngineOptions,
    decode: EngineOptions,
    backend: str,
    loads: tuple[Load, ...] = FEW,
    tolerance: float = 1e-9,
) -> None:
    """Tokens, proposals of the draft, reasons and prompts as from one engine alone; nothing failed or done twice."""
    base = replace(decode, tp=1, pp=1, dp=1)
    largest = 0.0
    with pair(prefill, decode, backend=backend) as both:
        for load in loads:
            wanted = expected(base, load)
            answers = both.run(load.prompts, load.sampling, load.at_once)
            assert [result(answer) for answer in answers] == [result(one) for one in wanted]
            largest = max(largest, difference(answers, wanted))
        assert both.decode.counts.prompt_tokens_computed == 0
        assert not both.decode.counts.failed
        assert not both.prefill.counts.failed
    print(f"largest logprob difference: {largest:.1e}")
    assert largest < tolerance


def difference(answers: list[Request], wanted: tuple[Request, ...]) -> float:
    """The largest between logprobs of one token."""
    pairs = zip(answers, wanted, strict=True)
    return max(abs(a - b) for one, two in pairs for a, b in zip(one.logprobs, two.logprobs, strict=True))


def sizes(tps: tuple[int, int], pps: tuple[int, int], draft: bool) -> tuple[EngineOptions, EngineOptions]:
    both = [replace(BASE, tp=tp, pp=pp, draft=draft) for tp, pp in zip(tps, pps, strict=True)]
    return both[0], both[1]


def name(case: Any) -> str:
    tps, pps, draft, backend = case
    return f"tp{tps[0]}-{tps[1]} pp{pps[0]}-{pps[1]} {'draft ' if draft else ''}{backend}"


@pytest.mark.parametrize("case", SUBSET, ids=name)
def test_pairwise(case: Any) -> None:
    tps, pps, draft, backend = case
    check_parity(*sizes(tps, pps, draft), backend)


@pytest.mark.matrix
@pytest.mark.timeout(600)
@pytest.mark.parametrize("case", FULL, ids=name)
def test_full(case: Any) -> None:
    tps, pps, draft, backend = case
    check_parity(*sizes(tps, pps, draft), backend, LOADS)


@pytest.mark.parametrize("page_size", [16, 32])
def test_float32_pair_equals_float32_alone(page_size: int) -> None:
    options = replace(BASE, dtype="float32", page_size=page_size)
    check_parity(replace(options, tp=2), options, "memory", tolerance=1e-4)


def test_four_attention_dp_groups_of_one_rank_feed_four_ranks() -> None:
    """Fails if a room is looked for at another group's ranks than those that computed it."""
    check_parity(replace(BASE, tp=4, dp=4), replace(BASE, tp=4), "mooncake")


def test_a_reused_prefix_moves_like_a_computed_one() -> None:
    """Fails if the rings or the slot that are sent are those of the prompt that the prefix was taken from."""
    shared = prompts(1, 128, seed=3)[0]
    batch = tuple(shared + tail for tail in prompts(3, 10, 90, seed=4))
    prefill, decode = (replace(BASE, draft=True, tp=tp) for tp in (2, 1))
    with pair(replace(prefill, prefix_tokens=1024), decode, backend="mooncake") as both:
        answers = both.run(batch, Load(batch, 24, 1).sampling, 1)
        assert both.prefill.counts.prompt_tokens_cached == 2 * 128
    wanted = expected(decode, Load(batch, 24, 1))
    assert [result(answer) for answer in answers] == [result(one) for one in wanted]


@pytest.mark.parametrize(("tps", "pps"), [((1, 1), (2, 1)), ((2, 4), (2, 1)), ((4, 2), (1, 1))])
def test_latent_model(tps: tuple[int, int], pps: tuple[int, int]) -> None:
    """KDA conv state lies row by row, the latent in two buffer groups, and stages pair by layer id."""
    prefill, decode = (replace(side, model="builtin:tiny-mla") for side in sizes(tps, pps, False))
    check_parity(prefill, decode, "mooncake")


def without_sub_blocks(prefill: Manifest, decode: Manifest) -> Plan:
    """A planner that takes the conv state cat(q, k, v) for one axis."""

    def entry(one: Entry) -> Entry:
        if one.tensor != "conv":
            return one
        total = sum(group.heads * group.width for group in one.groups)
        return Entry(**{**fields(one), "groups": (Group(4, total // 4),)})

    def stage(one: Stage) -> Stage:
        components = [Component(c.kind, c.index_space, tuple(map(entry, c.entries))) for c in one.components]
        return Stage(one.pp_rank, one.layers, tuple(components))

    flat = [Manifest(**{**fields(side), "stages": tuple(map(stage, side.stages))}) for side in (prefill, decode)]
    return make_plan(*flat)


def without_repeated_heads(prefill: Manifest, decode: Manifest) -> Plan:
    """A planner that deals two heads out to four ranks in turn, instead of to neighbours."""
    plan = make_plan(prefill, decode)
    kinds = np.array([pair.kind == "kv" for pair in plan.pairs])[plan.columns.pair]
    swapped = np.array([0, 2, 1, 3])
    columns = replace(plan.columns, dst_tp=np.where(kinds, swapped[plan.columns.dst_tp], plan.columns.dst_tp))
    return replace(plan, columns=columns)


def fields(struct: Any) -> dict[str, Any]:
    return {name: getattr(struct, name) for name in struct.__struct_fields__}


@pytest.fixture
def planner(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[Callable[[Manifest, Manifest], Plan]], None]]:
    """Replaces the planner of the sessions."""

    def use(broken: Callable[[Manifest, Manifest], Plan]) -> None:
        monkeypatch.setattr(session_work, "make_plan", broken)
        session_work.pair_plan.cache_clear()

    yield use
    session_work.pair_plan.cache_clear()


@pytest.mark.parametrize(
    ("broken", "tps"),
    [(without_sub_blocks, (2, 1)), (without_sub_blocks, (1, 4)), (without_repeated_heads, (1, 4))],
    ids=lambda value: getattr(value, "__name__", None),
)
def test_the_matrix_fails_where_a_rule_is_broken(planner: Any, broken: Any, tps: tuple[int, int]) -> None:
    planner(broken)
    with pytest.raises(AssertionError):
        check_parity(*sizes(tps, (1, 1), False), "memory", FEW[:1])
