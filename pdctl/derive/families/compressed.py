"""DeepSeek-V4: latents that are compressed by layer, beside a window of uncompressed ones."""

from typing import Final

from pdctl.derive.config import Config
from pdctl.derive.geometry import INDEXED, PLAIN, Compressed, Mla

KEY: Final = "compress_ratios"


def read_compressed(config: Config, num_layers: int) -> Compressed | None:
    """`compress_ratios` has a number a layer, and may go on with those of the draft's layers."""
    if not config.get(KEY):
        return None
    ratios = config.sizes(KEY, length=num_layers)[:num_layers]
    if strange := sorted(set(ratios) - {0, INDEXED, PLAIN}):
        config.fail(KEY, f"found {strange[0]}, expected 0, {INDEXED} or {PLAIN}: no other ratio is known")
    dim = config.size("index_head_dim")
    if dim % 128:
        config.fail("index_head_dim", f"found {dim}, expected a multiple of 128: one scale is kept for each of them")
    return Compressed(ratios, config.size("sliding_window"), dim)


def read_latent(config: Config) -> Mla:
    """One row of `head_dim` elements, which is K and V at once; the last `qk_rope_head_dim` of them are rotated."""
    width, rope = config.size("head_dim"), config.size("qk_rope_head_dim")
    if rope >= width:
        config.fail("qk_rope_head_dim", f"found {rope}, which is not less than head_dim {width}")
    if config.size("num_key_value_heads", 1) != 1:
        config.fail("num_key_value_heads", "compressed latents with several heads are not understood")
    return Mla(width - rope, rope)
