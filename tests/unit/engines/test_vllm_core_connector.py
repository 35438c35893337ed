"""`PdctlConnector` over stand-ins of vLLM's classes: who is asked, what it is when ours may not be, what it counts."""

import sys
from collections.abc import Iterator
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import pytest

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins import vllm as plugin
from pdctl_transfer.plugins import vllm_core, vllm_core_connector, vllm_core_engine, vllm_core_shape
from pdctl_transfer.plugins.vllm_core_connector import Connector
from pdctl_transfer.plugins.vllm_core_in_scheduler import Said
from pdctl_transfer.plugins.vllm_core_scheduler import HOST, PORT, ROOM, TOKENS
from pdctl_transfer.plugins.vllm_core_settings import settings
from pdctl_transfer.plugins.vllm_core_shape import ABSTRACT, BASE, FACTORY, METHODS, NAMES, RESULTS, deviation
from pdctl_transfer.plugins.vllm_core_stats import OF_CORE, OF_ENGINE, Counts, Prom, Stats, added
from pdctl_transfer.session.failure import Failure
from pdctl_transfer.session.life import Handle
from tests.unit.engines.vllm_engine import attention, group, request

ROOMED = {ROOM: "5", HOST: "127.0.0.1", PORT: 1, TOKENS: 32}
READABLE = {"remote_engine_id": "e", "remote_request_id": "r", "remote_host": "h", "remote_port": 1}


class Base:
    """What ours takes from vLLM's base class."""

    def __init__(self, vllm_config: Any, role: Any, kv_cache_config: Any) -> None:
        self._connector_metadata: Any = None


class Nixl:
    """NIXL's connector: it says what it was asked."""

    def __init__(self, *_: Any) -> None:
        self.asked: list[str] = []
        self.connector_worker = SimpleNamespace(
            _reqs_to_send={"old": 0.0, "new": 1e18}, _reqs_to_process={"new"}, consumer_notification_counts_by_req={}
        )

    def request_finished_all_groups(self, one: Any, _: Any) -> tuple[bool, dict[str, Any] | None]:
        self.asked.append("request_finished")
        return True, {"do_remote_prefill": True, "do_remote_decode": False, **READABLE}

    def get_num_new_matched_tokens(self, one: Any, computed: int) -> tuple[int, bool]:
        self.asked.append("get_num_new_matched_tokens")
        return 7, True

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_: self.asked.append(name)


def made(role: str = "kv_producer", pdctl: dict[str, Any] | None = None, **parallel: Any) -> Any:
    config = SimpleNamespace(
        kv_transfer_config=SimpleNamespace(kv_role=role, kv_connector_extra_config={"pdctl": pdctl or {}}),
        parallel_config=SimpleNamespace(data_parallel_index=0, **parallel),
        model_config=SimpleNamespace(use_mla=False),
        num_prefill_lookahead_tokens=1,
    )
    groups = [group((0,), attention(1))]
    caches = SimpleNamespace(transfer_groups=groups, transfer_group_ids=(0,), select_transfer_block_ids=tuple)
    kind = type("PdctlConnector", (Connector, Base), {})
    return kind(config, SimpleNamespace(name="SCHEDULER"), caches)


@pytest.fixture
def beside(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vllm_core_engine, "kind", lambda: Nixl)


@pytest.fixture
def producer(beside: None) -> Iterator[Any]:
    one = made()
    yield one
    one.shutdown()


def test_a_producer_offers_both_ways(producer: Any) -> None:
    keep, told = producer.request_finished_all_groups(request("p", 32, do_remote_decode=True), ([3],))
    assert keep
    assert told[HOST] == "127.0.0.1"
    assert told[PORT] > 0
    assert int(told[ROOM], 16) >= 0
    assert {name: told[name] for name in READABLE} == READABLE
    assert producer.has_pending_push_work()
    orders = producer.build_connector_meta(None)
    assert orders.send["p"].engine
    output = SimpleNamespace(finished_sending={"p"}, finished_recving=None)
    producer.update_connector_output(output)
    assert not producer.has_pending_push_work()


def test_decode_takes_the_cores_way_where_it_is_offered(beside: None) -> None:
    decode = made("kv_consumer")
    one = request("d", 32, do_remote_prefill=True, **ROOMED, **READABLE)
    decode.on_new_request(one)
    assert decode.get_num_new_matched_tokens(one, 0) == (32, True)
    decode.update_state_after_alloc(one, SimpleNamespace(get_block_ids=lambda: ([4],)), 32)
    assert decode._engine.connector.asked == []
    orders = decode.build_connector_meta(None)
    assert orders.load["d"].room == 5
    assert [(way.peer, way.way) for way in orders.ways] == [("127.0.0.1:1", "core")]


@pytest.mark.code("PD3149")
def test_decode_takes_nixls_way_where_prefill_has_no_core(beside: None) -> None:
    decode = made("kv_consumer")
    one = request("d", 32, do_remote_prefill=True, **READABLE)
    decode.on_new_request(one)
    assert decode.get_num_new_matched_tokens(one, 0) == (7, True)
    decode.update_state_after_alloc(one, None, 7)
    asked = ["on_new_request", "get_num_new_matched_tokens", "update_state_after_alloc"]
    assert decode._engine.connector.asked == asked
    orders = decode.build_connector_meta(None)
    assert orders.load == {}
    assert [(way.peer, way.way, way.code) for way in orders.ways] == [("h:1", "engine", "PD3149")]
    assert decode.build_connector_meta(None).ways == []


def test_a_worker_whose_core_moves_nothing_turns_the_cores_way_off(producer: Any) -> None:
    producer.set_xfer_handshake_metadata_pp_aware({(0, 0): Said("", "payload"), (0, 1): Said("PD3147: why", "payload")})
    _, told = producer.request_finished_all_groups(request("p", 32, do_remote_decode=True), ([3],))
    assert ROOM not in told
    assert told["remote_engine_id"] == "e"


@pytest.mark.code("PD3147")
@pytest.mark.parametrize(
    "wrong", [{"role": "kv_both"}, {"pipeline_parallel_size": 2}, {"decode_context_parallel_size": 2}]
)
def test_what_the_core_does_not_know_goes_by_nixl(beside: None, wrong: dict[str, Any], caplog: Any) -> None:
    one = made(**wrong)
    assert one._core is None
    assert "PD3147" in caplog.text
    _, told = one.request_finished_all_groups(request("p", 32, do_remote_decode=True), ([3],))
    assert ROOM not in told
    with pytest.raises(TransferError) as caught:  # and without NIXL beside it the engine does not start
        made(pdctl={"fallback": False}, **wrong)
    assert caught.value.code == "PD3147"


def test_a_decode_whose_core_moves_nothing_says_why(beside: None) -> None:
    decode = made("kv_consumer", pipeline_parallel_size=2)
    one = request("d", 32, do_remote_prefill=True, **ROOMED, **READABLE)
    decode.update_state_after_alloc(one, None, 7)
    (way,) = decode.build_connector_meta(None).ways
    assert (way.way, way.code, way.reason) == ("engine", "PD3147", "pipeline_parallel_size is 2")


def test_what_vllm_prepares_for_nixl_by_name_it_prepares_for_ours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Such as the order in which a recurrent window is kept on CPU, which NIXL's connector needs."""

    class KVTransferConfig(SimpleNamespace):
        def has_connector(self, name: str) -> bool:
            return bool(self.kv_connector == name)

    for name in ("vllm", "vllm.config", "vllm.config.kv_transfer"):
        monkeypatch.setitem(sys.modules, name, ModuleType(name))
    sys.modules["vllm.config.kv_transfer"].KVTransferConfig = KVTransferConfig  # type: ignore[attr-defined]
    for _ in range(2):
        plugin._wrap_names()
    ours = KVTransferConfig(kv_connector="PdctlConnector")
    assert ours.has_connector("NixlConnector")
    assert not ours.has_connector("MooncakeConnector")
    assert not KVTransferConfig(kv_connector="MooncakeConnector").has_connector("NixlConnector")


def test_nixls_worker_forgets_what_the_core_took(beside: None) -> None:
    one = made("kv_consumer")._engine
    assert one.lapsed() == {"old"}
    one.drop("new")
    assert one.connector.connector_worker._reqs_to_send == {"old": 0.0}
    assert one.connector.connector_worker._reqs_to_process == set()


@pytest.mark.code("PD3148")
def test_without_nixl_the_cores_way_is_the_only_one(caplog: Any) -> None:
    """As here, where no vLLM is installed."""
    vllm_core_engine.kind.cache_clear()
    one = made()
    try:
        assert "PD3148" in caplog.text
        keep, told = one.request_finished_all_groups(request("p", 32, do_remote_decode=True), ([3],))
        assert keep
        assert set(told) == {"do_remote_prefill", "do_remote_decode", ROOM, HOST, PORT, TOKENS}
    finally:
        one.shutdown()


@pytest.mark.code("PD3145")
@pytest.mark.parametrize(
    ("extra", "why"),
    [
        ({"pdctl": {"registry_prot": 1}}, "pdctl.registry_prot: no such setting"),
        ({"pdctl": {"fabric": "pigeon"}}, "pdctl: Invalid enum value 'pigeon'"),
        ({"pdctl": 5}, "pdctl: Expected"),
    ],
)
def test_a_setting_that_is_none_is_refused(extra: dict[str, Any], why: str) -> None:
    with pytest.raises(TransferError, match=why) as caught:
        settings(extra).options()
    assert caught.value.code == "PD3145"


def test_settings_reach_the_session() -> None:
    with pytest.raises(TransferError, match="verify_: no option of the core") as caught:
        settings({"pdctl": {"session": {"verify_": "none"}}}).options()
    assert caught.value.code == "PD4019"
    given = settings({"pdctl": {"registry_host": "10.0.0.5", "session": {"verify": "full", "advertise": "a.b"}}})
    options = given.options()
    assert (options.host, options.verify, given.told) == ("10.0.0.5", "full", "a.b")
    assert settings({}).options().host == "127.0.0.1"


# ---- the shape of the engine ----


@pytest.fixture
def engine(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Modules of the probed shape, and the class that would serve in ours' place."""
    modules = {name: ModuleType(name) for name in NAMES}
    for name, module in modules.items():
        for attribute in NAMES.get(name, ()):
            setattr(module, attribute, SimpleNamespace(P2P="p2p"))
    for importer in (vllm_core, vllm_core_shape):
        monkeypatch.setattr(importer, "import_module", lambda name: modules[name])
    body: dict[str, Any] = {}
    for name, arguments in METHODS.items():
        words = ", ".join(("self", *arguments))
        body[name] = eval(f"lambda {words}: None")
    base: Any = modules[BASE]
    base.KVConnectorBase_V1 = type("KVConnectorBase_V1", (), {**body, "__abstractmethods__": ABSTRACT})
    base.SupportsHMA = type("SupportsHMA", (), {"__abstractmethods__": frozenset()})
    base.KVConnectorTransferResults = SimpleNamespace(__dataclass_fields__=dict.fromkeys(RESULTS))
    factory: Any = modules[FACTORY]
    factory.KVConnectorFactory = SimpleNamespace(get_connector_class_by_name=lambda name: type(name, (), {}))
    vllm_core.chosen.cache_clear()
    yield base
    vllm_core.chosen.cache_clear()


def test_an_engine_of_the_probed_shape_gets_ours(engine: Any) -> None:
    assert deviation() == ""
    assert issubclass(vllm_core.PdctlConnector, Connector)


@pytest.mark.code("PD3146")
@pytest.mark.parametrize("how", ["an argument", "a duty", "a result", "a method"])
def test_an_engine_of_another_shape_gets_its_own(engine: Any, how: str, caplog: Any) -> None:
    known = engine.KVConnectorBase_V1
    if how == "an argument":
        known.start_load_kv = lambda self, context, stream: None
    elif how == "a duty":
        known.__abstractmethods__ = ABSTRACT | {"drain"}
    elif how == "a result":
        engine.KVConnectorTransferResults = SimpleNamespace(__dataclass_fields__={"sent": None})
    else:
        del known.on_new_request
    assert vllm_core.PdctlConnector.__name__ == "NixlConnector"
    assert "PD3146" in caplog.text


def test_turned_off_it_is_nixls(engine: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_PLUGIN", "off")
    assert vllm_core.PdctlConnector.__name__ == "NixlConnector"


# ---- what is counted ----


def over(state: str, code: str = "") -> Handle:
    handle = Handle(1, lambda _: None, "decode")
    if code:
        handle.life.fail(Failure(code, "why", "prefill"))
    else:
        handle.life.advance("waiting")
        handle.life.advance("confirmed")
    assert handle.state == state
    return handle


def counts() -> dict[str, Any]:
    one = Counts()
    for handle in (over("confirmed"), over("confirmed"), over("withdrawn", "PD4035"), over("failed", "PD4004")):
        one.over(handle)
    return one.take()


def test_figures_of_two_workers_are_one(beside: None) -> None:
    assert Counts().take() == {}
    stats = Stats({OF_CORE: counts()}, None).aggregate(Stats({OF_CORE: counts()}, None))
    line = stats.reduce()
    assert (line["core confirmed"], line["core withdrawn"], line["core failed"], line["core PD4004"]) == (4, 2, 2, 2)
    assert not stats.is_empty()
    assert Stats().is_empty()
    assert added({}, counts())["confirmed"] == 2


class Theirs:
    """Figures of NIXL's connector."""

    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data

    @classmethod
    def build_kv_connector_stats(cls, data: dict[str, Any]) -> "Theirs":
        return cls(data)

    def is_empty(self) -> bool:
        return not self.data["n"]

    def aggregate(self, other: "Theirs") -> "Theirs":
        return Theirs({"n": self.data["n"] + other.data["n"]})

    def reduce(self) -> dict[str, int]:
        return {"nixl": self.data["n"]}


def test_figures_of_nixls_connector_stand_beside_them() -> None:
    stats = Stats({OF_ENGINE: {"n": 2}}, Theirs).aggregate(Stats({OF_ENGINE: {"n": 3}, OF_CORE: counts()}, Theirs))
    assert stats.reduce()["nixl"] == 5
    assert stats.reduce()["core confirmed"] == 2
    assert stats.to_dict() == stats.data


class Metric:
    """A counter or a histogram of Prometheus'."""

    seen: ClassVar[dict[tuple[Any, ...], float]] = {}

    def __init__(self, name: str, labelnames: list[str], **_: Any) -> None:
        self.name, self.count, self.given = name, len(labelnames), ()

    def labels(self, *values: str) -> "Metric":
        assert len(values) == self.count
        self.given = values
        return self

    def inc(self, value: float) -> None:
        key = (self.name, *self.given)
        self.seen[key] = self.seen.get(key, 0.0) + value

    def observe(self, _: float) -> None:
        self.inc(1.0)


def test_prometheus_counts_outcomes_and_codes() -> None:
    Metric.seen.clear()
    types = {type("Counter", (), {}): Metric, type("Histogram", (), {}): Metric, type("Gauge", (), {}): None}
    seen: list[Any] = []
    theirs = SimpleNamespace(observe=lambda data, engine: seen.append((data, engine)))
    prom = Prom(types, ["engine"], {0: ["0"]}, theirs)
    prom.observe({OF_CORE: counts(), OF_ENGINE: {"n": 1}}, 0)
    assert Metric.seen == {
        ("vllm:pdctl_transfers", "0", "confirmed"): 2.0,
        ("vllm:pdctl_transfers", "0", "withdrawn"): 1.0,
        ("vllm:pdctl_transfers", "0", "failed"): 1.0,
        ("vllm:pdctl_transfer_failures", "0", "PD4004"): 1.0,
        ("vllm:pdctl_transfer_seconds", "0"): 2.0,
    }
    assert seen == [({"n": 1}, 0)]


def test_the_layout_is_heads_first() -> None:
    assert (
        Connector.get_required_kvcache_layout(SimpleNamespace(model_config=SimpleNamespace(use_mla=False))) == "LBHNC"
    )
    assert Connector.get_required_kvcache_layout(SimpleNamespace(model_config=SimpleNamespace(use_mla=True))) is None
    assert vllm_core_connector.ROLES == ("kv_producer", "kv_consumer")
