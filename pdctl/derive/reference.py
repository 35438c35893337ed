"""The reference engine: one element size for all it keeps, any pipeline split, drafts on the last stage."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from pdctl import __version__
from pdctl.derive import buffers
from pdctl.derive.config import Config
from pdctl.derive.geometry import Geometry, Gqa, Mla
from pdctl.derive.model import config_digest, family, read_geometry, values_digest
from pdctl.derive.refusal import refuse_page, refuse_undivided
from pdctl.derive.request import Derived, Request
from pdctl.derive.shapes import Buffer, Pool, component
from pdctl.derive.stages import partition
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.layout.manifest import (
    ROPE_RING_LAYER,
    Engine,
    IndexSpace,
    Manifest,
    Model,
    Parallel,
    Stage,
    Transfer,
)
from pdctl_transfer.rules.outcome import Evidence

PAGE_SIZE: Final = 16
DTYPES: Final[Mapping[str, int]] = {"float64": 8, "float32": 4}
SPACES: Final[Mapping[str, IndexSpace]] = {
    "kv": "page",
    "mamba": "slot",
    "qsa_pending": "row",
    "qsa_compressed": "page",
}


def build(request: Request) -> Derived:
    """What one side holds. Raises ConfigError or InputError where the engine would not start."""
    config = Config(request.config, request.config_source)
    geometry = read_geometry(config, "reference")
    page = request.page_size or PAGE_SIZE
    dtype = "float64" if request.kv_cache_dtype == "auto" else request.kv_cache_dtype
    if dtype not in DTYPES:
        raise InputError(
            f"found {dtype}, expected one of {', '.join(DTYPES)}",
            where=request.origins.get("kv_cache_dtype", "--kv-cache-dtype"),
        )
    _refuse_unknown(geometry, page, config)
    target = _pools(geometry, page, DTYPES[dtype], ROPE_RING_LAYER)
    drafts = _drafts(request, geometry, page, DTYPES[dtype], config)
    refuse_undivided([*target, *drafts.values()], request.attn_tp, config.source)
    ranges = partition(geometry.num_layers, request.pp, "first", where=request.origins.get("pp", "--pp"))
    stages = []
    for rank, layers in enumerate(ranges):
        held = drafts if rank == request.pp - 1 else {}
        made = [component(pool, range(*layers), request.attn_tp, held.get(pool.kind)) for pool in target]
        stages.append(Stage(rank, layers, tuple(one for one in made if one.entries)))
    manifest = Manifest(
        role=request.role,
        origin="derived",
        engine=Engine("reference", request.engine_version or __version__),
        model=Model(request.model_name or "model", family(config), config_digest(config), values_digest(config)),
        transfer=Transfer(request.backend or "mooncake"),
        parallel=Parallel(attn_tp=request.attn_tp, attn_cp=request.cp, pp=request.pp, dp=request.dp),
        page_size=page,
        kv_cache_dtype=dtype,
        kv_layout="nhd",
        speculative=request.stated_speculative(),
        stages=tuple(stages),
    )
    default = f"default of pdctl {__version__}"
    sources = {
        "page_size": Evidence(request.origins.get("page_size", default), str(page)),
        "kv_cache_dtype": Evidence(request.origins.get("kv_cache_dtype", default), dtype),
        "backend": Evidence(request.origins.get("backend", default), manifest.transfer.backend),
        **{
            name: Evidence(request.origins.get(name, default), str(getattr(request, name)))
            for name in ("tp", "pp", "dp")
        },
    }
    return Derived(manifest=manifest, sources=sources)


def _pools(geometry: Geometry, page: int, itemsize: int, ring: int) -> list[Pool]:
    held: dict[str, list[Buffer]] = {kind: [] for kind in SPACES}
    if isinstance(geometry.attention, Mla):
        # Two buffer groups of one name: the latents, then the rotary keys.
        for width in (geometry.attention.rank, geometry.attention.rope):
            held["kv"].append(buffers.rows("latent", geometry.full, page, width * itemsize))
    else:
        held["kv"] += buffers.key_value(geometry.full, geometry.attention, page, itemsize)
    if (state := geometry.recurrent) is not None:
        held["mamba"] += buffers.recurrent(
            state, window_itemsize=itemsize, state_itemsize=itemsize, taps_first=state.taps_first
        )
    if geometry.ple is not None:
        held["mamba"] += buffers.ple(geometry.ple, itemsize)
    if geometry.qsa is not None:
        held["qsa_pending"] += buffers.qsa_pending(geometry.qsa, ring, itemsize)
        held["qsa_compressed"].append(buffers.qsa_compressed(geometry.qsa, page, itemsize))
    return [Pool(kind=kind, index_space=SPACES[kind], buffers=tuple(one)) for kind, one in held.items()]


def _drafts(request: Request, target: Geometry, page: int, itemsize: int, config: Config) -> dict[str, Pool]:
    """The draft's full-attention layers, with ids that follow the target's, and its ring's after them."""
    if not request.speculative:
        return {}
    if not target.draft_layers:
        config.fail("mtp_num_hidden_layers", "is missing, so the model has no draft layer")
    first = target.num_layers
    layers = tuple(range(first, first + target.draft_layers))
    draft = replace(
        target,
        full=layers,
        recurrent=None,
        ple=None,
        qsa=replace(target.qsa, layers=layers) if target.qsa else None,
    )
    return {pool.kind: pool for pool in _pools(draft, page, itemsize, first + len(layers))}


def _refuse_unknown(geometry: Geometry, page: int, config: Config) -> None:
    """What the reference engine cannot run, or not with this page size."""
    for part, what in (
        (geometry.sliding, "sliding windows"),
        (geometry.index, "DSA"),
        (geometry.sparse, "block sparsity"),
        (geometry.compressed, "compressed latents"),
    ):
        if part is not None:
            raise ConfigError(f"the reference engine does not have {what}", where=config.source)
    if isinstance(geometry.attention, Gqa) and geometry.attention.head_dim != geometry.attention.v_head_dim:
        config.fail("v_head_dim", "the reference engine's K and V have one width")
    refuse_page(geometry, page, config.source)
