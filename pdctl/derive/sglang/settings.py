"""The effective page size, KV dtype and state dtype of an SGLang engine, each with where it comes from."""

from msgspec import Struct

from pdctl.derive.buffers import SCALED
from pdctl.derive.config import Config
from pdctl.derive.drafts import drafted_tokens
from pdctl.derive.dtypes import FOUR_BITS, itemsize, model_dtype, quantised_kv
from pdctl.derive.geometry import Geometry, Gqa
from pdctl.derive.request import Request
from pdctl.derive.sglang import facts
from pdctl.derive.sglang.pages import page_of
from pdctl.errors import ConfigError, InputError
from pdctl_transfer.rules.outcome import Evidence

STATE_ITEMSIZE = 2
"""Convolution windows, PLE and QSA state, whatever the KV dtype."""


class Settings(Struct, frozen=True, kw_only=True):
    """What shapes buffers beside the model: bytes an element, tokens a page, the platform."""

    page_size: int
    kv_dtype: str
    kv_itemsize: int
    packed: bool
    """Whether a byte holds two elements of K, V or a latent."""
    model_itemsize: int
    state_itemsize: int
    platform: str
    index_itemsize: int
    """Bytes of an element of a block-sparse index."""
    compressed_itemsize: int
    """Bytes of an element of QSA's compressed keys."""
    scaled_fp8_rows: bool
    """Whether DSA keeps fp8 latents with scales and a 16-bit rope part; trtllm, SM100's default, does not."""
    extra_taps: int
    """Positions by which NPU widens a recurrent window for the tokens that a draft proposes."""
    sources: dict[str, Evidence]
    notes: tuple[str, ...]


def resolve(request: Request, config: Config, geometry: Geometry) -> Settings:
    """Every effective setting. Raises InputError for a flag whose value the engine would not take."""
    notes: list[str] = []
    sources: dict[str, Evidence] = {}
    platform = _platform(request, notes)
    kv_dtype, model_itemsize = _dtypes(request, config, geometry, platform, sources, notes)
    packed = kv_dtype in FOUR_BITS
    if packed or kv_dtype == "mxfp8":
        _refuse_scaled(request, geometry, kv_dtype)
    kv_itemsize = model_itemsize if kv_dtype == "auto" else 1 if packed else itemsize(kv_dtype)
    assert kv_itemsize is not None  # _dtypes has refused others
    page = page_of(request, geometry, platform)
    sources["page_size"] = Evidence(page.source, str(page.size))
    notes += [page.note] if page.note else []
    return Settings(
        page_size=page.size,
        kv_dtype=kv_dtype,
        kv_itemsize=kv_itemsize,
        packed=packed,
        model_itemsize=model_itemsize,
        state_itemsize=_state_itemsize(request, config, geometry, sources),
        platform=platform,
        index_itemsize=1 if kv_dtype == "fp8_e4m3" else model_itemsize,
        compressed_itemsize=1 if request.flags.get("qsa-indexer-dtype") == "fp8_e4m3" else STATE_ITEMSIZE,
        scaled_fp8_rows=geometry.index is not None
        and kv_itemsize == 1
        and platform != "npu"
        and not _raw_fp8_rows(request, platform, sources),
        extra_taps=max(0, drafted_tokens(request.speculative) - 1) if platform == "npu" else 0,
        sources=sources,
        notes=tuple(notes),
    )


def _platform(request: Request, notes: list[str]) -> str:
    """The platform that is asked for; else Hopper, or what the KV type needs."""
    where, word = _origin(request, "kv_cache_dtype", "--kv-cache-dtype"), request.kv_cache_dtype
    if request.platform is not None:
        if word in facts.BLACKWELL_DTYPES and request.platform != "sm100":
            raise InputError(f"found {word}, which SGLang {facts.VERSION} takes on sm100 alone", where=where)
        return request.platform
    assumed = "sm100" if word in facts.BLACKWELL_DTYPES else "hopper"
    why = f": {word} needs it" if assumed == "sm100" else ""
    notes.append(f"platform {assumed} is assumed{why} (--platform)")
    return assumed


def _refuse_scaled(request: Request, geometry: Geometry, kv_dtype: str) -> None:
    """Types with block scales, where no pool of theirs was seen: MXFP8 is K and V's, four bits are one plain pool's."""
    where = _origin(request, "kv_cache_dtype", "--kv-cache-dtype")
    parts = (geometry.recurrent, geometry.index, geometry.sparse, geometry.qsa)
    kept = [geometry.attention, *([geometry.sliding.attention] if geometry.sliding else [])]
    if any(part is not None for part in parts) or (kv_dtype in FOUR_BITS and geometry.sliding is not None):
        raise ConfigError(f"KV of type {kv_dtype} beside state of other kinds: its pools are not known", where=where)
    for one in kept:
        if kv_dtype == "mxfp8" and not isinstance(one, Gqa):
            raise ConfigError("latents of type mxfp8: their pool is not known", where=where)
        if kv_dtype == "mxfp8" and isinstance(one, Gqa) and (one.head_dim % SCALED or one.v_head_dim % SCALED):
            raise InputError(f"found mxfp8, but a head of {one.head_dim} is not whole blocks of {SCALED}", where=where)


def _origin(request: Request, name: str, flag: str) -> str:
    return request.origins.get(name, flag)


def _dtypes(
    request: Request, config: Config, geometry: Geometry, platform: str, sources: dict[str, Evidence], notes: list[str]
) -> tuple[str, int]:
    """The string that the engine compares, and the bytes of the model's own elements."""
    model, model_itemsize, key = model_dtype(request, config)
    asked = request.kv_cache_dtype
    sources["kv_cache_dtype"] = Evidence(_origin(request, "kv_cache_dtype", "--kv-cache-dtype"), asked)
    if geometry.compressed is not None:
        return _packed(request, sources), model_itemsize
    resolves_first = geometry.index is not None and platform != "npu"
    if asked == "auto" and not resolves_first and (quantised := quantised_kv(config)):
        sources["kv_cache_dtype"] = Evidence(f"{config.source}: {quantised}", "fp8_e4m3")
        return "fp8_e4m3", model_itemsize
    if resolves_first:
        if asked == "auto":
            asked = "fp8_e4m3" if platform == "sm100" else "bfloat16"
            sources["kv_cache_dtype"] = Evidence(f"{facts.DEFAULT} for DSA on {platform}", asked)
        asked = "bfloat16" if asked == "bf16" else asked
        if asked not in ("bfloat16", "fp8_e4m3"):
            raise InputError(
                f"found {asked}, expected auto, bfloat16 or fp8_e4m3: DSA takes no other",
                where=_origin(request, "kv_cache_dtype", "--kv-cache-dtype"),
            )
        return asked, model_itemsize
    if asked == "auto":
        sources["kv_cache_dtype"] = Evidence(facts.DEFAULT, f"auto, here {model} by {key}")
    elif asked in facts.OLDER_DTYPES:
        where = _origin(request, "kv_cache_dtype", "--kv-cache-dtype")
        raise ConfigError(f"KV of type {asked}, a word of releases before {facts.VERSION}: not known", where=where)
    elif itemsize(asked) is None and asked not in FOUR_BITS:
        raise InputError(
            f"found {asked}, expected one of {', '.join(facts.KV_DTYPES)}",
            where=_origin(request, "kv_cache_dtype", "--kv-cache-dtype"),
        )
    elif asked not in facts.KV_DTYPES:
        notes.append(
            f"SGLang {facts.VERSION} does not take --kv-cache-dtype {asked}; {asked} follows from --dtype with auto"
        )
    return asked, model_itemsize


def _packed(request: Request, sources: dict[str, Evidence]) -> str:
    """DeepSeek-V4's rows are fp8; bfloat16 passes the argument check and fails at the pool."""
    origin, asked = _origin(request, "kv_cache_dtype", "--kv-cache-dtype"), request.kv_cache_dtype
    if asked not in ("auto", "fp8_e4m3"):
        raise InputError(f"found {asked}, expected auto or fp8_e4m3: DeepSeek-V4 takes no other", where=origin)
    source = f"{facts.DEFAULT} for DeepSeek-V4" if asked == "auto" else origin
    sources["kv_cache_dtype"] = Evidence(source, "fp8_e4m3")
    return "fp8_e4m3"


def _state_itemsize(request: Request, config: Config, geometry: Geometry, sources: dict[str, Evidence]) -> int:
    """Bytes of a temporal state's element: the flag, else the config's `mamba_ssm_dtype`, else float32."""
    state = geometry.recurrent
    if state is None:
        return 4
    word, source = "float32", facts.DEFAULT
    if state.state_dtype is not None:
        word, source = state.state_dtype, f"{config.source}: {config.text().path}mamba_ssm_dtype"
    if "mamba-ssm-dtype" in request.flags:
        word, source = request.flags["mamba-ssm-dtype"], _origin(request, "mamba-ssm-dtype", "--mamba-ssm-dtype")
    size = {"float32": 4, "bfloat16": 2, "float16": 2}.get(word)
    if size is None:
        raise InputError(f"found {word}, expected float32, bfloat16 or float16", where=source)
    sources["mamba_ssm_dtype"] = Evidence(source, word)
    return size


def _raw_fp8_rows(request: Request, platform: str, sources: dict[str, Evidence]) -> bool:
    """The backend of the local role decides: trtllm keeps raw rows, flashmla adds scales and a 16-bit rope part.

    tilelang keeps raw rows too, where both roles' backends are named so.
    """
    if all(request.flags.get(f"dsa-{role}-backend") == "tilelang" for role in ("prefill", "decode")):
        sources["dsa_backend"] = Evidence(_origin(request, "dsa-prefill-backend", "--dsa-prefill-backend"), "tilelang")
        return True
    name = f"dsa-{request.role}-backend"
    if name in request.flags:
        sources["dsa_backend"] = Evidence(_origin(request, name, f"--{name}"), request.flags[name])
        return request.flags[name] == "trtllm"
    default = "trtllm" if platform == "sm100" else "flashmla_kv"
    sources["dsa_backend"] = Evidence(f"{facts.DEFAULT} for fp8 on {platform}", default)
    return platform == "sm100"
