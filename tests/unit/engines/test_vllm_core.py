"""vLLM's connector over the core, its two halves with an engine that is a stand-in: what is moved, and what is said."""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Transfer
from pdctl_transfer.plugins import vllm as plugin
from pdctl_transfer.plugins.vllm_core_ids import Kind, chosen, kinds
from pdctl_transfer.plugins.vllm_core_layout import held
from pdctl_transfer.plugins.vllm_core_scheduler import ROOM, room_of
from pdctl_transfer.plugins.vllm_core_worker import torch_copier
from pdctl_transfer.plugins.vllm_state import Way, state
from pdctl_transfer.session import SendHandle
from tests.unit.engines.vllm_engine import (
    BLOCKS,
    HEADS,
    TOKENS,
    WIDTH,
    Engine,
    MambaSpec,
    attention,
    delta_net,
    group,
    request,
    stand_in,
)

Made = Callable[..., Engine]
HYBRID_PAGE = 3 * 2048 + 4 * 128 * 128 * 4 + 1024
"""A page of the hybrid's state at TP 1, with a gap at its end."""


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Iterator[Made]:
    stand_in(monkeypatch)
    made: list[Engine] = []

    def make(*args: Any, **kwargs: Any) -> Engine:
        made.append(Engine(*args, **kwargs))
        return made[-1]

    yield make
    for one in made:
        one.close()


def dense(tp: int) -> list[Any]:
    return [[group((0, 1), attention(HEADS // tp))] for _ in range(tp)]


def hybrid(tp: int, *, taps_first: bool = False) -> list[Any]:
    """Two layers of recurrent state in a group each, one of attention: blocks tables of their own, pages shared."""
    page = HYBRID_PAGE // tp // 64 * 64
    state = delta_net(tp, page, taps_first=taps_first)
    return [[group((0,), state), group((2,), state), group((1,), attention(HEADS // tp, page))] for _ in range(tp)]


def steps(*engines: Engine, until: Callable[[], bool], timeout: float = 20.0) -> None:
    deadline = time.monotonic() + timeout
    while not until():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def handed(prefill: Engine, name: str, tokens: int, blocks: Sequence[Sequence[int]], engine: bool = False) -> Any:
    """A prompt that prefill has computed: what its answer tells decode."""
    one = request(name, tokens, do_remote_decode=True)
    prefill.scheduler.arrived(one)
    one.num_computed_tokens = one.num_prompt_tokens
    told = prefill.scheduler.prefilled(one, blocks, engine)
    assert told is not None
    return {"do_remote_prefill": True, "do_remote_decode": False, **told}


def finish(
    prefill: Engine, decode: Engine, timeout: float = 20.0
) -> tuple[list[set[str]], list[set[str]], list[set[str]]]:
    """Steps of both until all workers of both have reported once: sent, received, failed."""
    sent: list[set[str]] = [set() for _ in prefill.workers]
    received: list[set[str]] = [set() for _ in decode.workers]
    failed: list[set[str]] = [set() for _ in decode.workers]

    def one() -> bool:
        for mine, ended in zip(sent, prefill.step(), strict=True):
            mine |= ended.sent
        for mine, bad, ended in zip(received, failed, decode.step(), strict=True):
            mine |= ended.received
            bad |= ended.failed
        return all(sent) and all(received)

    steps(until=one, timeout=timeout)
    return sent, received, failed


def head(engine: Engine, layer: int, number: int) -> torch.Tensor:
    """All tokens of one of the model's heads, [kernel blocks, tokens, K and V], from whichever rank holds it."""
    each = HEADS // engine.tp
    return engine.caches[number // each][f"model.layers.{layer}.mixer"][:, number % each]


def paint(engine: Engine) -> None:
    """Other numbers in each head, token and layer."""
    for mine in engine.caches:
        for tensor in mine.values():
            if tensor.dtype == torch.float32:
                tensor.copy_(torch.randn(tensor.shape))
            else:
                tensor.copy_(torch.randint(-128, 127, tensor.shape, dtype=torch.int8))


@pytest.mark.parametrize("ratio", [1, 4])
@pytest.mark.parametrize(("here", "there"), [(1, 1), (1, 2), (2, 1), (2, 2)])
def test_each_head_comes_to_its_rank(engine: Made, here: int, there: int, ratio: int) -> None:
    """Blocks of the scheduler that the kernels take as several are cut as they lie: by head within each of those."""
    prefill, decode = engine("kv_producer", dense(here), ratio), engine("kv_consumer", dense(there), ratio)
    paint(prefill)
    mine, theirs = [7, 3, 4], [1, 9, 2]
    one = request("d", 2 * TOKENS + 5, **handed(prefill, "p", 2 * TOKENS + 5, [mine]))
    assert decode.scheduler.tokens_of(one) == 2 * TOKENS + 5
    decode.scheduler.allocated(one, [theirs], 2 * TOKENS + 5)
    assert finish(prefill, decode) == ([{"p"}] * here, [{"d"}] * there, [set()] * there)
    for layer in range(2):
        for number in range(HEADS):
            source, target = head(prefill, layer, number), head(decode, layer, number)
            shape = (BLOCKS, ratio, TOKENS // ratio, WIDTH)
            assert torch.equal(source.reshape(shape)[mine], target.reshape(shape)[theirs])
            others = [number for number in range(BLOCKS) if number not in theirs]
            assert not target.reshape(shape)[others].any()
    assert not prefill.scheduler.sending


@pytest.mark.parametrize("taps_first", [False, True])
@pytest.mark.parametrize(("here", "there"), [(1, 1), (1, 2), (2, 1)])
def test_recurrent_state_goes_with_its_own_block_table(engine: Made, here: int, there: int, taps_first: bool) -> None:
    """Two groups of the same kind have a slot each; a window is cut by q, k and v, the state by its heads."""
    prefill = engine("kv_producer", hybrid(here, taps_first=taps_first), model="tiny-qwen3-next")
    decode = engine("kv_consumer", hybrid(there, taps_first=taps_first), model="tiny-qwen3-next")
    for mine in prefill.caches:
        paint_states(mine)
    tokens = 2 * TOKENS
    one = request("d", tokens, **handed(prefill, "p", tokens, [[0, 5], [6], [2, 3]]))
    assert decode.scheduler.tokens_of(one) == tokens - 1
    decode.scheduler.allocated(one, [[8], [0, 9], [4, 1]], tokens - 1)
    assert finish(prefill, decode)[2] == [set()] * there
    for layer, source, target in ((0, 5, 8), (2, 6, 9)):
        assert torch.equal(window(prefill, layer, source, taps_first), window(decode, layer, target, taps_first))
        assert torch.equal(state_of(prefill, layer, source), state_of(decode, layer, target))
    for number in range(HEADS):
        assert torch.equal(head(prefill, 1, number)[[2, 3]], head(decode, 1, number)[[4, 1]])


@pytest.mark.parametrize("made", [dense, hybrid])
def test_torch_is_a_copier_over_the_engines_own_tensors(engine: Made, made: Any) -> None:
    """As on a GPU: each region a view that begins where it does, of a storage that many share."""
    one = engine("kv_consumer", made(1), model="tiny-llama" if made is dense else "tiny-qwen3-next")
    worker = one.workers[0]
    kinds_ = kinds(made(1)[0])
    side = plugin.side_of(worker._worker, "mooncake")
    assert state.manifest is not None
    mine = held(state.manifest, side, kinds_, made(1)[0], one.caches[0], BLOCKS, Transfer("mooncake"))
    copier = torch_copier(mine)
    assert tuple(copier.regions) == mine.regions
    first = mine.regions[-1]  # the attention's, of which torch sees what the engine writes
    one.caches[0]["model.layers.1.mixer"][0, 0, 0, 0] = 1.5
    assert copier._bytes[-1][:4].view(torch.float32).item() == 1.5  # type: ignore[attr-defined]
    assert copier._bytes[-1].numel() == first.nbytes  # type: ignore[attr-defined]


def parts(
    engine: Engine, layer: int, slot: int, taps_first: bool = False
) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """Window [channels, taps] and state [heads, 128, 128] of each rank."""
    for mine in engine.caches:
        page = mine[f"model.layers.{layer}.mixer"][slot].flatten()
        channels, heads = 1024 // engine.tp, 4 // engine.tp
        cut = channels * 3 * 2
        conv = page[:cut].clone().view(torch.bfloat16)
        yield (
            conv.view(3, channels).T if taps_first else conv.view(channels, 3),
            page[cut : cut + heads * 65536].clone().view(torch.float32).view(heads, 128, 128),
        )


def window(engine: Engine, layer: int, slot: int, taps_first: bool) -> torch.Tensor:
    """The model's whole window: q of all ranks, then k, then v."""
    sizes = [256 // engine.tp, 256 // engine.tp, 512 // engine.tp]
    ranks = [conv.split(sizes) for conv, _ in parts(engine, layer, slot, taps_first)]
    return torch.cat([rank[part] for part in range(3) for rank in ranks])


def state_of(engine: Engine, layer: int, slot: int) -> torch.Tensor:
    return torch.cat([state for _, state in parts(engine, layer, slot)])


def paint_states(mine: dict[str, torch.Tensor]) -> None:
    """Small numbers, since a page is read as three types."""
    for tensor in mine.values():
        if tensor.dtype == torch.int8:
            tensor.copy_(torch.randint(0, 60, tensor.shape, dtype=torch.int8))


def test_what_decodes_prefix_cache_holds_is_not_moved(engine: Made) -> None:
    prefill, decode = engine("kv_producer", dense(1)), engine("kv_consumer", dense(2))
    paint(prefill)
    one = request("d", 3 * TOKENS, **handed(prefill, "p", 3 * TOKENS, [[7, 3, 4]]))
    decode.scheduler.allocated(one, [[1, 9, 2]], TOKENS)  # two blocks are here, one is to come
    assert finish(prefill, decode)[2] == [set(), set()]
    assert torch.equal(head(prefill, 0, 1)[4], head(decode, 0, 1)[2])
    assert not head(decode, 0, 1)[[1, 9]].any()


@pytest.mark.parametrize("how", ["full hit", "never scheduled"])
def test_a_room_that_decode_does_not_need_ends_as_no_failure(engine: Made, how: str) -> None:
    """At once: prefill's blocks are not kept until a lease is over."""
    prefill, decode = engine("kv_producer", dense(1)), engine("kv_consumer", dense(2))
    one = request("d", TOKENS, **handed(prefill, "p", TOKENS, [[7]]))
    if how == "full hit":
        decode.scheduler.allocated(one, [[1]], 0)
    else:
        decode.scheduler.ended(one)
    decode.step()
    sent: set[str] = set()
    steps(until=lambda: bool(sent.update(prefill.step()[0].sent) or sent))
    assert sent == {"p"}
    assert prefill.workers[0].counts.take() == {"withdrawn": 1, "codes": {}, "seconds": []}


def test_an_aborted_load_is_given_up_and_its_blocks_come_back(engine: Made) -> None:
    """VLLM keeps them until the worker says so, however the request ended."""
    prefill, decode = engine("kv_producer", dense(1)), engine("kv_consumer", dense(1))
    told = handed(prefill, "p", TOKENS, [[7]])
    orders = prefill.scheduler.orders()  # prefill is slow: it does not send yet
    one = request("d", TOKENS, **told)
    decode.scheduler.allocated(one, [[1]], TOKENS)
    decode.step()
    decode.scheduler.ended(one)
    failed: set[str] = set()
    steps(until=lambda: bool(failed.update(decode.step()[0].failed) or failed))
    assert failed == {"d"}
    prefill.workers[0].follow(orders)


@pytest.mark.code("PD3150")
def test_two_ways_are_offered_and_the_blocks_reported_once(engine: Made) -> None:
    """By the core: the engine's own connector is made to forget them. By NIXL: the room is withdrawn."""
    prefill, decode = engine("kv_producer", dense(1)), engine("kv_consumer", dense(1))
    one = request("d", TOKENS, **handed(prefill, "by core", TOKENS, [[7]], engine=True))
    decode.scheduler.allocated(one, [[1]], TOKENS)
    assert finish(prefill, decode)[0] == [{"by core"}]
    assert prefill.dropped == ["by core"]
    assert state.ways["decode"] == Way("decode", "core")
    handed(prefill, "by nixl", TOKENS, [[7]], engine=True)
    assert prefill.step()[0].sent == set()
    sent = prefill.step(taken=["by nixl"])[0].sent
    steps(until=lambda: bool(sent.update(prefill.step()[0].sent) or sent))
    assert sent == {"by nixl"}
    assert (state.ways["decode"].way, state.ways["decode"].code) == ("engine", "PD3150")
    assert prefill.step(taken=["of the engine alone"])[0].sent == {"of the engine alone"}
    assert prefill.dropped == ["by core"]


def test_a_lease_of_the_engines_that_lapsed_leaves_the_room_open(engine: Made) -> None:
    prefill, decode = engine("kv_producer", dense(1)), engine("kv_consumer", dense(1))
    told = handed(prefill, "p", TOKENS, [[7]], engine=True)
    assert prefill.step()[0].sent == set()
    assert prefill.step(taken=["p"], lapsed=["p"])[0].sent == set()
    one = request("d", TOKENS, **told)
    decode.scheduler.allocated(one, [[1]], TOKENS)
    assert finish(prefill, decode) == ([{"p"}], [{"d"}], [set()])


def test_a_load_that_cannot_be_begun_fails_and_the_engine_lives(
    engine: Made, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A defect inside of ours costs the request."""
    decode = engine("kv_consumer", dense(1))

    def broken(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(decode.workers[0]._peer, "open", broken)
    params = {"do_remote_prefill": True, ROOM: "1", "pdctl_host": "127.0.0.1", "pdctl_port": 1, "pdctl_tokens": TOKENS}
    decode.scheduler.allocated(request("d", TOKENS, **params), [[1]], TOKENS)
    (ended,) = decode.step()
    assert (ended.received, ended.failed) == ({"d"}, {"d"})
    assert "PD4042" in caplog.text


def test_a_room_that_cannot_be_opened_keeps_no_blocks(engine: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """Unless the engine's own connector offers them, too: it says itself when they are free."""
    prefill = engine("kv_producer", dense(1))
    prefill.step()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(prefill.workers[0]._peer, "open", broken)
    handed(prefill, "p", TOKENS, [[7]])
    handed(prefill, "q", TOKENS, [[8]], engine=True)
    assert prefill.step()[0].sent == {"p"}
    assert prefill.step(taken=["q"])[0].sent == {"q"}


def test_decode_hears_at_once_of_a_room_that_cannot_be_opened(engine: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    """It would wait a minute for a room that never opens."""
    prefill, decode = engine("kv_producer", dense(1)), engine("kv_consumer", dense(1))
    prefill.step()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(prefill.workers[0]._peer, "open", broken)
    params = handed(prefill, "p", TOKENS, [[7]])
    prefill.step()
    decode.scheduler.allocated(request("d", TOKENS, **params), [[1]], TOKENS)
    failed: set[str] = set()
    steps(until=lambda: bool(failed.update(decode.step()[0].failed) or failed))
    assert decode.workers[0].counts.take()["codes"] == {"PD4042": 1}


def test_what_cannot_be_sent_fails_at_once(engine: Made, monkeypatch: pytest.MonkeyPatch) -> None:
    prefill = engine("kv_producer", dense(1))
    prefill.step()

    def broken(*_: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(SendHandle, "send", broken)
    handed(prefill, "p", TOKENS, [[7]])
    sent: set[str] = set()
    steps(until=lambda: bool(sent.update(prefill.step()[0].sent) or sent))
    assert prefill.workers[0].counts.take()["codes"] == {"PD4033": 1}


def test_prefill_leaves_the_last_token_to_a_recurrent_decode(engine: Made) -> None:
    prefill = engine("kv_producer", hybrid(1), model="tiny-qwen3-next")
    one = request("p", 40, do_remote_decode=True)
    for _ in range(2):  # again after a preemption: not again
        prefill.scheduler.arrived(one)
    assert (one.num_prompt_tokens, len(one.prompt_token_ids), len(one._all_token_ids), one.max_tokens) == (
        39,
        39,
        39,
        1,
    )
    alone = request("q", 1, do_remote_decode=True)
    prefill.scheduler.arrived(alone)
    assert alone.num_prompt_tokens == 1


def test_an_aborted_prefill_hands_nothing_over(engine: Made) -> None:
    prefill = engine("kv_producer", dense(1))
    one = request("p", TOKENS, do_remote_decode=True)
    one.status.name = "FINISHED_ABORTED"
    assert prefill.scheduler.prefilled(one, [[7]], False) is None
    assert not prefill.scheduler.sending


class TestIds:
    """Both sides count from the number of tokens alone."""

    @pytest.mark.parametrize("tokens", [1, 31, 32, 33, 95, 96, 97, 200])
    @pytest.mark.parametrize("held", [0, 32, 64])
    def test_a_window_begins_at_the_same_block_on_both_sides(self, tokens: int, held: int) -> None:
        kind = Kind("swa", 32, window=40)
        blocks = list(range(100, 108))
        all_of_them, none = kind.choose(blocks, tokens)
        rest, left_out = kind.choose(blocks, tokens, min(held, tokens // 32 * 32))
        assert none == 0
        assert all_of_them[left_out:] == rest
        first_seen = max(0, tokens - 40 + 1)
        assert all_of_them[0] == blocks[first_seen // 32]
        assert all_of_them[-1] == blocks[(tokens - 1) // 32]

    def test_a_recurrent_group_gives_its_running_slot(self) -> None:
        kind = Kind("mamba", 32, recurrent=True, scratch=2)
        assert kind.choose([0, 5, 6, 7], 100) == ([5], 0)
        assert kind.choose([5], 100) == ([5], 0)

    @pytest.mark.code("PD4020")
    def test_too_few_blocks_are_refused(self) -> None:
        with pytest.raises(TransferError, match="1 blocks hold no 33 tokens") as caught:
            Kind("kv", 32).choose([1], 33)
        assert caught.value.code == "PD4020"

    def test_groups_of_a_kind_have_names_of_their_own(self) -> None:
        assert [kind.name for kind in kinds(hybrid(1)[0])] == ["mamba", "mamba/1", "kv"]
        windows = [group((0,), attention(1, window=64)), group((1,), attention(1, window=128))]
        found = kinds(windows)
        assert [(kind.name, kind.window) for kind in found] == [("swa", 64), ("swa/1", 128)]
        ids, skip = chosen(found, [[1, 2, 3], [4, 5, 6]], 96, 64)
        assert (ids, skip) == ({"swa": [3], "swa/1": [6]}, {"swa": 1, "swa/1": 2})


class CircularBufferSpec(MambaSpec):
    """Another of the engine's."""


@pytest.mark.code("PD3147")
@pytest.mark.parametrize(
    ("spec", "why"),
    [
        (CircularBufferSpec(block_size=32), "CircularBufferSpec is none that the transfer core cuts"),
        (MambaSpec(block_size=32, tp_replicated=True), "every rank holds whole"),
    ],
)
def test_a_cache_that_is_not_understood_is_the_engines_own(spec: Any, why: str) -> None:
    with pytest.raises(TransferError, match=why) as caught:
        kinds([group((0,), spec)])
    assert caught.value.code == "PD3147"


@pytest.mark.parametrize(
    "params",
    [
        None,
        {},
        {"do_remote_prefill": True, "remote_engine_id": "e"},
        {"do_remote_prefill": True, ROOM: "zz", "pdctl_host": "h", "pdctl_port": 1, "pdctl_tokens": 1},
        {"do_remote_prefill": False, ROOM: "1", "pdctl_host": "h", "pdctl_port": 1, "pdctl_tokens": 1},
    ],
)
def test_params_without_a_room_are_not_the_cores(params: Any) -> None:
    assert room_of(params) is None
