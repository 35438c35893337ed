"""Bytes an element takes, by the names that flags and configs use for element types."""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pdctl.derive.config import Config
from pdctl.derive.request import Request
from pdctl.errors import InputError

ITEMSIZE: Final[Mapping[str, int]] = {
    "float64": 8,
    "float32": 4,
    "float": 4,
    "bfloat16": 2,
    "bf16": 2,
    "float16": 2,
    "fp16": 2,
    "half": 2,
    "fp8": 1,
    "fp8_e4m3": 1,
    "fp8_e5m2": 1,
    "mxfp8": 1,
}
#: SGLang's KV types of four bits: two elements a byte, and scales beside them that are no part of the page.
FOUR_BITS: Final = ("nvfp4", "fp4_mx_block16")


def itemsize(name: str) -> int | None:
    """Bytes of one element of the named type, with or without a `torch.` prefix; None where it is not known."""
    return ITEMSIZE.get(name.removeprefix("torch."))


class ModelDtype(NamedTuple):
    """The element type that the model runs in, its bytes, and the flag or key that says so."""

    word: str
    itemsize: int
    key: str


def model_dtype(request: Request, config: Config) -> ModelDtype:
    """By `--dtype`, else by the config: there engines take float32 for 16 bits, and 16 bits where nothing is said."""
    if (flag := request.flags.get("dtype", "auto")) != "auto":
        where = request.origins.get("dtype", "--dtype")
        if (size := itemsize(flag)) is None:
            raise InputError(f"found {flag}, whose size is not known", where=where)
        return ModelDtype(flag, size, where)
    for part in (config.text(), config):
        for key in ("dtype", "torch_dtype"):
            if (word := part.word(key)) is not None:
                if (size := itemsize(word)) is None:
                    part.fail(key, f"found {word!r}, whose size is not known")
                return ModelDtype(word, min(size, 2), f"{part.path}{key}")
    return ModelDtype("16 bits", 2, "the engine's default")


def quantised_kv(config: Config) -> str | None:
    """The key by which a ModelOpt checkpoint says that its KV cache is FP8: engines resolve `auto` to fp8_e4m3 then."""
    for part in (config, config.text()):
        if not part.has("quantization_config"):
            continue
        outer = part.child("quantization_config")
        if not (outer.word("quant_method") or "modelopt").startswith("modelopt"):
            continue
        inner = outer.child("quantization") if outer.has("quantization") else outer
        scheme = inner.get("kv_cache_scheme")
        if isinstance(scheme, Mapping) and scheme.get("type") == "float":
            if scheme.get("num_bits") == 4:
                inner.fail("kv_cache_scheme", "a KV cache of 4 bits is not known")
            if scheme.get("num_bits") == 8:
                return f"{inner.path}kv_cache_scheme"
        if str(inner.get("kv_cache_quant_algo")).upper() == "FP8":
            return f"{inner.path}kv_cache_quant_algo"
    return None
