"""The block size that vLLM ends up with: asked for, or what the attention backends take, raised for recurrent state.

Platform.update_block_size_for_backend (platforms/interface.py:750): first a size that every backend takes, unless one
is asked for; then, where layers keep recurrent state, as many tokens as make an attention page hold it.
"""

from typing import NamedTuple

from pdctl.derive.geometry import Geometry, Gqa, Mla
from pdctl.derive.refusal import refuse_groups, refuse_undivided
from pdctl.derive.request import Request
from pdctl.derive.shapes import Pool, entries
from pdctl.derive.vllm import facts, pools
from pdctl.derive.vllm.settings import Settings
from pdctl.errors import ConfigError


class Block(NamedTuple):
    """Tokens a block, and where that comes from."""

    size: int
    source: str


def block_of(request: Request, geometry: Geometry, settings: Settings) -> Block:
    """The effective block size. Raises ConfigError where no backend takes it."""
    block = _chosen(request, geometry, settings)
    _refuse_other(request, geometry, block.size)
    if geometry.recurrent is None and geometry.ple is None:
        return block
    raised = _aligned(block.size, request, geometry, settings)
    if raised == block.size:
        return block
    return Block(raised, f"raised from {block.size}, so that an attention page holds a recurrent state")


def _chosen(request: Request, geometry: Geometry, settings: Settings) -> Block:
    latent, platform = isinstance(geometry.attention, Mla), settings.platform
    if request.page_size:
        return Block(request.page_size, "--block-size")
    if geometry.compressed is not None:
        return Block(facts.COMPRESSED_BLOCK_SIZE, "the index of compressed latents takes 256")
    if geometry.sparse is not None:
        return Block(facts.SPARSE_BLOCK_SIZE, "block-sparse attention takes 128")
    if platform == "npu" or (platform == "cpu" and isinstance(geometry.attention, Gqa)):
        return Block(facts.WIDE_BLOCK_SIZE, f"{facts.DEFAULT} on {platform}")
    if geometry.index is not None or (latent and settings.kv_itemsize == 1):
        return Block(64, "the latent attention backend takes 64")
    if latent and platform == "sm100":
        return Block(32, "FLASHINFER_MLA takes 32 or 64")
    return Block(facts.BLOCK_SIZE, facts.DEFAULT)


def _refuse_other(request: Request, geometry: Geometry, size: int) -> None:
    """A block that is no multiple of what the model's own kernels take: vLLM raises at start (worker/utils.py:489)."""
    what = "compress_ratios" if geometry.compressed else "sparse_attention_config" if geometry.sparse else None
    takes = facts.COMPRESSED_BLOCK_SIZE if geometry.compressed else facts.SPARSE_BLOCK_SIZE
    if what is not None and size % takes:
        raise ConfigError(
            f"{what}: block size {size}, expected a multiple of {takes}; vLLM does not start",
            where=request.origins.get("page_size", "--block-size"),
        )


def _aligned(size: int, request: Request, geometry: Geometry, settings: Settings) -> int:
    """Recurrent and attention layers share one page size: the block grows until the largest state fits."""
    source, tp = request.config_source, request.attn_tp
    token = Pool(kind="kv", index_space="page", buffers=pools.kv(geometry.full, geometry.attention, 1, settings))
    states = [Pool(kind="mamba", index_space="slot", buffers=held) for held in pools.states(geometry, settings)]
    refuse_groups(geometry, tp, source, "vLLM")
    refuse_undivided((*states, token), tp, source)
    held, row = max(_item_bytes(state, tp) for state in states), _item_bytes(token, tp)
    if not held or not row:
        return size
    step = max(size, 128 if isinstance(geometry.attention, Mla) else facts.BLOCK_SIZE)
    return max(size, step * -(-held // (step * row)))


def _item_bytes(pool: Pool, tp: int) -> int:
    """Bytes of one item of each buffer together, in one layer on one rank."""
    return sum(entry.item_len for one in pool.buffers for entry in entries(one, one.layers[:1], tp))
