"""Every dump of what vLLM's own code registers equals the derived layout, entry by entry and stage by stage."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from pdctl.derive import Request, derive
from pdctl_transfer.layout.manifest import Manifest

DATA = Path(__file__).parents[1] / "data" / "oracle"
DUMPS = sorted((DATA / "vllm").glob("*.json"))
#: Caches by the last part of their name and the class of their spec, as the contract names their kind and tensors.
CACHES: dict[tuple[str, str], tuple[str, tuple[str, ...]]] = {
    ("attn", "FullAttentionSpec"): ("kv", ("kv",)),
    ("attn", "SlidingWindowSpec"): ("swa", ("kv",)),
    ("attn", "MLAAttentionSpec"): ("kv", ("latent",)),
    ("self_attn", "MLAAttentionSpec"): ("kv", ("latent",)),
    ("self_attn", "MambaSpec"): ("mamba", ("conv", "temporal")),
    ("linear_attn", "MambaSpec"): ("mamba", ("conv", "temporal")),
    ("mixer", "MambaSpec"): ("mamba", ("conv", "temporal")),
    ("ple", "MambaSpec"): ("mamba", ("ple_short_conv",)),
    ("k_cache", "MLAAttentionSpec"): ("dsa", ("index_k",)),
    ("index_cache", "MLAAttentionSpec"): ("minimax_index_k", ("index_k",)),
    ("raw_key_cache", "CircularBufferSpec"): ("qsa_pending", ("pending_k",)),
    ("compressed_key_cache", "MLAAttentionSpec"): ("qsa_compressed", ("compressed_k",)),
    ("swa_cache", "SlidingWindowMLASpec"): ("swa", ("latent",)),
}
#: A compressor's state is of its kind by the tokens of its block, and of its tensor by whose compressor it is.
STATES = {4: "c4_state", 8: "c128_state"}
PLATFORMS = {90: "hopper", 100: "sm100"}


def read(path: Path) -> dict[str, Any]:
    return dict(json.loads(path.read_text(encoding="utf-8")))


def derived(dump: dict[str, Any], **changes: Any) -> Manifest:
    args = dict(dump["args"])
    attention = args.pop("attention_config", {})
    names = {"backend": "attention-backend", "indexer_kv_dtype": "indexer-kv-dtype"}
    asked: dict[str, Any] = {
        "engine": "vllm",
        "role": "prefill",
        "config": read(DATA / "configs" / f"{dump['model']}.json"),
        "tp": dump["tp"],
        "pp": dump["pp"],
        "backend": "nixl",
        "platform": PLATFORMS[dump["sm"]],
        "page_size": args.pop("block_size", None),
        "kv_cache_dtype": args.pop("kv_cache_dtype", "auto"),
        "flags": {names[key]: value for key, value in attention.items()},
    }
    assert not args
    return derive(Request(**{**asked, **changes})).manifest


def registered(dump: dict[str, Any]) -> Iterator[tuple[str, str, int, int]]:
    """(kind, tensor, layer, bytes) of every cache of the engine, a recurrent one's states apart."""
    for line in dump["caches"]:
        last = line["name"].rsplit(".", 1)[-1]
        if last == "state_cache":
            kind = STATES[line["block"]]
            tensors = ("index_state",) if "indexer" in line["name"] else ("state",)
        else:
            kind, tensors = CACHES[last, line["spec"]]
        sizes = line["states"] or [line["page"]]
        for layer in line["layers"]:
            yield from ((kind, tensor, layer, size) for tensor, size in zip(tensors, sizes, strict=True))


@pytest.fixture(params=DUMPS, ids=lambda path: path.stem)
def dump(request: pytest.FixtureRequest) -> dict[str, Any]:
    return read(request.param)


def test_all_dumps_are_here() -> None:
    assert len(DUMPS) == 43


def test_entries_equal_what_the_engine_registers(dump: dict[str, Any]) -> None:
    manifest = derived(dump)
    stage = manifest.stages[dump["pp_rank"]]
    entries = [(c.kind, e.tensor, e.layer, e.item_len) for c in stage.components for e in c.entries]
    assert sorted(entries, key=str) == sorted(registered(dump), key=str)
    assert manifest.page_size == dump["block_size"]


def test_compared_words_equal_those_of_the_engine(dump: dict[str, Any]) -> None:
    """The KV type that the handshake hashes, and the byte layout where K and V have one."""
    manifest = derived(dump)
    assert manifest.kv_cache_dtype == dump["cache_dtype"]
    if manifest.kv_layout is not None:
        assert manifest.kv_layout == ("hnd" if dump["layout"] in ("LBHNC", "BLHNC") else "nhd")


def alone(dump: dict[str, Any]) -> bool:
    """Whether each region is one layer's pages: none shared by kinds of layers, no row of all, no part of one."""
    whole = dump["kernel_block_sizes"] == dump["group_block_sizes"]
    return whole and all(line["group"] == 0 and line["bytes"] == line["stride"] for line in dump["regions"])


@pytest.mark.parametrize("path", [path for path in DUMPS if alone(read(path))], ids=lambda path: path.stem)
def test_a_page_is_what_the_worker_moves(path: Path) -> None:
    dump = read(path)
    stage = derived(dump).stages[dump["pp_rank"]]
    lengths = sorted(entry.item_len for component in stage.components for entry in component.entries)
    assert lengths == sorted(line["bytes"] for line in dump["regions"] for _ in line["layers"])
