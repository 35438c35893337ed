"""What vLLM 0.32 does of its own accord: tables and numbers that no config key tells, each with where it is read."""

from collections.abc import Mapping
from typing import Final

from pdctl.versions import PINNED

VERSION: Final = PINNED["vllm"]
DEFAULT: Final = f"default of vLLM {VERSION}"
"""The origin of what nobody said."""
BLOCK_SIZE: Final = 16
WIDE_BLOCK_SIZE: Final = 128
"""On CPU and NPU."""
SPARSE_BLOCK_SIZE: Final = 128
"""The one page of block-sparse attention: minimax_m3/common/sparse_attention.py and indexer.py."""
COMPRESSED_BLOCK_SIZE: Final = 256
"""Tokens of a block whose compressed rows DeepSeek-V4's backends take: mla/indexer.py:356, mla/sparse_swa.py."""
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
WANT_HND: Final = frozenset({"nixl", "mooncake", "pdctl"})
#: Backends whose connectors know hybrid caches; with any other, sliding layers are kept like the rest.
KNOW_HYBRID: Final = frozenset({"nixl", "mooncake", "mori", "pdctl"})

# DeepSeek-V4. Pages are padded to whole rows of these bytes: deepseek_v4/attention.py:873, compressor.py:193.
PACKED_ROW: Final = 584
"""A packed latent of fp8_ds_mla: 448 of NoPE, 128 of RoPE, 8 of scales (attention.py:878)."""
PACKED_ALIGNMENT: Final = 576
PLAIN_ALIGNMENT: Final = 512
WINDOW_BLOCK: Final = 64
"""Tokens of a block of the window (mla/sparse_swa.py, block_size)."""
#: Tokens of a block of a compressor's state, by ratio (compressor.py:164).
STATE_BLOCK: Final[Mapping[int, int]] = {4: 4, 128: 8}
#: The attention backend with plain rows in place of packed ones (nvidia/flashinfer_sparse.py:206).
PLAIN_ROWS: Final = "FLASHINFER_MLA_SPARSE_DSV4"


def index_row(dtype: str, dim: int) -> int:
    """Bytes of one index key beside latents: fp8 with a float32 scale each 128, or MXFP4 with a byte each 32."""
    return dim // 2 + dim // 32 if dtype == "mxfp4" else dim + dim // 128 * 4


#: KV types of four bits with a scale for each sixteen elements beside them, in the same row.
NVFP4: Final = frozenset({"nvfp4", "nvfp4_4over6"})
#: KV types that the engine takes and whose pages were not read.
UNREAD_DTYPES: Final = frozenset(
    {
        "fp8_inc",
        "nvfp4_ds_mla",
        "turboquant_k8v4",
        "turboquant_4bit_nc",
        "turboquant_k3v4_nc",
        "turboquant_3bit_nc",
        "ultraquant_4bit",
        "int4_per_token_head",
        "int8_per_token_head",
        "fp8_per_token_head",
    }
)


def nvfp4_row(dim: int) -> int:
    """Bytes of one head of one token: `nvfp4_kv_cache_full_dim` of `vllm/utils/torch_utils.py`."""
    return dim // 2 + dim // 16
