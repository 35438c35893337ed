"""The engine flags that shape buffers, in every spelling, and neighbours that an abbreviation could mean instead."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct


class Flag(Struct, frozen=True):
    """One flag: the name pdctl knows it by, how it is spelled, and whether a value follows."""

    name: str
    spellings: tuple[str, ...]
    takes_value: bool = True


SGLANG: Final = (
    Flag("tp", ("--tp-size", "--tp", "--tensor-parallel-size")),
    Flag("pp", ("--pp-size", "--pp", "--pipeline-parallel-size")),
    Flag("replicas", ("--dp-size", "--dp", "--data-parallel-size")),
    Flag("dp", ("--attn-dp-size", "--attention-data-parallel-size")),
    Flag("enable-dp-attention", ("--enable-dp-attention",), takes_value=False),
    Flag("cp", ("--attn-cp-size", "--attention-context-parallel-size")),
    Flag("page_size", ("--page-size",)),
    Flag("kv_cache_dtype", ("--kv-cache-dtype",)),
    Flag("backend", ("--disaggregation-transfer-backend",)),
    Flag("role", ("--disaggregation-mode",)),
    Flag("dtype", ("--dtype",)),
    Flag("mamba-ssm-dtype", ("--mamba-ssm-dtype",)),
    Flag("attention-backend", ("--attention-backend",)),
    Flag("prefill-attention-backend", ("--prefill-attention-backend",)),
    Flag("decode-attention-backend", ("--decode-attention-backend",)),
    Flag("dsa-prefill-backend", ("--dsa-prefill-backend", "--nsa-prefill-backend")),
    Flag("dsa-decode-backend", ("--dsa-decode-backend", "--nsa-decode-backend")),
    Flag("disable-hybrid-swa-memory", ("--disable-hybrid-swa-memory",), takes_value=False),
    Flag("config-overrides", ("--json-model-override-args",)),
    Flag("speculative.algorithm", ("--speculative-algorithm", "--speculative-algo")),
    Flag("speculative.draft_model_path", ("--speculative-draft-model-path", "--speculative-draft-model")),
    Flag("speculative.num_steps", ("--speculative-num-steps",)),
    Flag("speculative.eagle_topk", ("--speculative-eagle-topk",)),
    Flag("speculative.num_draft_tokens", ("--speculative-num-draft-tokens",)),
    Flag("", ("--enable-dp-lm-head", "--disable-overlap-schedule", "--trust-remote-code"), takes_value=False),
    Flag("", ("--disaggregation-bootstrap-port", "--disaggregation-ib-device", "--attn-implementation")),
)

VLLM: Final = (
    Flag("tp", ("--tensor-parallel-size", "-tp")),
    Flag("pp", ("--pipeline-parallel-size", "-pp")),
    Flag("replicas", ("--data-parallel-size", "-dp")),
    Flag(
        "",
        ("--data-parallel-size-local", "--data-parallel-rank", "--data-parallel-address", "--data-parallel-rpc-port"),
    ),
    Flag("dcp", ("--decode-context-parallel-size", "-dcp")),
    Flag("page_size", ("--block-size",)),
    Flag("kv_cache_dtype", ("--kv-cache-dtype",)),
    Flag("dtype", ("--dtype",)),
    Flag("mamba-ssm-dtype", ("--mamba-ssm-cache-dtype",)),
    Flag("mamba-dtype", ("--mamba-cache-dtype",)),
    Flag("attention-backend", ("--attention-backend",)),
    Flag("config-overrides", ("--hf-overrides",)),
    Flag("transfer", ("--kv-transfer-config",)),
    Flag("speculative", ("--speculative-config", "-sc")),
    Flag("disable-hybrid", ("--disable-hybrid-kv-cache-manager",), takes_value=False),
)

#: The reference engine's flags.
REFERENCE: Final = (
    Flag("tp", ("--tp", "--tp-size")),
    Flag("pp", ("--pp", "--pp-size")),
    Flag("dp", ("--dp", "--dp-size")),
    Flag("page_size", ("--page-size",)),
    Flag("dtype", ("--dtype",)),
    Flag("backend", ("--transfer-backend", "--disaggregation-transfer-backend")),
    Flag("role", ("--role", "--disaggregation-mode")),
    Flag("speculative.algorithm", ("--speculative-algorithm",)),
)

TABLES: Final[Mapping[str, tuple[Flag, ...]]] = {"sglang": SGLANG, "vllm": VLLM, "reference": REFERENCE}

#: The transfer backend behind each of vLLM's connectors.
CONNECTORS: Final[Mapping[str, str]] = {
    "NixlConnector": "nixl",
    "NixlPushConnector": "nixl",
    "NixlPullConnector": "nixl",
    "MooncakeConnector": "mooncake",
    "MooncakeConnectorV1": "mooncake",
    "MooncakeLayerwiseConnector": "mooncake",
    "MooncakeHybridConnector": "mooncake",
    "MoRIIOConnector": "mori",
    "LMCacheConnectorV1": "lmcache",
    "P2pNcclConnector": "nccl",
    "PdctlConnector": "pdctl",
}
#: What vLLM's roles are called here.
KV_ROLES: Final[Mapping[str, str]] = {"kv_producer": "prefill", "kv_consumer": "decode"}
