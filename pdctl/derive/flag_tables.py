"""The engine flags that shape buffers: what pdctl calls each, by one of its spellings in the engine's flag table."""

from collections.abc import Mapping
from typing import Final

SGLANG: Final[Mapping[str, str]] = {
    "--tp-size": "tp",
    "--pp-size": "pp",
    "--dp-size": "replicas",
    "--attn-dp-size": "dp",
    "--enable-dp-attention": "enable-dp-attention",
    "--attn-cp-size": "cp",
    "--dcp-size": "dcp",
    "--page-size": "page_size",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--disaggregation-transfer-backend": "backend",
    "--disaggregation-mode": "role",
    "--dtype": "dtype",
    "--mamba-ssm-dtype": "mamba-ssm-dtype",
    "--qsa-indexer-dtype": "qsa-indexer-dtype",
    "--attention-backend": "attention-backend",
    "--prefill-attention-backend": "prefill-attention-backend",
    "--decode-attention-backend": "decode-attention-backend",
    "--dsa-prefill-backend": "dsa-prefill-backend",
    "--dsa-decode-backend": "dsa-decode-backend",
    "--disable-hybrid-swa-memory": "disable-hybrid-swa-memory",
    "--enable-deepseek-v4-fp4-indexer": "enable-deepseek-v4-fp4-indexer",
    "--json-model-override-args": "config-overrides",
    "--speculative-algorithm": "speculative.algorithm",
    "--speculative-draft-model-path": "speculative.draft_model_path",
    "--speculative-num-steps": "speculative.num_steps",
    "--speculative-eagle-topk": "speculative.eagle_topk",
    "--speculative-num-draft-tokens": "speculative.num_draft_tokens",
}

VLLM: Final[Mapping[str, str]] = {
    "--tensor-parallel-size": "tp",
    "--pipeline-parallel-size": "pp",
    "--data-parallel-size": "replicas",
    "--decode-context-parallel-size": "dcp",
    "--prefill-context-parallel-size": "pcp",
    "--block-size": "page_size",
    "--kv-cache-dtype": "kv_cache_dtype",
    "--dtype": "dtype",
    "--mamba-ssm-cache-dtype": "mamba-ssm-dtype",
    "--mamba-cache-dtype": "mamba-dtype",
    "--attention-backend": "attention-backend",
    "--attention-config": "attention-config",
    "--hf-overrides": "config-overrides",
    "--kv-transfer-config": "transfer",
    "--speculative-config": "speculative",
    "--spec-method": "speculative.method",
    "--spec-model": "speculative.model",
    "--spec-tokens": "speculative.num_speculative_tokens",
    "--disable-hybrid-kv-cache-manager": "disable-hybrid",
}

REFERENCE: Final[Mapping[str, str]] = {
    "--tp": "tp",
    "--pp": "pp",
    "--dp": "dp",
    "--page-size": "page_size",
    "--dtype": "kv_cache_dtype",
    "--transfer-backend": "backend",
    "--role": "role",
    "--speculative-algorithm": "speculative.algorithm",
}

SHAPING: Final[Mapping[str, Mapping[str, str]]] = {"sglang": SGLANG, "vllm": VLLM, "reference": REFERENCE}

#: What vLLM's roles are called here.
KV_ROLES: Final[Mapping[str, str]] = {"kv_producer": "prefill", "kv_consumer": "decode", "kv_both": "both"}
#: The connector of a backend where none is named.
CONNECTOR: Final[Mapping[str, str]] = {"nixl": "NixlConnector", "mooncake": "MooncakeConnector"}
ASCEND: Final[Mapping[str, str]] = {"mooncake": "MooncakeConnectorV1"}


def connector_of(engine: str, backend: str) -> str | None:
    """The connector of an engine's backend where none is named; None where it has none."""
    return {"vllm": CONNECTOR, "vllm-ascend": ASCEND}.get(engine, {}).get(backend)
