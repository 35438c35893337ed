"""The core in SGLang, its pure parts: which way a pair goes, rows, memory, the desk at the bootstrap port, probes."""

import ctypes
import sys
import types
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
import torch

from pdctl_transfer.errors import TransferError
from pdctl_transfer.layout.manifest import Component, Entry, Group, Manifest, Parallel
from pdctl_transfer.plugins import sglang_attach, sglang_core, sglang_install, sglang_registry, sglang_shape
from pdctl_transfer.plugins.judge import judge
from pdctl_transfer.plugins.peer import Refusal
from pdctl_transfer.plugins.sglang_attach import copier_of, obstacle, options_of, regions_of
from pdctl_transfer.plugins.sglang_aux import Rows
from pdctl_transfer.plugins.sglang_manager import Held
from pdctl_transfer.plugins.sglang_registry import PATIENCE_S, Desk
from pdctl_transfer.plugins.sglang_table import ATTRIBUTES, KV_ARGS, Shape
from pdctl_transfer.plugins.sglang_ways import Offer, Way, Ways, choose, core_refusal
from pdctl_transfer.rules.core_limits import KINDS
from pdctl_transfer.session import Rank
from pdctl_transfer.session.bytes.copier import NumpyCopier
from pdctl_transfer.session.bytes.tensors import torch_copier
from pdctl_transfer.session.failure import Failure
from tests.unit.engines.test_sglang_plugin import layout

READY = Offer("ready", "127.0.0.1", 5)
NO = Refusal("PD1016", "conv is cut flat")


def chosen(core: Any = "auto", **given: Any) -> tuple[str, str] | None:
    facts = {"unequal_tp": False, "here": None, "offer": READY, "of_core": None, "of_engine": None} | given
    way = choose("p", core, **facts)
    return (way.way, way.code) if way else None


@pytest.mark.parametrize(
    ("core", "facts", "expected"),
    [
        pytest.param("engine", {}, ("engine", "PD3139"), marks=pytest.mark.code("PD3139")),
        pytest.param("pdctl", {}, ("core", "PD3138"), marks=pytest.mark.code("PD3138")),
        pytest.param("auto", {}, ("engine", "PD3135"), marks=pytest.mark.code("PD3135")),
        pytest.param("auto", {"unequal_tp": True}, ("core", "PD3136"), marks=pytest.mark.code("PD3136")),
        pytest.param("auto", {"of_engine": NO}, ("core", "PD3137"), marks=pytest.mark.code("PD3137")),
        pytest.param("pdctl", {"offer": None}, ("engine", "PD3130"), marks=pytest.mark.code("PD3130")),
        pytest.param("pdctl", {"of_core": NO}, ("engine", "PD3143"), marks=pytest.mark.code("PD3143")),
        ("pdctl", {"here": Refusal("PD3132", "HiSparse")}, ("engine", "PD3132")),
        ("pdctl", {"offer": Offer("off", code="PD3133", reason="dsa_tail")}, ("engine", "PD3133")),
        ("pdctl", {"offer": Offer("pending", "h", 5)}, None),
        ("auto", {"offer": Offer("pending", "h", 5)}, None),
    ],
)
def test_the_way_of_a_pair(core: str, facts: dict[str, Any], expected: tuple[str, str] | None) -> None:
    assert chosen(core, **facts) == expected


def mamba2(role: Any, tp: int) -> Manifest:
    """A conv state of Mamba2, which SGLang cuts as one flat axis."""
    groups = (Group(8, 16), Group(8, 4), Group(8, 4))
    units = sum(group.heads * group.width for group in groups) // tp
    conv = Entry(0, "conv", "split", 1, groups, 8, units * 8, engine_slices="flat")
    one = layout(role)
    kv = Entry(0, "k", "split", 32, (Group(8, 1),), 64, 32 * 64 * 8 // tp)
    stage = msgspec.structs.replace(
        one.stages[0], components=(Component("kv", "page", (kv,)), Component("mamba", "slot", (conv,)))
    )
    return msgspec.structs.replace(one, stages=(stage,), parallel=Parallel(attn_tp=tp))


def test_a_pair_that_only_the_engine_cuts_wrongly_is_the_cores() -> None:
    prefill, decode = mamba2("prefill", 1), mamba2("decode", 2)
    wrong = judge(prefill, decode)
    assert wrong is not None
    assert wrong.code == "PD1016"
    assert core_refusal(prefill, decode) is None


def test_what_fits_neither_way_is_refused_by_both() -> None:
    assert core_refusal(layout("prefill", page_size=64), layout("decode")) is not None


def test_a_choice_holds_until_it_is_forgotten_and_stays_visible(caplog: pytest.LogCaptureFixture) -> None:
    ways = Ways()
    way = Way("p", "core", "PD3136", "unequal")
    ways.keep(way, READY)
    ways.keep(way, READY)
    assert ways.registry("p") == ("127.0.0.1", 5)
    ways.forget("p")
    assert ways.registry("p") is None
    assert ways.shown() == [way]
    assert [record.message for record in caplog.records if "PD3136" in record.message] == [
        "pdctl plugin: PD3136: p by the core's way: unequal"
    ]


def test_only_what_was_not_found_is_asked_anew() -> None:
    ways, asked = Ways(), []

    def fetch(peer: str) -> Offer:
        asked.append(peer)
        return Offer("ready", "127.0.0.1", 6)

    ways.keep(Way("p", "core", "PD3136", "unequal"), READY)
    ways.doubt("p", Failure("PD4040", "checksums differ", "decode"))
    ways.renew("p", fetch)
    assert asked == []
    ways.doubt("p", Failure("PD4001", "refused", "prefill"))
    ways.renew("p", fetch)
    ways.renew("p", fetch)
    assert (asked, ways.registry("p")) == (["p"], ("127.0.0.1", 6))


# ---- the desk ----


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def desk(parallel: Parallel | None, *ranks: Rank) -> tuple[Desk, set[Rank], Clock]:
    here, clock = set(ranks), Clock()
    return Desk("127.0.0.1", 5, lambda: here, lambda: parallel, clock), here, clock


def test_the_core_is_offered_once_every_rank_is_there() -> None:
    one, here, _ = desk(Parallel(attn_tp=2, pp=2), Rank(0, 0), Rank(0, 1), Rank(1, 0))
    assert one.offer().state == "pending"
    assert one.offer().port == 5  # ranks find their registry by the same answer
    here.add(Rank(1, 1))
    assert one.offer().state == "ready"
    here.clear()
    assert one.offer().state == "ready"  # all ranks of a decode engine must hear the same


@pytest.mark.code("PD3141")
def test_ranks_that_do_not_come_turn_it_off_for_good() -> None:
    one, here, clock = desk(Parallel(attn_tp=2), Rank(0, 0))
    assert one.offer().state == "pending"
    clock.now = PATIENCE_S + 1
    assert (one.offer().state, one.offer().code) == ("off", "PD3141")
    here.add(Rank(0, 1))
    assert one.offer().state == "off"


def test_a_rank_without_a_core_turns_it_off() -> None:
    one, _, _ = desk(Parallel(attn_tp=1), Rank(0, 0))
    assert one.put(msgspec.json.encode(Refusal("PD3133", "dsa_tail\n\x1b[31m" + "x" * 999))) == 200
    assert (one.offer().state, one.offer().code) == ("off", "PD3133")
    assert one.offer().reason.startswith("dsa_tail[31mx")
    assert len(one.offer().reason) <= 300


@pytest.mark.parametrize("body", [b"", b"{}", b"[1]", b'{"code": "x", "text": "y"}'])
def test_what_is_no_word_of_a_rank_changes_nothing(body: bytes) -> None:
    one, _, _ = desk(Parallel(attn_tp=1), Rank(0, 0))
    assert one.put(body) == 400
    assert one.offer().state == "ready"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        ((404, b""), None),
        ((200, msgspec.json.encode(READY)), READY),
    ],
)
def test_the_desk_is_asked_over_http(monkeypatch: pytest.MonkeyPatch, answer: Any, expected: Any) -> None:
    monkeypatch.setattr(sglang_registry, "ask", lambda *_, **__: answer)
    assert sglang_registry.fetch("h:1") == expected


@pytest.mark.parametrize("answer", [(500, b""), (200, b"{}"), (200, b"\xff")])
def test_what_is_no_answer_of_a_desk_is_asked_again(monkeypatch: pytest.MonkeyPatch, answer: Any) -> None:
    monkeypatch.setattr(sglang_registry, "ask", lambda *_, **__: answer)
    with pytest.raises(sglang_registry.Unanswered):
        sglang_registry.fetch("h:1")


@pytest.mark.code("PD3134")
def test_an_engine_whose_server_has_no_registry_has_no_core(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sglang_registry, "ask", lambda *_, **__: (404, b""))
    with pytest.raises(TransferError, match="no route") as caught:
        sglang_registry.where("h:1")
    assert caught.value.code == "PD3134"


# ---- a rank's memory ----


def test_rows_come_back_as_they_were_and_no_other_row_is_touched() -> None:
    there = [np.arange(12, dtype=np.int32).reshape(3, 4), np.arange(6, dtype=np.float64).reshape(3, 2)]
    here = [np.zeros_like(one) for one in there]

    def rows(buffers: list[Any]) -> Rows:
        bases, lengths = [one.ctypes.data for one in buffers], [one.nbytes for one in buffers]
        return Rows(bases, lengths, [one[0].nbytes for one in buffers])

    rows(here).unpack(2, rows(there).pack(1))
    for mine, theirs in zip(here, there, strict=True):
        assert (mine[2] == theirs[1]).all()
        assert (mine[:2] == 0).all()
    with pytest.raises(IndexError):
        rows(here).pack(3)


@pytest.mark.parametrize("packed", [msgspec.msgpack.encode([b"1234"]), msgspec.msgpack.encode([b"12", b"34"]), b"\xc1"])
@pytest.mark.code("PD3142")
def test_rows_of_other_lengths_are_refused_and_nothing_is_written(packed: bytes) -> None:
    memory = (ctypes.c_uint8 * 8)()
    with pytest.raises(TransferError) as caught:
        Rows([ctypes.addressof(memory)], [8], [8]).unpack(0, packed)
    assert caught.value.code == "PD3142"
    assert bytes(memory) == bytes(8)


def test_regions_stand_in_the_order_of_the_entries_and_an_empty_one_has_no_items() -> None:
    args = SimpleNamespace(
        kv_data_ptrs=[100, 200],
        kv_data_lens=[64, 0],
        kv_item_lens=[16, 0],
        state_data_ptrs=[[300], [400]],
        state_data_lens=[[32], [8]],
        state_item_lens=[[32], [4]],
    )
    found = [(one.base, one.items, one.item_len) for one in regions_of(args)]
    assert found == [(100, 4, 16), (200, 0, 0), (300, 1, 32), (400, 2, 4)]


def pools() -> tuple[Any, Any, list[torch.Tensor]]:
    """What an engine registered, its queue, and the tensors of the buffers: KV by layer, one of them not there, and
    state with the layers one after the other in one tensor."""
    k, v, state = torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(4, 16, dtype=torch.uint8), torch.zeros(2, 3, 8)
    layers = [state[0], state[1]]
    args = SimpleNamespace(
        kv_data_ptrs=[k.data_ptr(), v.data_ptr(), 0],
        kv_data_lens=[64, 64, 0],
        kv_item_lens=[16, 16, 0],
        state_data_ptrs=[[layer.data_ptr() for layer in layers]],
        state_data_lens=[[96, 96]],
        state_item_lens=[[32, 32]],
    )
    mamba = SimpleNamespace(mamba_cache=SimpleNamespace(temporal=state))
    scheduler = SimpleNamespace(
        server_args=SimpleNamespace(device="cuda"), req_to_token_pool=SimpleNamespace(mamba_pool=mamba)
    )
    pool = SimpleNamespace(k_buffer=[k], v_buffer=[v])
    return (
        args,
        SimpleNamespace(scheduler=scheduler, token_to_kv_pool=pool, draft_token_to_kv_pool=None),
        [k, v, *layers],
    )


def test_torch_copies_on_a_device_in_the_tensors_of_the_engines_pools(monkeypatch: pytest.MonkeyPatch) -> None:
    """By their addresses alone torch would not know to which allocation they belong."""
    args, queue, tensors = pools()
    asked = []

    def here(found: Any, regions: Any, device: str) -> Any:
        asked.append(device)
        return torch_copier(found, regions)  # as on a device, of tensors on the CPU

    monkeypatch.setattr(sglang_attach, "copier_for", here)
    copier: Any = copier_of(args, queue)
    assert asked == ["cuda"]
    assert copier.regions == tuple(regions_of(args))
    held = [one for one in copier._bytes if one.numel()]
    assert [one.data_ptr() for one in held] == [one.data_ptr() for one in tensors]
    assert [one.untyped_storage().data_ptr() for one in held] == [one.untyped_storage().data_ptr() for one in tensors]


@pytest.mark.code("PD2310")
def test_a_buffer_that_is_no_tensors_of_the_engine_leaves_it_without_a_core(monkeypatch: pytest.MonkeyPatch) -> None:
    args, queue, _ = pools()
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    with pytest.raises(TransferError, match="region 0 should lie on cuda:0, its tensor lies on cpu"):
        copier_of(args, queue)
    monkeypatch.setattr(sglang_attach, "copier_for", lambda found, regions, _: torch_copier(found, regions))
    del queue.scheduler.req_to_token_pool
    with pytest.raises(TransferError, match="no tensor holds region 3") as caught:
        copier_of(args, queue)
    assert caught.value.code == "PD2310"


def test_on_the_cpu_numpy_copies() -> None:
    args, queue, _ = pools()
    queue.scheduler.server_args.device = "cpu"
    copier = copier_of(args, queue)
    assert isinstance(copier, NumpyCopier)
    assert copier.regions == tuple(regions_of(args))


def test_timeouts_are_the_engines_own_unless_the_operator_said_others() -> None:
    manager = SimpleNamespace(local_ip="10.0.0.5", bootstrap_timeout=300, waiting_timeout=200)
    plain = options_of(manager, "decode", {})
    assert (plain.host, plain.bootstrap_s, plain.waiting_s) == ("10.0.0.5", 200, 200)
    said = options_of(manager, "prefill", {"PDCTL_CORE_OPTIONS": '{"waiting_s": 7, "host": "127.0.0.1"}'})
    assert (said.host, said.bootstrap_s, said.waiting_s) == ("127.0.0.1", 300, 7)


def test_a_room_that_is_used_again_does_not_let_go_of_the_older_request() -> None:
    held, older, newer = Held(), SimpleNamespace(reusable=False), SimpleNamespace(reusable=True)
    held.hold(7, older)  # type: ignore[arg-type]
    held.hold(7, newer)  # type: ignore[arg-type]
    assert not held.free(7)
    held.let_go(7)
    assert held.knows(7)
    older.reusable = True
    assert held.free(7)
    held.let_go(7)
    assert not held.knows(7)


def rank(**changes: Any) -> tuple[Any, Any]:
    """A manager and its queue, of an engine that the core knows all of."""
    args = SimpleNamespace(**dict.fromkeys(KV_ARGS, ()), host_kv_data_ptrs=None)
    args.state_types = list(changes.pop("state_types", ()))
    manager = SimpleNamespace(**dict.fromkeys(ATTRIBUTES, 1))
    manager.engine = SimpleNamespace(engine=None, session_id="")
    manager.kv_args, manager.defer_decode_allocation, manager.enable_staging = args, False, False
    scheduler = SimpleNamespace(enable_hisparse=False, server_args=SimpleNamespace(device="cpu"))
    for name, value in changes.items():
        owner = next(one for one in (manager, args, scheduler, scheduler.server_args) if hasattr(one, name))
        setattr(owner, name, value)
    rows = SimpleNamespace(output_ids=SimpleNamespace(device=SimpleNamespace(type="cpu")))
    return manager, SimpleNamespace(scheduler=scheduler, metadata_buffers=rows)


@pytest.fixture
def tcp(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MC_FORCE_TCP", "1")


@pytest.mark.usefixtures("tcp")
def test_a_rank_that_the_core_knows_all_of_has_no_obstacle() -> None:
    kinds = sorted(KINDS - {"kv"})
    assert obstacle(*rank(state_types=[SimpleNamespace(value=kind) for kind in kinds]), "prefill", "mooncake") is None
    assert obstacle(*rank(pp_size=2), "prefill", "mooncake") is None


@pytest.mark.usefixtures("tcp")
@pytest.mark.code("PD3132")
@pytest.mark.parametrize(
    "changes",
    [
        {"attn_cp_size": 2},
        {"dcp_size": 2},
        {"kv_shard_size": 2},
        {"system_dp_size": 2},
        {"pp_size": 2},
        {"defer_decode_allocation": True},
        {"enable_staging": True},
        {"enable_hisparse": True},
        {"host_kv_data_ptrs": [1]},
        {"device": "npu"},
    ],
)
def test_a_setting_that_the_core_does_not_know_is_an_obstacle(changes: dict[str, Any]) -> None:
    found = obstacle(*rank(**changes), "decode", "mooncake")
    assert found is not None
    assert found.code == "PD3132"


@pytest.mark.code("PD3133")
def test_a_kind_whose_indices_are_no_ids_is_an_obstacle() -> None:
    found = obstacle(*rank(state_types=["mamba", "dsa_tail"]), "decode", "mooncake")
    assert found is not None
    assert (found.code, found.text.partition(":")[0]) == ("PD3133", "dsa_tail")


def test_another_transport_than_the_core_knows_is_an_obstacle(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MC_FORCE_TCP", raising=False)
    monkeypatch.setenv("MOONCAKE_PROTOCOL", "efa")
    found = obstacle(*rank(), "prefill", "mooncake")
    assert found is not None
    assert found.text == "Mooncake over efa"


@pytest.mark.code("PD3131")
def test_a_manager_without_an_attribute_is_an_obstacle() -> None:
    manager, queue = rank()
    del manager.kv_shard_size
    found = obstacle(manager, queue, "prefill", "mooncake")
    assert found is not None
    assert (found.code, found.text) == ("PD3131", "the manager has no kv_shard_size")


# ---- the engine's shape ----


@pytest.fixture
def module(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    made = types.ModuleType("an_engine")

    class Manager:
        def taken(self, room: int, *, force: bool = False) -> None: ...
        def called(self, room: int, more: int = 0) -> None: ...
        def grown(self, room: int, needed: int) -> None: ...

    made.Manager, made.function = Manager, lambda backend, kind: None  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "an_engine", made)
    return made


@pytest.mark.usefixtures("module")
@pytest.mark.parametrize(
    ("shape", "fault"),
    [
        (Shape("an_engine", "Manager", {"taken": ("room", "force")}, {"called": ("room",)}), ""),
        (Shape("an_engine", "", {"function": ("backend", "kind")}), ""),
        (Shape("an_engine", "Manager", {"called": ("room",)}), "takes (room, more), not (room)"),
        (Shape("an_engine", "Manager", {"taken": ("room",)}), "takes (room, force), not (room)"),
        (Shape("an_engine", "Manager", calls={"grown": ("room",)}), "takes (room, needed), not (room)"),
        (Shape("an_engine", "Manager", calls={"gone": ()}), "is not there"),
        (Shape("an_engine", "Sender", calls={"poll": ()}), "no an_engine.Sender"),
        (Shape("no_engine_at_all", "Manager"), "no_engine_at_all"),
    ],
)
def test_a_shape_is_held_against_the_installed_engine(shape: Shape, fault: str) -> None:
    """A parameter more that the engine gives would be swallowed in silence: so what it calls must be exactly that."""
    found = list(sglang_shape._faults(shape))
    assert (found == []) == (fault == "")
    assert all(fault in one for one in found)


def test_an_engine_of_another_shape_keeps_its_classes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_CORE", "pdctl")
    monkeypatch.setattr(sglang_core, "classes", lambda _: Refusal("PD3131", "no such method"))
    backend, kind = SimpleNamespace(value="mooncake"), SimpleNamespace(value="manager")
    assert sglang_core.get_kv_class(lambda *_: "theirs", backend, kind) == "theirs"


@pytest.mark.parametrize(
    ("core", "backend", "kind", "expected"),
    [
        ("pdctl", "mooncake", "manager", "ours"),
        ("auto", "mooncake", "receiver", "ours"),
        ("auto", "nixl", "receiver", "theirs"),
        ("pdctl", "mori", "manager", "theirs"),
        ("engine", "mooncake", "manager", "theirs"),
        ("pdctl", "fake", "sender", "theirs"),
        ("pdctl", "mooncake", "bootstrap_server", "theirs"),
        ("pdctl", "mooncake", "kvargs", "theirs"),
    ],
)
def test_the_classes_that_the_engine_is_given(
    monkeypatch: pytest.MonkeyPatch, core: str, backend: str, kind: str, expected: str
) -> None:
    monkeypatch.setenv("PDCTL_CORE", core)
    ours: Any = sglang_core.Classes("ours", "ours", "ours")  # type: ignore[arg-type]
    monkeypatch.setattr(sglang_core, "classes", lambda _: ours)
    named = SimpleNamespace(value=backend), SimpleNamespace(value=kind)
    assert sglang_core.get_kv_class(lambda *_: "theirs", *named) == expected


def test_a_defect_while_the_core_is_attached_leaves_the_engine_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    class Manager:
        pass

    def breaks(*_: Any) -> None:
        raise KeyError("a defect")

    classes = sglang_core.Classes(Manager, object, object)
    monkeypatch.setattr(sglang_install, "classes", lambda _: classes)
    monkeypatch.setattr(sglang_attach, "obstacle", lambda *_: None)
    monkeypatch.setattr(sglang_attach, "attach", breaks)
    found = sglang_install._attached(Manager(), None, layout("decode"), "")
    assert found == Refusal("PD3134", "KeyError: 'a defect'")
    found = sglang_install._attached(object(), None, layout("decode"), "")
    assert found == Refusal("PD3134", "the engine's manager is a object")


def test_a_backend_that_the_core_does_not_know_keeps_its_classes() -> None:
    assert sglang_core.classes("nixl") == Refusal("PD3132", "the transfer backend nixl")


@pytest.mark.code("PD3144")
def test_a_prefill_with_a_core_says_that_both_ways_are_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_CORE", "auto")
    monkeypatch.setattr(sglang_install, "_attached", lambda *_: None)
    state = sglang_install.sglang_state.State()
    state.manifest = layout("prefill")
    monkeypatch.setattr(sglang_install.sglang_state, "state", state)
    sglang_install.install(SimpleNamespace(), None, "h:1")
    assert [(way.peer, way.way, way.code) for way in state.ways.shown()] == [("*", "core", "PD3144")]
