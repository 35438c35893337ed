"""What shapes vLLM's regions beside the model, each value with where it comes from."""

from typing import Any

from pdctl.derive.config import Config
from pdctl.derive.drafts import drafted_tokens
from pdctl.derive.dtypes import itemsize, model_dtype, quantised_kv
from pdctl.derive.flag_tables import connector_of
from pdctl.derive.geometry import Geometry, Gqa, Mla
from pdctl.derive.request import Request
from pdctl.derive.vllm import facts
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.rules.outcome import Evidence


class Settings:
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
        self.kv_dtype, self.kv_itemsize = self._kv_dtype(config, geometry)
        self.layout = self._layout(geometry)
        self.window_itemsize = self._state("mamba-dtype", self.model_itemsize)
        self.state_itemsize = self._state("mamba-ssm-dtype", self._declared_state(config, geometry))
        gated = geometry.recurrent is not None and geometry.recurrent.family == "gdn"
        if gated and self.platform == "cpu" and request.flags.get("mamba-ssm-dtype", "auto") == "auto":
            self.state_itemsize = 4  # the fast kernel's choice; what a flag asks for is kept on any CPU
            self.notes.append("float32 recurrent state is assumed, as on a CPU with AVX-512 BF16")
        self.drafted = drafted_tokens(request.speculative)
        self.taps_first = self._taps_first(geometry)
        self.indexer_dtype = request.flags.get("indexer-kv-dtype", "auto")
        for name in ("tp", "pp", "cp", "backend", "platform"):
            value = getattr(self, name, None) or getattr(request, name)
            self.say(name, str(value), facts.DEFAULT)

    @property
    def hybrid_manager(self) -> bool:
        """Whether the hybrid KV cache manager is on: unless a flag, the connector or the platform turns it off."""
        off = "disable-hybrid" in self.request.flags or (self.platform == "npu" and not self.ascend)
        return self.backend in facts.KNOW_HYBRID and not off

    def known_to_the_connector(self) -> dict[str, Any]:
        """Settings that follow from the backend where no flag names them."""
        return {"connector": connector_of(self.request.engine, self.backend), "hybrid_manager": self.hybrid_manager}

    def say(self, name: str, value: str, source: str) -> None:
        self.sources[name] = Evidence(self.request.origins.get(name, source), value)

    @property
    def packed(self) -> bool:
        """Whether DeepSeek-V4's rows are packed (fp8_ds_mla): by every attention backend but one."""
        return self.request.flags.get("attention-backend", "").upper() != facts.PLAIN_ROWS

    def _kv_dtype(self, config: Config, geometry: Geometry) -> tuple[str, int]:
        asked = self.request.kv_cache_dtype
        self.say("kv_cache_dtype", asked, facts.DEFAULT)
        if asked == "auto" and (quantised := quantised_kv(config)):
            self.sources["kv_cache_dtype"] = Evidence(f"{config.source}: {quantised}", "fp8_e4m3")
            asked = "fp8_e4m3"
        if geometry.compressed is not None and self.packed:
            if asked != "auto" and not asked.startswith("fp8"):
                raise InputError(
                    f"found {asked}, expected auto or fp8: the attention backend of DeepSeek-V4 packs rows of fp8",
                    where=self.request.origins.get("kv_cache_dtype", "--kv-cache-dtype"),
                )
            asked = "fp8_ds_mla"
            self.sources["kv_cache_dtype"] = Evidence("the attention backend of DeepSeek-V4 packs its rows", asked)
        where = self.request.origins.get("kv_cache_dtype", "--kv-cache-dtype")
        seen = geometry.plain and self.platform in {"hopper", "sm100"}
        if asked in facts.UNREAD_DTYPES or (asked in facts.NVFP4 and not seen):
            raise ConfigError(f"KV of type {asked}: its pages are not known in vLLM for this model", where=where)
        known = {"auto": self.model_itemsize, "fp8_ds_mla": 1, **dict.fromkeys(facts.NVFP4, 1)}
        size = known.get(asked, itemsize(asked))
        if size is None:
            raise InputError(
                f"found {asked}, expected auto, bfloat16, float16, fp8, fp8_e4m3, fp8_e5m2, fp8_ds_mla or nvfp4",
                where=where,
            )
        return asked, size

    def head_row(self, attention: Gqa) -> int:
        """Bytes of K and V of one head of one token."""
        dims = (attention.head_dim, attention.v_head_dim)
        if self.kv_dtype in facts.NVFP4:
            return sum(facts.nvfp4_row(dim) for dim in dims)
        return sum(dims) * self.kv_itemsize

    def _layout(self, geometry: Geometry) -> str | None:
        if isinstance(geometry.attention, Mla):
            return None
        if self.platform == "cpu":
            layout, source = "hnd", "the only one on CPU"
        elif (named := self.request.flags.get("kv-cache-layout")) is not None:
            where = self.request.origins.get("kv-cache-layout", "VLLM_KV_CACHE_LAYOUT")
            if named not in facts.LAYOUTS:
                raise InputError(f"found {named}, expected one of {', '.join(facts.LAYOUTS)}", where=where)
            layout, source = facts.LAYOUTS[named], where
        elif geometry.qsa is not None:
            layout, source = "nhd", "the compressed index's pages are beside those of K and V (BLNHC)"
        elif self.backend in facts.WANT_HND and self.platform != "npu":
            layout, source = "hnd", f"the {self.backend} connector asks for it"
        else:
            layout, source = "nhd", facts.DEFAULT
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

    def _taps_first(self, geometry: Geometry) -> bool:
        """Whether windows are `[taps][channels]`, as they are unless VLLM_SSM_CONV_STATE_LAYOUT is DS.

        NIXL's worker does not start with them (nixl/base_worker.py:606), so over it they are what it asks for.
        """
        named = self.request.flags.get("ssm-conv-state-layout")
        if named is None and self.backend == "nixl" and geometry.recurrent is not None:
            if self.platform != "cpu":
                self.notes.append(
                    "VLLM_SSM_CONV_STATE_LAYOUT=DS is assumed: without it the NIXL connector does not start"
                )
            return False
        return named != "DS"

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
