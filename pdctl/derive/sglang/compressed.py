"""DeepSeek-V4 in SGLang: pages of compressed latents, pages of a window, and the states of compressors.

A group of tokens that is not complete yet has a state of its own, in float32: of the small ratio a ring in each page of
the window, of the large one a ring in each request's row. Speculation widens both rings. All is the same on every rank.
"""

from collections.abc import Mapping
from typing import Final, NamedTuple

from pdctl.derive import buffers
from pdctl.derive.geometry import INDEXED, PLAIN, Compressed, Geometry, Mla
from pdctl.derive.request import Request
from pdctl.derive.shapes import Buffer, Pool
from pdctl.errors import ConfigError, InputError

PAGE_SIZE: Final = 256
LATENT: Final = Mla(448, 64)
"""The only latent that its rows are laid out for."""


class Rows(NamedTuple):
    """Bytes of a token's row, and what a page of them is padded to."""

    width: int
    align: int

    def page(self, tokens: int) -> int:
        """Bytes of a page."""
        return -(-tokens * self.width // self.align) * self.align


#: SGLANG_DSV4_KV_LAYOUT: the window's rows; compressed rows beside them in fp8, or in fp4.
LAYOUTS: Final[Mapping[str, Rows]] = {
    "v4": Rows(584, 576),
    "v41": Rows(528, 512),
    "v41_fp4": Rows(288, 256),
    "v41_new": Rows(528, 528),
    "v41_fp4_new": Rows(288, 288),
}
FP4: Final = {"v41": "v41_fp4", "v41_new": "v41_fp4_new"}


class Choices(NamedTuple):
    """What environment variables and flags say of these pools."""

    main: str
    compressed: str
    index_width: int
    """Bytes of an index key, its scales included."""
    itemsize: int
    """Bytes of an element of a compressor's state."""
    rings: Mapping[int, int]
    """Tokens of a compressor's ring, by ratio."""
    online: bool
    """The large ratio keeps a running sum and no tokens."""

    @property
    def kv_layout(self) -> str:
        """The word that the two sides compare."""
        return ",".join([self.main, *(f"c{ratio}:{self.compressed}" for ratio in (INDEXED, PLAIN))])


def choose(request: Request, compressed: Compressed, platform: str) -> Choices:
    """Raises InputError for what the engine would not start with."""
    if platform == "npu":
        raise ConfigError("compress_ratios: DeepSeek-V4's layout on NPU is not known", where=request.config_source)
    main, packed = _layouts(request, platform)
    speculative = bool(request.speculative)
    online = _on(request, "online-compress")
    if online and speculative and not _on(request, "online-compress-mtp"):
        raise InputError(
            "found 1 with speculative decoding: SGLang does not start", where=request.origins["online-compress"]
        )
    fp4_index = "enable-deepseek-v4-fp4-indexer" in request.flags
    return Choices(
        main=main,
        compressed=packed,
        index_width=compressed.index_dim // 2 + compressed.index_dim // 32
        if fp4_index
        else compressed.index_dim + compressed.index_dim // 128 * 4,
        itemsize=_state_itemsize(request),
        rings={INDEXED: 16 if speculative else 8, PLAIN: 256 if speculative else 128},
        online=online,
    )


def compressed_pools(geometry: Geometry, choices: Choices, source: str) -> list[Pool]:
    """The target's pools in SGLang's order. Raises ConfigError where the latent is one that it cannot lay out."""
    compressed, latent = geometry.compressed, geometry.attention
    assert compressed is not None
    if latent != LATENT:
        raise ConfigError(
            f"head_dim: SGLang's rows hold {LATENT.rank} + {LATENT.rope} elements, found {latent}", where=source
        )
    width = LATENT.rank + LATENT.rope
    small, large = compressed.of(INDEXED), compressed.of(PLAIN)
    rows = LAYOUTS[choices.compressed]
    keys = PAGE_SIZE // INDEXED * choices.index_width
    ring = choices.rings[INDEXED]
    overlapping, running = 4 * choices.itemsize, (3 if choices.online else 2) * choices.itemsize
    kv = (
        _page("latent", small, rows.page(PAGE_SIZE // INDEXED)),
        _page("index_k", small, keys),
        _page("latent", large, rows.page(PAGE_SIZE // PLAIN)),
    )
    window = (
        _window(tuple(range(geometry.num_layers)), choices),
        buffers.rows("state", small, ring, overlapping * width),
        buffers.rows("index_state", small, ring, overlapping * compressed.index_dim),
    )
    request = buffers.rows("state", large, 1 if choices.online else PLAIN, running * width)
    return [
        Pool(kind="kv", index_space="page", buffers=kv),
        Pool(kind="swa", index_space="window_page", buffers=window),
        Pool(kind="c128_state", index_space="other", buffers=(request,)),
    ]


def draft_pool(first: int, count: int, choices: Choices) -> Pool:
    """A draft's layers keep the window alone, in a component of their own."""
    layers = tuple(range(first, first + count))
    return Pool(kind="swa", index_space="window_page", buffers=(_window(layers, choices),), apart=True)


def dspark_pools(first: int, stages: int, choices: Choices) -> dict[str, Pool]:
    """A DSpark draft's windows, and a row a request: the position from which they are the request's own."""
    mark = buffers.rows("valid_from", (first,), 1, buffers.POSITION_BYTES)
    row = Pool(kind="request_row", index_space="row", buffers=(mark,), apart=True)
    return {"swa": draft_pool(first, stages, choices), "request_row": row}


def _window(layers: tuple[int, ...], choices: Choices) -> Buffer:
    return _page("latent", layers, LAYOUTS[choices.main].page(PAGE_SIZE))


def _page(tensor: str, layers: tuple[int, ...], size: int) -> Buffer:
    """A page as one unit: its rows and their scales lie apart, and its end is padding."""
    return buffers.rows(tensor, layers, 1, size)


def _layouts(request: Request, platform: str) -> tuple[str, str]:
    """The window's layout and that of compressed rows: v4 unless SM100 is told otherwise."""
    main = request.flags.get("dsv4-kv-layout", "v4").lower()
    where = request.origins.get("dsv4-kv-layout", "SGLANG_DSV4_KV_LAYOUT")
    if main == "auto":
        main = "v41" if platform == "sm100" else "v4"
    if main not in ("v4", *FP4):
        raise InputError(f"found {main}, expected auto, v4, v41 or v41_new", where=where)
    if main != "v4" and platform != "sm100":
        raise InputError(f"found {main}, which needs sm100; the platform is {platform}", where=where)
    option = request.flags.get("dsv4-compressed-kv-layout", "auto").lower()
    where = request.origins.get("dsv4-compressed-kv-layout", "SGLANG_DSV4_COMPRESSED_KV_LAYOUT")
    if option not in ("auto", "fp8", "fp4") or (option == "fp4" and main == "v4"):
        raise InputError(f"found {option}, expected auto or fp8 beside {main}", where=where)
    return main, FP4[main] if option == "fp4" else main


def _state_itemsize(request: Request) -> int:
    word = request.flags.get("dsv4-compress-state-dtype", "float32").lower()
    size = {"float32": 4, "fp32": 4, "bfloat16": 2, "bf16": 2}.get(word)
    if size is None:
        where = request.origins.get("dsv4-compress-state-dtype", "SGLANG_DSV4_COMPRESS_STATE_DTYPE")
        raise InputError(f"found {word}, expected float32 or bfloat16", where=where)
    return size


def _on(request: Request, name: str) -> bool:
    """A boolean variable as SGLang reads it."""
    word = request.flags.get(name, "0").lower()
    if word not in ("true", "1", "yes", "y", "false", "0", "no", "n"):
        raise InputError(f"found {word}, expected 1 or 0", where=request.origins.get(name, name))
    return word in ("true", "1", "yes", "y")
