"""What is known of a side whose layout is not: its sizes and settings, and no buffer."""

from pdctl.derive.compared import compared
from pdctl.derive.config import Config
from pdctl.derive.flag_tables import connector_of
from pdctl.derive.model import config_digest, family, values_digest
from pdctl.derive.request import Derived, Request
from pdctl_transfer.layout.manifest import Engine, Manifest, Model, Parallel, Transfer


def bare(request: Request) -> Derived:
    """A manifest without stages. Raises ConfigError or InputError for a setting that cannot be read."""
    config = Config(request.config, request.config_source)
    backend = request.backend or ("nixl" if request.engine == "vllm" else "mooncake")
    known = {"connector": connector_of(request.engine, backend)}
    settings, sources = compared(request, config, known)
    manifest = Manifest(
        role=request.role,
        origin="derived",
        engine=Engine(request.engine, request.engine_version),
        model=Model(request.model_name or "model", family(config), config_digest(config), values_digest(config)),
        transfer=Transfer(backend),
        parallel=Parallel(attn_tp=request.attn_tp, attn_cp=request.cp, pp=request.pp, dp=request.dp),
        page_size=request.page_size or 0,
        kv_cache_dtype=request.kv_cache_dtype,
        kv_layout=None,
        speculative=request.stated_speculative(),
        stages=(),
        settings=settings,
    )
    return Derived(manifest=manifest, sources=sources)
