"""vLLM's manifest: pools cut into pipeline stages and attention ranks, drafts on the last stage.

K and V of a layer are one region, a head's V after its K. Conv windows and temporal states are regions of their own.
Read from vLLM 0.32, and held by dumps of what its own code registers.
"""

from pdctl.derive.compared import compared
from pdctl.derive.config import Config
from pdctl.derive.geometry import Geometry
from pdctl.derive.model import config_digest, family, read_geometry, values_digest
from pdctl.derive.refusal import refuse_page, refuse_undivided
from pdctl.derive.request import Derived, Request
from pdctl.derive.shapes import component
from pdctl.derive.stages import partition
from pdctl.derive.vllm.blocks import block_of
from pdctl.derive.vllm.draft import draft_pools
from pdctl.derive.vllm.pools import pools
from pdctl.derive.vllm.settings import Settings
from pdctl.errors import ConfigError
from pdctl.versions import PINNED
from pdctl_transfer.layout.manifest import Engine, Manifest, Model, Parallel, Stage, Transfer


def build(request: Request) -> Derived:
    """What one side registers. Raises ConfigError or InputError where the engine would not start, or is not known."""
    config = Config(request.config, request.config_source)
    geometry = read_geometry(config, "vllm")
    settings = Settings(request, config, geometry)
    _refuse_unknown(request, geometry, config, settings.platform)
    block = block_of(request, geometry, settings)
    settings.say("page_size", str(block.size), block.source)
    target = pools(geometry, settings, block.size)
    drafts = draft_pools(request, config, geometry, settings.kv_dtype, lambda one: pools(one, settings, block.size))
    refuse_page(geometry, block.size, config.source)
    refuse_undivided([*target, *drafts.values()], request.attn_tp, config.source)
    ranges = partition(
        geometry.num_layers,
        request.pp,
        "before-last",
        listed=request.flags.get("pp-layer-partition"),
        where=request.origins.get("pp", "--pipeline-parallel-size"),
    )
    stages = []
    for rank, layers in enumerate(ranges):
        held = drafts if rank == request.pp - 1 else {}
        made = tuple(component(pool, range(*layers), request.attn_tp, held.get(pool.kind)) for pool in target)
        stages.append(Stage(rank, layers, made))
    stated, origins = compared(request, config, settings.known_to_the_connector())
    manifest = Manifest(
        role=request.role,
        origin="derived",
        engine=Engine(request.engine, request.engine_version or PINNED[request.engine]),
        model=Model(request.model_name or "model", family(config), config_digest(config), values_digest(config)),
        transfer=Transfer(settings.backend),
        parallel=Parallel(attn_tp=request.attn_tp, attn_cp=request.cp, pp=request.pp, dp=request.dp),
        page_size=block.size,
        kv_cache_dtype=settings.kv_dtype,
        kv_layout=settings.layout,
        speculative=request.stated_speculative(),
        stages=tuple(stages),
        settings=stated,
    )
    return Derived(manifest=manifest, sources={**settings.sources, **origins}, notes=tuple(settings.notes))


def _refuse_unknown(request: Request, geometry: Geometry, config: Config, platform: str) -> None:
    """State whose regions in vLLM pdctl does not know; on NPU those of another project's kernels."""
    on_gpus = {
        "indexer_compress_ratio": geometry.qsa,
        "ple_layer_ids": geometry.ple,
        "compress_ratios": geometry.compressed,
        "sparse_attention_config": geometry.sparse,
    }
    for key, state in on_gpus.items():
        if state is not None and platform in ("npu", "cpu"):
            config.text().fail(key, f"its layout in vLLM on {platform} is not known")
    if geometry.fold > 1 and request.pp > 1:
        where = request.origins.get("pp", "--pipeline-parallel-size")
        raise ConfigError(f"{geometry.fold} attentions a layer over {request.pp} stages: not known", where=where)
    word = request.flags.get("indexer-kv-dtype", "auto")
    if geometry.index is not None and word not in ("auto", "fp8"):
        where = request.origins.get("indexer-kv-dtype", "--attention-config")
        raise ConfigError(f"an index of type {word}: its layout in vLLM is not known", where=where)
