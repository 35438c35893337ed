"""The page size that SGLang ends up with: forced by the model, asked for, or what the attention backend takes."""

from typing import Final

from msgspec import Struct

from pdctl.derive.geometry import Geometry, Gqa, Mla
from pdctl.derive.request import Request
from pdctl.derive.sglang import facts

BACKEND_FLAGS: Final = ("attention-backend", "prefill-attention-backend", "decode-attention-backend")


class Page(Struct, frozen=True):
    """Tokens a page, where that comes from, and what an operator should know of it."""

    size: int
    source: str
    note: str | None = None


def page_of(request: Request, geometry: Geometry, platform: str) -> Page:
    """The effective page size."""
    chosen = _forced(geometry, platform) or _chosen(request, geometry, platform)
    if geometry.recurrent is not None and geometry.recurrent.family == "short_conv" and chosen.size > 1:
        note = (
            f"pages of {chosen.size} tokens: SGLang takes them for short convolutions with --disable-radix-cache alone"
        )
        return Page(chosen.size, chosen.source, note)
    if request.page_size not in (None, chosen.size):
        note = f"page size {request.page_size} was asked for, SGLang makes it {chosen.size}: {chosen.source}"
        return Page(chosen.size, chosen.source, note)
    return chosen


def _forced(geometry: Geometry, platform: str) -> Page | None:
    """Page sizes that the engine sets whatever is asked for."""
    if geometry.compressed is not None:
        return Page(256, "SGLang forces 256 for DeepSeek-V4")
    if geometry.qsa is not None:
        return Page(64, "SGLang forces 64 for compressed sparse attention")
    if geometry.index is not None and platform != "npu":
        return Page(64, "SGLang forces 64 for DSA")
    return None


def _chosen(request: Request, geometry: Geometry, platform: str) -> Page:
    """What is asked for, or else the default, as far as the attention backend takes it."""
    page = _asked(request) or _default(request, geometry, platform)
    for backend, why in _backends(request, geometry, platform):
        pages = facts.BACKEND_PAGES.get(backend, ())
        if backend == "fa4" and (platform != "sm100" or isinstance(geometry.attention, Mla)):
            continue  # its constraint holds on SM100 and without latents only
        if pages and page.size not in pages:
            page = Page(pages[-1], f"{why} takes {', '.join(map(str, sorted(pages)))}")
    return page


def _asked(request: Request) -> Page | None:
    if request.page_size is None:
        return None
    return Page(request.page_size, request.origins.get("page_size", "--page-size"))


def _default(request: Request, geometry: Geometry, platform: str) -> Page:
    if platform == "npu":
        return Page(128, f"{facts.DEFAULT} on NPU")
    if geometry.sparse is not None:
        return Page(128, f"{facts.DEFAULT} for block-sparse attention")
    if platform == "sm100" and _is_gdn(geometry) and "attention-backend" not in request.flags:
        note = "on SM100 the page size defaults to 1 on prefill and 64 on decode: give --page-size to pair them"
        return Page(1 if request.role == "prefill" else 64, f"{facts.DEFAULT} on SM100, {request.role}", note)
    return Page(1, facts.DEFAULT)


def _backends(request: Request, geometry: Geometry, platform: str) -> list[tuple[str, str]]:
    """The attention backends and how they were chosen: by flags, or on SM100 by the model."""
    named = [
        (request.flags[flag], f"--{flag} {request.flags[flag]}") for flag in BACKEND_FLAGS if flag in request.flags
    ]
    if named or platform != "sm100" or geometry.recurrent is not None or geometry.sparse is not None:
        return named
    default = "trtllm_mha" if _one_width(geometry) else "fa4"
    if isinstance(geometry.attention, Mla):
        default = "trtllm_mla"
    return [(default, f"{default}, {facts.DEFAULT} on SM100,")]


def _is_gdn(geometry: Geometry) -> bool:
    return geometry.recurrent is not None and geometry.recurrent.family == "gdn"


def _one_width(geometry: Geometry) -> bool:
    """Whether K and V are equally wide in every layer, which trtllm_mha wants."""
    kept = [geometry.attention, *([geometry.sliding.attention] if geometry.sliding else [])]
    return all(isinstance(one, Gqa) and one.head_dim == one.v_head_dim for one in kept)
