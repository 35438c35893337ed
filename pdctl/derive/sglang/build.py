"""SGLang's manifest: pools cut into pipeline stages and attention ranks, drafts on the last stage."""

from msgspec.structs import replace

from pdctl.derive.compared import compared
from pdctl.derive.config import Config
from pdctl.derive.geometry import Geometry, Gqa
from pdctl.derive.model import config_digest, family, read_geometry, values_digest
from pdctl.derive.refusal import refuse_groups, refuse_page, refuse_undivided
from pdctl.derive.request import Derived, Request
from pdctl.derive.sglang import facts
from pdctl.derive.sglang.compressed import choose, compressed_pools
from pdctl.derive.sglang.draft import draft_pools
from pdctl.derive.sglang.pools import pools
from pdctl.derive.sglang.settings import Settings, resolve
from pdctl.derive.shapes import Pool, component
from pdctl.derive.stages import partition
from pdctl.errors import ConfigError
from pdctl_transfer.layout.manifest import Component, Engine, Manifest, Model, Parallel, Stage, Transfer
from pdctl_transfer.rules.outcome import Evidence


def build(request: Request) -> Derived:
    """What one side registers. Raises ConfigError or InputError where the engine would not start, or is not known."""
    config = Config(request.config, request.config_source)
    geometry = read_geometry(config, "sglang")
    _refuse_head_dim(config.text())
    settings = resolve(request, config, geometry)
    attn_tp = request.attn_tp
    notes = list(settings.notes)
    architecture = _architecture(config)
    packed = choose(request, geometry.compressed, settings.platform) if geometry.compressed else None
    if packed is not None:
        target = compressed_pools(geometry, packed, config.source)
    else:
        target = pools(
            geometry,
            settings,
            split_sliding=_splits_sliding(request, config.text(), geometry, architecture, notes),
            dense=_keeps_dense(geometry, architecture, notes),
        )
    drafts = draft_pools(request, config, geometry, settings, packed)
    refuse_groups(geometry, attn_tp, config.source, "SGLang")
    refuse_undivided([*target, *drafts.values()], attn_tp, config.source)
    refuse_page(geometry, settings.page_size, config.source)
    ranges = _stages(request, geometry)
    every = range(geometry.num_layers) if request.pp > 1 and architecture in facts.SPANS_ALL_LAYERS else None
    if every is not None:
        notes.append(f"{architecture} exposes no start layer: the pool of every stage spans all layers")
    if request.pp > 1 and architecture in facts.NO_STAGES:
        notes.append(f"{architecture} has no pipeline stages in SGLang {facts.VERSION}")
    stages = tuple(
        Stage(
            pp_rank=rank,
            layers=layers,
            components=_components(target, drafts if rank == request.pp - 1 else {}, every or range(*layers), attn_tp),
        )
        for rank, layers in enumerate(ranges)
    )
    state = settings.sources.get("mamba_ssm_dtype")
    stated, origins = compared(request, config, {"state_dtype": state.text if state else None})
    return Derived(
        manifest=replace(
            _manifest(request, config, geometry, settings, stages),
            settings=stated,
            kv_layout=packed.kv_layout if packed else "nhd" if isinstance(geometry.attention, Gqa) else None,
        ),
        sources={**_sources(request, settings), **origins},
        notes=tuple(notes),
    )


def _refuse_head_dim(text: Config) -> None:
    """Hunyuan's own spelling of the head size: SGLang does not start by it alone (models/hunyuan.py:220)."""
    if text.has("attention_head_dim") and not text.has("head_dim"):
        other = text.size("hidden_size") // text.size("num_attention_heads")
        if text.size("attention_head_dim") != other:
            text.fail("attention_head_dim", f"is not {other}: SGLang asks for the same number as head_dim, add it")


def _stages(request: Request, geometry: Geometry) -> list[tuple[int, int]]:
    """Attention layers of each stage: engines cut whole layers, of which each may have several."""
    where = request.origins.get("pp", "--pp-size")
    if geometry.fold > 1 and request.pp > 1:
        raise ConfigError(f"{geometry.fold} attentions a layer over {request.pp} stages: not known", where=where)
    listed = request.flags.get("pp-layer-partition")
    return partition(geometry.num_layers, request.pp, "last", listed=listed, where=where)


def _components(target: list[Pool], drafts: dict[str, Pool], layers: range, attn_tp: int) -> tuple[Component, ...]:
    """One component a pool. Pools that hold nothing here are kept, but for MiniMax's dense one, which is left out."""
    joined = {kind: pool for kind, pool in drafts.items() if not pool.apart}
    made = [component(pool, layers, attn_tp, joined.get(pool.kind)) for pool in target]
    made += [component(pool, pool.buffers[0].layers, attn_tp) for pool in drafts.values() if pool.apart]
    return tuple(one for one in made if one.entries or one.kind != "minimax_dense_kv")


def _manifest(
    request: Request, config: Config, geometry: Geometry, settings: Settings, stages: tuple[Stage, ...]
) -> Manifest:
    return Manifest(
        role=request.role,
        origin="derived",
        engine=Engine("sglang", request.engine_version or facts.VERSION),
        model=Model(request.model_name or "model", family(config), config_digest(config), values_digest(config)),
        transfer=Transfer(request.backend or "mooncake"),
        parallel=Parallel(attn_tp=request.attn_tp, attn_cp=request.cp, pp=request.pp, dp=request.dp),
        page_size=settings.page_size,
        kv_cache_dtype=settings.kv_dtype,
        kv_layout=None,
        speculative=request.stated_speculative(),
        stages=stages,
    )


def _sources(request: Request, settings: Settings) -> dict[str, Evidence]:
    default = facts.DEFAULT
    found = {
        name: Evidence(request.origins.get(name, default), str(value))
        for name, value in (("tp", request.tp), ("pp", request.pp), ("dp", request.dp), ("cp", request.cp))
    }
    found["backend"] = Evidence(request.origins.get("backend", default), request.backend or "mooncake")
    if request.speculative:
        found["speculative"] = Evidence(request.origins.get("speculative", "--speculative"), str(request.speculative))
    found["platform"] = Evidence(request.origins.get("platform", "assumption"), settings.platform)
    return {**found, **settings.sources}


def _architecture(config: Config) -> str:
    words = config.words("architectures") if config.has("architectures") else ()
    return words[0] if words else ""


def _splits_sliding(request: Request, text: Config, geometry: Geometry, architecture: str, notes: list[str]) -> bool:
    """Whether sliding layers have a pool of their own: the engine's table, else whether the config tells them apart."""
    told = geometry.sliding or text.has("layer_types") or text.has("hybrid_layer_pattern")
    if architecture in facts.SPLITS_SLIDING and not told:
        text.fail(
            "layer_types", f"is missing: some layers of {architecture} attend within a window, and no key says which"
        )
    if geometry.sliding is None or "disable-hybrid-swa-memory" in request.flags:
        return False
    if geometry.sliding.attention != geometry.attention or architecture in facts.SPLITS_SLIDING:
        return True
    if architecture in facts.KEEPS_SLIDING or geometry.sliding.key == "sliding_window_pattern":
        return False
    notes.append(
        f"architecture {architecture or '(none)'} is not known to SGLang {facts.VERSION}: "
        "its sliding-window layers are taken to have a pool of their own"
    )
    return True


def _keeps_dense(geometry: Geometry, architecture: str, notes: list[str]) -> bool:
    dense = geometry.sparse is not None and architecture in facts.KEEPS_DENSE
    if dense:
        notes.append(
            f"SGLang {facts.VERSION} does not recognise {architecture} as block-sparse and keeps plain K and V"
        )
    return dense
