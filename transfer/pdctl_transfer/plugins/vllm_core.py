"""vLLM's connector over the transfer core: `kv_connector: PdctlConnector`, `kv_connector_module_path:` this module.

Prefill pushes; decode confirms. The engine's own connector, NIXL's, is held inside and serves whoever has no core: a
producer offers both ways, decode takes the core's where it is offered. With PDCTL_PLUGIN=off, or in a vLLM of another
shape, the same words on the command line give NIXL's connector itself.
"""

import logging
from functools import cache
from importlib import import_module
from typing import Any, Final

from pdctl_transfer.plugins.guard import enabled
from pdctl_transfer.plugins.vllm_core_connector import Connector
from pdctl_transfer.plugins.vllm_core_shape import BASE, FACTORY, HITS, deviation

log = logging.getLogger("vllm.pdctl")

NAME: Final = "PdctlConnector"
ENGINES: Final = "NixlConnector"


def __getattr__(name: str) -> Any:
    if name == NAME:
        return chosen()
    raise AttributeError(name)


@cache
def chosen() -> type:
    """The class that vLLM gets: ours, or its own where ours may not be."""
    if enabled():
        other = deviation()
        if not other:
            base, hits = import_module(BASE), import_module(HITS)
            bases = (Connector, base.KVConnectorBase_V1, base.SupportsHMA)
            return type(NAME, bases, {"_cache_hit_source": hits.CacheHitSource.P2P})
        log.error(
            "pdctl: PD3146: this vLLM is not the one that the core was written for: %s; %s serves", other, ENGINES
        )
    found: type = import_module(FACTORY).KVConnectorFactory.get_connector_class_by_name(ENGINES)
    return found
