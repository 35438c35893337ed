"""What the engine says of itself, in SGLang's words and in pdctl's."""

from typing import Any

import msgspec

import pdctl
from pdctl.engines.reference.engine import Engine
from pdctl.engines.reference.scheduler import Scheduler


def server_info(scheduler: Scheduler) -> dict[str, Any]:
    """GET /server_info: SGLang's names for the sizes, and the live layout under `pdctl_layout`."""
    engine = scheduler.engine
    options = engine.options
    running, waiting = scheduler.loads
    fabric = scheduler.link.fabric if scheduler.link else None
    return {
        "model_path": options.model,
        "served_model_name": engine.name,
        "version": pdctl.__version__,
        "engine": "reference",
        "disaggregation_mode": "null" if options.role == "aggregate" else options.role,
        "disaggregation_bootstrap_port": options.bootstrap_port,
        "disaggregation_transfer_backend": options.backend,
        "tp_size": options.tp,
        "pp_size": options.pp,
        "dp_size": options.dp,
        "page_size": options.page_size,
        "kv_cache_dtype": options.dtype,
        "max_total_num_tokens": options.pages * options.page_size,
        "max_running_requests": options.max_running,
        "context_length": engine.config.max_positions,
        "speculative_algorithm": "NEXTN" if options.draft else None,
        "internal_states": [{"running": running, "waiting": waiting}],
        "pdctl_transport": {
            "requested": fabric.requested if fabric else None,
            "observed": fabric.observed_transport() if fabric else None,
            "exposed_ports": list(fabric.exposed_ports()) if fabric else [],
        },
        "pdctl_layout": msgspec.to_builtins(engine.manifest()),
    }


def model_info(engine: Engine) -> dict[str, Any]:
    """GET /model_info."""
    return {
        "model_path": engine.options.model,
        "tokenizer_path": engine.options.model,
        "served_model_name": engine.name,
        "is_generation": True,
        "model_type": engine.config.family,
        "architectures": engine.config.raw["architectures"],
        "weight_version": "default",
        "preferred_sampling_params": None,
    }


def model_list(engine: Engine) -> dict[str, Any]:
    """GET /v1/models."""
    card = {"id": engine.name, "object": "model", "created": 0, "owned_by": "pdctl", "root": engine.options.model}
    return {"object": "list", "data": [card | {"max_model_len": engine.config.max_positions}]}
