"""vLLM: from a request to the manifest of the regions its connectors register.

K and V of a layer are one region, a head's V after its K. Conv windows and temporal states are regions of their own.
Read from vLLM 0.32.
"""

from collections.abc import Mapping
from typing import Any, Final

from pdctl.derive import buffers
from pdctl.derive.compared import compared
from pdctl.derive.config import Config
from pdctl.derive.drafts import drafted_tokens
from pdctl.derive.dtypes import itemsize, model_dtype, quantised_kv
from pdctl.derive.flag_tables import connector_of
from pdctl.derive.geometry import Geometry, Gqa, Mla, Recurrent
from pdctl.derive.model import config_digest, family, read_geometry, values_digest
from pdctl.derive.refusal import refuse_groups, refuse_undivided
from pdctl.derive.request import Derived, Request
from pdctl.derive.shapes import Buffer, Pool, component, entries
from pdctl.derive.stages import partition
from pdctl.derive.vllm_draft import draft_pools
from pdctl.errors import ConfigError, InputError
from pdctl.versions import PINNED
from pdctl_transfer.layout.manifest import Engine, Group, Manifest, Model, Parallel, Stage, Transfer
from pdctl_transfer.rules.outcome import Evidence

VERSION: Final = PINNED["vllm"]
DEFAULT: Final = f"default of vLLM {VERSION}"
BLOCK_SIZE: Final = 16
WIDE_BLOCK_SIZE: Final = 128
"""On CPU and NPU."""
#: Layouts of K and V by the names that VLLM_KV_CACHE_LAYOUT takes.
LAYOUTS: Final[Mapping[str, str]] = {
    "NHD": "nhd",
    "LBNHC": "nhd",
    "BLNHC": "nhd",
    "HND": "hnd",
    "LBHNC": "hnd",
    "BLHNC": "hnd",
    "LHBNC": "hnd",
    "BHLNC": "hnd",
}
#: Backends whose connectors ask for HND where the model is not latent.
WANT_HND: Final = frozenset({"nixl", "mooncake"})
#: Backends whose connectors know hybrid caches; with any other, sliding layers are kept like the rest.
KNOW_HYBRID: Final = frozenset({"nixl", "mooncake", "mori"})


def build(request: Request) -> Derived:
    """What one side registers. Raises ConfigError or InputError where the engine would not start, or is not known."""
    config = Config(request.config, request.config_source)
    geometry = read_geometry(config, "vllm")
    _refuse_unknown(request, geometry, config)
    settings = _Settings(request, config, geometry)
    target = _pools(geometry, settings)
    drafts = draft_pools(request, config, geometry, settings.kv_dtype, lambda one: _pools(one, settings))
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
        page_size=settings.block_size,
        kv_cache_dtype=settings.kv_dtype,
        kv_layout=settings.layout,
        speculative=request.stated_speculative(),
        stages=tuple(stages),
        settings=stated,
    )
    return Derived(manifest=manifest, sources={**settings.sources, **origins}, notes=tuple(settings.notes))


class _Settings:
    """What shapes regions beside the model, each with where it comes from."""

    def __init__(self, request: Request, config: Config, geometry: Geometry) -> None:
        self.request = request
        self.sources: dict[str, Evidence] = {}
        self.notes: list[str] = []
        self.ascend = request.engine == "vllm-ascend"
        self.platform = request.platform or ("npu" if self.ascend else "hopper")
        if self.ascend:
            self.notes.append("buffers of vllm-ascend are those of vLLM on NPU, and held by no dump of its own")
        elif request.platform is None:
            self.notes.append("platform hopper is assumed (--platform)")
        self.backend = request.backend or ("mooncake" if self.ascend else "nixl")
        self.model_itemsize = model_dtype(request, config).itemsize
        self.kv_dtype, self.kv_itemsize = self._kv_dtype(config)
        self.layout = self._layout(geometry)
        self.window_itemsize = self._state("mamba-dtype", self.model_itemsize)
        self.state_itemsize = self._state("mamba-ssm-dtype", self._declared_state(config, geometry))
        gated = geometry.recurrent is not None and geometry.recurrent.family == "gdn"
        if gated and self.platform == "cpu" and request.flags.get("mamba-ssm-dtype", "auto") == "auto":
            self.state_itemsize = 4  # the fast kernel's choice; what a flag asks for is kept on any CPU
            self.notes.append("float32 recurrent state is assumed, as on a CPU with AVX-512 BF16")
        self.extra_taps = drafted_tokens(request.speculative)
        self.block_size = self._block_size(geometry)
        for name in ("tp", "pp", "cp", "backend", "platform"):
            value = getattr(self, name, None) or getattr(request, name)
            self._say(name, str(value), DEFAULT)

    @property
    def hybrid_manager(self) -> bool:
        """Whether the hybrid KV cache manager is on: unless a flag, the connector or the platform turns it off."""
        off = "disable-hybrid" in self.request.flags or (self.platform == "npu" and not self.ascend)
        return self.backend in KNOW_HYBRID and not off

    def known_to_the_connector(self) -> dict[str, Any]:
        """Settings that follow from the backend where no flag names them."""
        return {"connector": connector_of(self.request.engine, self.backend), "hybrid_manager": self.hybrid_manager}

    def _say(self, name: str, value: str, source: str) -> None:
        self.sources[name] = Evidence(self.request.origins.get(name, source), value)

    def _kv_dtype(self, config: Config) -> tuple[str, int]:
        asked = self.request.kv_cache_dtype
        self._say("kv_cache_dtype", asked, DEFAULT)
        if asked == "auto" and (quantised := quantised_kv(config)):
            self.sources["kv_cache_dtype"] = Evidence(f"{config.source}: {quantised}", "fp8_e4m3")
            asked = "fp8_e4m3"
        size = {"auto": self.model_itemsize, "fp8_ds_mla": 1}.get(asked, itemsize(asked))
        if size is None:
            raise InputError(
                f"found {asked}, expected auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2 or fp8_ds_mla",
                where=self.request.origins.get("kv_cache_dtype", "--kv-cache-dtype"),
            )
        return asked, size

    def _layout(self, geometry: Geometry) -> str | None:
        if isinstance(geometry.attention, Mla):
            return None
        if self.platform == "cpu":
            layout, source = "hnd", "the only one on CPU"
        elif (named := self.request.flags.get("kv-cache-layout")) is not None:
            where = self.request.origins.get("kv-cache-layout", "VLLM_KV_CACHE_LAYOUT")
            if named not in LAYOUTS:
                raise InputError(f"found {named}, expected one of {', '.join(LAYOUTS)}", where=where)
            layout, source = LAYOUTS[named], where
        elif self.backend in WANT_HND and self.platform != "npu":
            layout, source = "hnd", f"the {self.backend} connector asks for it"
        else:
            layout, source = "nhd", DEFAULT
        self.sources["kv_layout"] = Evidence(source, layout)
        return layout

    def _state(self, flag: str, default: int) -> int:
        word = self.request.flags.get(flag, "auto")
        size = default if word == "auto" else itemsize(word)
        if size is None:
            raise InputError(
                f"found {word}, whose size is not known", where=self.request.origins.get(flag, f"--{flag}")
            )
        return size

    def _declared_state(self, config: Config, geometry: Geometry) -> int:
        """The temporal state's element: by the config, else float32 for KDA, else that of the window."""
        text = config.text()
        for key in ("mamba_ssm_cache_dtype", "mamba_ssm_dtype"):
            if (word := text.word(key)) is not None:
                if (size := itemsize(word)) is None:
                    text.fail(key, f"found {word!r}, whose size is not known")
                self.sources["mamba_ssm_dtype"] = Evidence(f"{config.source}: {text.path}{key}", word)
                return size
        state = geometry.recurrent
        nemotron = text.has("hybrid_override_pattern") or text.has("layers_block_type")
        return 4 if state is not None and (state.family == "kda" or nemotron) else self.window_itemsize

    def _block_size(self, geometry: Geometry) -> int:
        asked = self.request.page_size
        if asked:
            size, source = asked, "--block-size"
        elif self.platform == "npu" or (self.platform == "cpu" and isinstance(geometry.attention, Gqa)):
            size, source = WIDE_BLOCK_SIZE, f"{DEFAULT} on {self.platform}"
        elif geometry.index is not None or (isinstance(geometry.attention, Mla) and self.kv_itemsize == 1):
            size, source = 64, "the latent attention backend takes 64"
        elif isinstance(geometry.attention, Mla) and self.platform == "sm100":
            size, source = 32, "FLASHINFER_MLA takes 32 or 64"
        else:
            size, source = BLOCK_SIZE, DEFAULT
        if geometry.recurrent is not None:
            aligned = self._aligned(size, geometry, geometry.recurrent)
            if aligned != size:
                size, source = aligned, f"raised from {size}, so that an attention page holds a recurrent state"
        self._say("page_size", str(size), source)
        return size

    def _aligned(self, size: int, geometry: Geometry, state: Recurrent) -> int:
        """Recurrent and attention layers share one page size: the block grows until a state fits."""
        source, tp = self.request.config_source, self.request.attn_tp
        slot = Pool(kind="mamba", index_space="slot", buffers=self.recurrent(state))
        token = Pool(kind="kv", index_space="page", buffers=self.kv(geometry.full, geometry.attention, 1))
        refuse_groups(geometry, tp, source, "vLLM")
        refuse_undivided((slot, token), tp, source)
        held, row = _item_bytes(slot, tp), _item_bytes(token, tp)
        if not held or not row:
            return size
        step = max(size, 128 if isinstance(geometry.attention, Mla) else BLOCK_SIZE)
        return max(size, step * -(-held // (step * row)))

    def kv(
        self, layers: tuple[int, ...], attention: Gqa | Mla, block: int, *, scaled: bool = False
    ) -> tuple[Buffer, ...]:
        """K and V of each head together, or the latent; on NPU K and V are regions of their own."""
        if isinstance(attention, Mla):
            if scaled:
                return (buffers.scaled_latent(layers, attention, block),)
            return (buffers.latent(layers, attention, block, self.kv_itemsize),)
        hnd = self.layout == "hnd"
        if self.platform == "npu":
            return buffers.key_value(layers, attention, block, self.kv_itemsize, hnd=hnd)
        outer, tokens = (1, block) if hnd else (block, 1)
        width = tokens * (attention.head_dim + attention.v_head_dim) * self.kv_itemsize
        heads = (Group(attention.kv_heads, 1),)
        return (Buffer(tensor="kv", layers=layers, outer=outer, groups=heads, inner_bytes=width),)

    def recurrent(self, state: Recurrent) -> tuple[Buffer, ...]:
        """The window is state-first unless VLLM_SSM_CONV_STATE_LAYOUT is DS; KDA's is not widened for drafts."""
        default = "DS" if self.platform == "cpu" and self.backend == "nixl" else "SD"
        return buffers.recurrent(
            state,
            window_itemsize=self.window_itemsize,
            state_itemsize=self.state_itemsize,
            taps_first=self.request.flags.get("ssm-conv-state-layout", default) != "DS",
            extra_taps=0 if state.family == "kda" else self.extra_taps,
        )


def _item_bytes(pool: Pool, tp: int) -> int:
    """Bytes of one item of each buffer together, in one layer on one rank."""
    return sum(entry.item_len for one in pool.buffers for entry in entries(one, one.layers[:1], tp))


def _pools(geometry: Geometry, settings: _Settings) -> list[Pool]:
    apart = geometry.sliding if settings.hybrid_manager else None
    layers = geometry.full if apart else geometry.attention_layers
    scaled = geometry.index is not None and settings.kv_itemsize == 1
    block = settings.block_size
    found = [Pool(kind="kv", index_space="page", buffers=settings.kv(layers, geometry.attention, block, scaled=scaled))]
    if apart is not None:
        held = settings.kv(apart.layers, apart.attention, block)
        found.append(Pool(kind="swa", index_space="window_page", buffers=held))
    if geometry.recurrent is not None:
        found.append(Pool(kind="mamba", index_space="slot", buffers=settings.recurrent(geometry.recurrent)))
    if (index := geometry.index) is not None:
        with_index = tuple(layer for layer in layers if layer not in index.shared)
        page = buffers.rows("index_k", with_index, 1, block * (index.dim + index.dim // 128 * 4))
        found.append(Pool(kind="dsa", index_space="page", buffers=(page,)))
    return found


def _refuse_unknown(request: Request, geometry: Geometry, config: Config) -> None:
    """State whose regions in vLLM pdctl does not know."""
    text = config.text()
    if geometry.qsa is not None:
        text.fail("indexer_compress_ratio", "compressed sparse attention: its layout in vLLM is not known")
    if geometry.fold > 1 and request.pp > 1:
        where = request.origins.get("pp", "--pipeline-parallel-size")
        raise ConfigError(f"{geometry.fold} attentions a layer over {request.pp} stages: not known", where=where)
    word = request.flags.get("indexer-kv-dtype", "auto")
    if geometry.index is not None and word not in ("auto", "fp8"):
        where = request.origins.get("indexer-kv-dtype", "--attention-config")
        raise ConfigError(f"an index of type {word}: its layout in vLLM is not known", where=where)
    if geometry.ple is not None:
        text.fail("ple_layer_ids", "per-layer embeddings: their layout in vLLM is not known")
    if geometry.compressed is not None:
        text.fail("compress_ratios", "latents compressed by layer (DeepSeek-V4): their layout in vLLM is not known")
    if geometry.sparse is not None:
        text.fail("sparse_attention_config", "block-sparse attention: its layout in vLLM is not known")
