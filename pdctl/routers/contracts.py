"""What each router says to the engines behind it: data, each entry with the source that it was read in.

A connector waits for one way of being told of its peer. A router that speaks another one serves requests all the same:
decode computes each prompt itself, waits for pages that nobody sends, or answers with an error.
"""

from collections.abc import Mapping
from typing import Final, Literal

from msgspec import Struct

Speech = Literal["bootstrap", "hand-over", "transfer-id", "metaserver", "addresses", "silent"]

#: What is said to whom.
SPEECHES: Final[Mapping[Speech, str]] = {
    "bootstrap": "sends both sides the request at once, with prefill's bootstrap host and port and a room",
    "hand-over": "lets prefill answer first and hands its kv_transfer_params on to decode",
    "transfer-id": "sends both sides one transfer id, and decode prefill's bootstrap address and engine id",
    "metaserver": "asks decode first, which calls for its prefill at the router's metaserver",
    "addresses": "writes the addresses that engines register with it into each request",
    "silent": "lets prefill answer first and tells decode nothing of it",
}

#: How `args` list the engines. `urls`: `--prefill URL [PORT]` and `--decode URL`, repeated. `commas`: these, or several
#: with commas. `addresses`: `--prefill HOST:PORT …`. `hosts`: `--prefiller-hosts …` beside `--prefiller-ports …`.
#: `found`: not at all, they are discovered.
Listing = Literal["urls", "commas", "addresses", "hosts", "found"]


class Chosen(Struct, frozen=True):
    """A flag that chooses how the router speaks, what each of its words means, and the word that it takes else."""

    flag: str
    default: str | None
    means: Mapping[str, Speech]

    def word(self, need: Speech) -> str | None:
        """The word for engines that wait for this; None where there is none."""
        return next((word for word, speech in self.means.items() if speech == need), None)


class Contract(Struct, frozen=True, kw_only=True):
    """One router. `speaks`: to engines over HTTP, whatever is chosen; `some` releases of it speak that too."""

    name: str
    title: str
    speaks: frozenset[Speech]
    source: str
    """Repository and file, or the documentation that says so."""
    some: frozenset[Speech] = frozenset()
    open: bool = False
    """Whether it may speak to further connectors in a way that was not read."""
    chosen: Chosen | None = None
    grpc: bool = False
    """Whether it serves vLLM over gRPC in a way of its own, which is not judged."""
    listing: Listing = "found"
    by_name: bool = False
    """Whether it looks for engines by the name that a request asks for."""
    port_variable: str | None = None
    """The variable with the bootstrap port of all prefill engines, where it tells them no other."""
    listens: int | None = None
    """The port that it takes where none is given."""

    def spoken(self, word: str | None) -> frozenset[Speech] | None:
        """What it speaks if `word` is what its choosing flag is given, None: nothing. None where that is not known."""
        if self.chosen is None:
            return self.speaks
        found = self.chosen.means.get(word or self.chosen.default or "")
        return self.speaks | {found} if found else None


def _speaks(*ways: Speech) -> frozenset[Speech]:
    return frozenset(ways)


#: Port of a bootstrap server where a request names none: SGLang's default, and vLLM's for Mooncake.
BOOTSTRAP_PORT: Final = 8998

CONTRACTS: Final = (
    Contract(
        name="smg",
        title="Shepherd Model Gateway",
        speaks=_speaks("bootstrap"),
        grpc=True,
        listing="urls",
        by_name=True,
        listens=30000,
        source="lightseekorg/smg docs/concepts/routing/pd-disaggregation.md; run with 1.13.0",
    ),
    Contract(
        name="sglang-router",
        title="SGLang's router",
        speaks=_speaks("bootstrap"),
        listing="urls",
        listens=30000,
        source="sglang-router 0.3.2 router_args.py, mini_lb.py; run with 0.3.2",
    ),
    Contract(
        name="vllm-router",
        title="vLLM's router",
        speaks=_speaks(),
        chosen=Chosen(
            "--kv-connector", "nixl", {"nixl": "hand-over", "mooncake": "transfer-id", "moriio": "addresses"}
        ),
        listing="urls",
        listens=30000,
        source="vllm-router 0.1.17 router_args.py; vllm-project/router README.md",
    ),
    Contract(
        name="dynamo",
        title="Dynamo's frontend",
        speaks=_speaks("bootstrap", "hand-over"),
        open=True,
        by_name=True,
        listens=8000,
        source="docs.nvidia.com/dynamo: components/router/disaggregated-serving, backends/sglang",
    ),
    Contract(
        name="llm-d",
        title="llm-d's endpoint picker with its routing sidecar",
        speaks=_speaks(),
        chosen=Chosen(
            "--kv-connector", "nixlv2", {"nixlv2": "hand-over", "sglang": "bootstrap", "shared-storage": "silent"}
        ),
        port_variable="SGLANG_BOOTSTRAP_PORT",
        listens=8000,
        source="llm-d/llm-d-inference-scheduler@520af478 pkg/sidecar/proxy: options.go, connector_sglang.go",
    ),
    Contract(
        name="aibrix",
        title="AIBrix's gateway",
        speaks=_speaks("bootstrap", "hand-over"),
        by_name=True,
        source="vllm-project/aibrix@e3e10f9e pkg/plugins/gateway/algorithms/pd/{engine,transfer}",
    ),
    Contract(
        name="production-stack",
        title="the router of vLLM's production stack",
        speaks=_speaks(),
        chosen=Chosen(
            "--routing-logic",
            None,
            {"disaggregated_prefill": "silent", "disaggregated_prefill_orchestrated": "hand-over"},
        ),
        by_name=True,
        listens=8001,
        source="vllm-project/production-stack@a6c01db0 src/vllm_router/services/request_service/request.py:733,938",
    ),
    Contract(
        name="toy-proxy-server",
        title="vLLM's toy proxy for NIXL",
        speaks=_speaks("hand-over"),
        listing="hosts",
        listens=8000,
        source="vllm-project/vllm toy_proxy_server.py, of its NIXL integration",
    ),
    Contract(
        name="mooncake-connector-proxy",
        title="vLLM's proxy for Mooncake",
        speaks=_speaks("transfer-id"),
        listing="urls",
        listens=8000,
        source="vllm-project/vllm mooncake_connector_proxy.py",
    ),
    Contract(
        name="moriio-toy-proxy-server",
        title="vLLM's toy proxy for MoRIIO",
        speaks=_speaks("addresses"),
        source="vllm-project/vllm moriio_toy_proxy_server.py",
    ),
    Contract(
        name="disagg-proxy-demo",
        title="vLLM's disaggregation demo",
        speaks=_speaks("silent"),
        some=_speaks("hand-over"),
        listing="addresses",
        by_name=True,
        listens=8000,
        source="vllm-project/vllm disagg_proxy_demo.py; newer copies of it hand over",
    ),
    Contract(
        name="load-balance-proxy-server",
        title="vllm-ascend's proxy",
        speaks=_speaks("hand-over"),
        listing="hosts",
        listens=8000,
        source="vllm-project/vllm-ascend@v0.23.0 load_balance_proxy_server_example.py:792",
    ),
    Contract(
        name="load-balance-proxy-layerwise-server",
        title="vllm-ascend's layerwise proxy",
        speaks=_speaks("metaserver"),
        listing="hosts",
        listens=8000,
        source="vllm-project/vllm-ascend@v0.23.0 load_balance_proxy_layerwise_server_example.py",
    ),
    Contract(
        name="mini-lb",
        title="SGLang's mini load balancer",
        speaks=_speaks("bootstrap"),
        listing="commas",
        listens=8000,
        source="sglang-router 0.3.2 mini_lb.py",
    ),
)
"""Names are those of the programs; `contract_of` finds them by their files' names as well."""

_BY_NAME: Final = {contract.name: contract for contract in CONTRACTS}


def contract_of(kind: str) -> Contract | None:
    """The contract of a router by its name or its file's: `toy_proxy_server.py`, `load_balance_proxy_server_example`.

    None for a router that pdctl does not know.
    """
    name = kind.lower().removesuffix(".py").replace("_", "-").removesuffix("-example")
    return _BY_NAME.get(name)


#: What a connector of vLLM or vllm-ascend waits for, by its class. Stores of several engines wait for nothing.
NEEDS: Final[Mapping[str, Speech]] = {
    "NixlConnector": "hand-over",
    "NixlPullConnector": "hand-over",
    "NixlPushConnector": "hand-over",
    "MooncakeConnector": "transfer-id",
    "PdctlConnector": "hand-over",
    "MoRIIOConnector": "addresses",
    "P2pNcclConnector": "addresses",
    "MooncakeConnectorV1": "hand-over",
    "MooncakeHybridConnector": "hand-over",
    "MooncakeLayerwiseConnector": "metaserver",
}


def needed(engine: str, connector: str | None) -> Speech | None:
    """What engines of this kind wait for; None where that is not known, or nothing is waited for."""
    return "bootstrap" if engine in ("sglang", "reference") else NEEDS.get(connector or "")
