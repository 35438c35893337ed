"""Tiny models with real random weights for the real engines, made once and kept in the cache.

`builtin:tiny-llama` (dense GQA; `tiny-llama-deep` has a layer more) and `builtin:tiny-qwen3-next` (gated delta net,
attention and experts) let the shipped examples run without a download. The weights are drawn from a seed and saved:
engines' own `--load-format dummy` repeats one token for ever, and so would hide every wrong byte of a transfer.
"""

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pdctl.engines.cache import cache_root, private_folder, unwritable

if TYPE_CHECKING:
    import numpy as np

PREFIX: Final = "builtin:"
REVISION: Final = 2
"""Raised with every change of weights or files, so that an old copy in the cache is not taken for the new one."""

_BYTES: Final = 256
_EOS, _BOS = _BYTES, _BYTES + 1
_VOCAB: Final = 288

_COMMON: Final[dict[str, Any]] = {
    "vocab_size": _VOCAB,
    "bos_token_id": _BOS,
    "eos_token_id": _EOS,
    "hidden_act": "silu",
    "initializer_range": 0.02,
    "max_position_embeddings": 4096,
    "rms_norm_eps": 1e-6,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "dtype": "bfloat16",
}

_LLAMA: Final[dict[str, Any]] = _COMMON | {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "rope_theta": 10000.0,
}

CONFIGS: Final[Mapping[str, Mapping[str, Any]]] = {
    "tiny-llama": _LLAMA,
    "tiny-llama-deep": _LLAMA | {"num_hidden_layers": 3},
    "tiny-qwen3-next": _COMMON
    | {
        "architectures": ["Qwen3NextForCausalLM"],
        "model_type": "qwen3_next",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 4,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 32,
        "partial_rotary_factor": 0.5,
        "rope_theta": 10000.0,
        "full_attention_interval": 2,
        "layer_types": ["linear_attention", "full_attention"] * 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "num_experts": 4,
        "num_experts_per_tok": 2,
        "norm_topk_prob": True,
        "decoder_sparse_step": 1,
        "mlp_only_layers": [],
        "moe_intermediate_size": 64,
        "shared_expert_intermediate_size": 64,
    },
}


def is_builtin(path: str) -> bool:
    """Whether `path` names one of these models (and not one of the reference engine's)."""
    return path.removeprefix(PREFIX) in CONFIGS and path.startswith(PREFIX)


def resolve(path: str) -> Path:
    """The folder with config.json behind a model path: a built-in one is made first, any other is taken as it is."""
    return materialise(path.removeprefix(PREFIX)) if is_builtin(path) else Path(path).expanduser()


def folder_of(name: str) -> Path:
    """Where the built-in model lies, written or not yet."""
    return cache_root() / "models" / f"r{REVISION}" / name


def materialise(name: str) -> Path:
    """The folder of a built-in model under the cache, written on first use (0.1 s) and published by one rename.

    Raises GateError (PD3114, PD3115) where the cache is not ours alone, or takes no file.
    """
    target = folder_of(name)
    for folder in (cache_root(), cache_root() / "models", target.parent):
        private_folder(folder)
    if target.is_dir():
        return target
    try:
        _publish(name, target)
    except OSError as error:
        raise unwritable(target, error) from error
    return target


def _publish(name: str, target: Path) -> None:
    import shutil
    import tempfile

    staging = Path(tempfile.mkdtemp(prefix=f".{name}-", dir=target.parent))
    try:
        write(staging, CONFIGS[name])
        try:
            staging.rename(target)
        except OSError:  # another process was first; its copy is the same bytes
            if not target.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)


def write(folder: Path, config: Mapping[str, Any]) -> None:
    """A folder with weights drawn from a seed, tokenizer and config.json: what engines load."""
    import numpy as np

    random = np.random.default_rng(20251129)
    tensors = {name: draw(random, name, shape) for name, shape in _shapes(config)}
    (folder / "model.safetensors").write_bytes(safetensors(tensors))
    documents = {
        "config.json": dict(config),
        "generation_config.json": {"bos_token_id": _BOS, "eos_token_id": _EOS},
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": "<|bos|>",
            "eos_token": "<|eos|>",
            "model_max_length": config["max_position_embeddings"],
            "clean_up_tokenization_spaces": False,
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1))


def _shapes(config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of all tensors, as a checkpoint of this architecture on the hub spells them."""
    hidden, vocab = config["hidden_size"], config["vocab_size"]
    kinds = config.get("layer_types") or ["full_attention"] * config["num_hidden_layers"]
    yield "model.embed_tokens.weight", (vocab, hidden)
    yield "model.norm.weight", (hidden,)
    yield "lm_head.weight", (vocab, hidden)
    for index, kind in enumerate(kinds):
        layer = f"model.layers.{index}"
        yield f"{layer}.input_layernorm.weight", (hidden,)
        yield f"{layer}.post_attention_layernorm.weight", (hidden,)
        yield from _linear_attention(layer, config) if kind == "linear_attention" else attention(layer, config)
        yield from (
            _experts(layer, config)
            if "num_experts" in config
            else mlp(f"{layer}.mlp", hidden, config["intermediate_size"])
        )


def attention(layer: str, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of the projections of one layer's attention."""
    hidden, head_dim = config["hidden_size"], config["head_dim"]
    queries, keys = config["num_attention_heads"] * head_dim, config["num_key_value_heads"] * head_dim
    gated = config["model_type"] == "qwen3_next"  # this architecture's q_proj yields the output gate as well
    yield f"{layer}.self_attn.q_proj.weight", (queries * (2 if gated else 1), hidden)
    yield f"{layer}.self_attn.k_proj.weight", (keys, hidden)
    yield f"{layer}.self_attn.v_proj.weight", (keys, hidden)
    yield f"{layer}.self_attn.o_proj.weight", (hidden, queries)
    if gated:
        yield f"{layer}.self_attn.q_norm.weight", (head_dim,)
        yield f"{layer}.self_attn.k_norm.weight", (head_dim,)


def _linear_attention(layer: str, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden, heads = config["hidden_size"], config["linear_num_value_heads"]
    keys = config["linear_num_key_heads"] * config["linear_key_head_dim"]
    values = heads * config["linear_value_head_dim"]
    yield f"{layer}.linear_attn.in_proj_qkvz.weight", (2 * keys + 2 * values, hidden)
    yield f"{layer}.linear_attn.in_proj_ba.weight", (2 * heads, hidden)
    yield f"{layer}.linear_attn.conv1d.weight", (2 * keys + values, 1, config["linear_conv_kernel_dim"])
    yield f"{layer}.linear_attn.A_log", (heads,)
    yield f"{layer}.linear_attn.dt_bias", (heads,)
    yield f"{layer}.linear_attn.norm.weight", (config["linear_value_head_dim"],)
    yield f"{layer}.linear_attn.out_proj.weight", (hidden, values)


def mlp(prefix: str, hidden: int, inner: int) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Names and shapes of one gated MLP."""
    yield f"{prefix}.gate_proj.weight", (inner, hidden)
    yield f"{prefix}.up_proj.weight", (inner, hidden)
    yield f"{prefix}.down_proj.weight", (hidden, inner)


def _experts(layer: str, config: Mapping[str, Any]) -> Iterator[tuple[str, tuple[int, ...]]]:
    hidden = config["hidden_size"]
    yield f"{layer}.mlp.gate.weight", (config["num_experts"], hidden)
    for index in range(config["num_experts"]):
        yield from mlp(f"{layer}.mlp.experts.{index}", hidden, config["moe_intermediate_size"])
    yield from mlp(f"{layer}.mlp.shared_expert", hidden, config["shared_expert_intermediate_size"])
    yield f"{layer}.mlp.shared_expert_gate.weight", (1, hidden)


def draw(random: "np.random.Generator", name: str, shape: tuple[int, ...]) -> "np.ndarray[Any, Any]":
    """Weights wide enough that greedy tokens vary, norms near their neutral value."""
    import numpy as np

    values = random.standard_normal(shape, dtype=np.float32)
    if name.endswith(("norm.weight", "layernorm.weight", "A_log", "dt_bias")):
        return 1.0 + 0.1 * values
    scaled: np.ndarray[Any, Any] = values * (1.6 / np.sqrt(shape[-1]))
    return scaled


def safetensors(tensors: Mapping[str, "np.ndarray[Any, Any]"]) -> bytes:
    """A safetensors file in bfloat16: 8 bytes of header length, the header as JSON, the data."""
    import numpy as np

    header: dict[str, Any] = {}
    chunks: list[bytes] = []
    end = 0
    for name, tensor in tensors.items():
        bits = np.ascontiguousarray(tensor, dtype=np.float32).view(np.uint32)
        half = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16  # round to nearest, ties to even
        chunk = half.astype("<u2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(tensor.shape), "data_offsets": [end, end + len(chunk)]}
        end += len(chunk)
        chunks.append(chunk)
    text = json.dumps(header | {"__metadata__": {"format": "pt"}}).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + b"".join(chunks)


def _tokenizer() -> dict[str, Any]:
    """A byte-level tokenizer without merges: token id = byte value, in the printable alphabet byte-level BPE uses."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    shifted = iter(range(256, 512))
    alphabet = {byte: chr(byte) if byte in printable else chr(next(shifted)) for byte in range(_BYTES)}
    vocab = {alphabet[byte]: byte for byte in range(_BYTES)}
    special = [
        {
            "id": token,
            "content": content,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for token, content in ((_EOS, "<|eos|>"), (_BOS, "<|bos|>"))
    ]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": False, "use_regex": False}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": byte_level,
        "post_processor": None,
        "decoder": byte_level,
        "model": {"type": "BPE", "vocab": vocab, "merges": [], "fuse_unk": False, "byte_fallback": False},
    }
