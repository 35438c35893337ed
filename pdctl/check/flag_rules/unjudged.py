"""PD1034: flags that swap the buffers of an engine for others, or cut them otherwise, and that no rule judges.

What the derivation says of such a side is not what it registers, so nothing about buffers is held: the verdict is
unknown, and rules that need no layout still speak.

Every flag of the tables whose name speaks of pages, pools, states, drafts, sharding or the transfer is read by the
derivation or by a rule, or named here, or known to leave the buffers as they are: a test holds the three complete.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from pdctl.check.words import Word
from pdctl.flags import dialect
from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.pair import components, setting

#: By engine: the flag's first spelling and what it does to the buffers.
SWAPS: Final[Mapping[str, Mapping[str, str]]] = {
    "sglang": {
        "--enable-hisparse": "keeps a part of the KV in a pool on the host",
        "--enable-unified-memory": "keeps all kinds of state in one pool",
        "--enable-page-major-kv-layout": "keeps all layers of a page together",
        "--enable-dsa-cache-layer-split": "gives each context-parallel rank layers of its own",
        "--prefill-only-disable-kv-cache": "keeps no KV",
        "--c128-page-size": "cuts one cache into pages of their own",
        "--disaggregation-decode-host-receive-threshold": "receives KV in a pool on the host",
        "--speculative-draft-kv-cache-dtype": "gives the drafts' KV another type",
        "--encoder-only": "starts no language model",
        "--speculative-draft-window-size": "gives the drafts' KV places of its own",
        "--enable-multi-layer-eagle": "gives each draft layer a pool of its own",
    },
    "vllm": {
        "--kv-cache-dtype-skip-layers": "gives some layers' KV another type",
        "--disable-sliding-window": "makes layers with a window into others",
        "--model-class-overrides": "runs another class of model",
        "--mm-encoder-only": "starts no language model",
    },
}
#: Those that do so for some layouts only: for those with a recurrent state, or with context parallelism on decode.
SWAPS_SOME: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "sglang": {},
    "vllm": {
        "--mamba-block-size": ("mamba", "gives recurrent states blocks of another size"),
        "--cp-kv-cache-interleave-size": ("dcp", "deals tokens to ranks in another order"),
        "--dcp-kv-cache-interleave-size": ("dcp", "deals tokens to ranks in another order"),
    },
}
#: Values that turn a flag off.
OFF: Final = frozenset({"auto", "none", "1"})


def swapped_by(engine: str, words: Iterable[Word], manifest: Manifest | None = None) -> tuple[Word, str] | None:
    """The first flag that changes the buffers unjudged, and what it does; None where there is none."""
    engine = dialect(engine)
    always, some = SWAPS.get(engine, {}), SWAPS_SOME.get(engine, {})
    for word in words:
        for name in word.names:
            if name in always and word.value not in OFF:
                return word, always[name]
            if name in some and word.value not in OFF and _holds(manifest, some[name][0]):
                return word, some[name][1]
    return None


def _holds(manifest: Manifest | None, what: str) -> bool:
    if manifest is None:
        return True
    if what == "dcp":
        return (setting(manifest, "dcp") or 1) != 1
    return any(part.kind == what and part.entries for part in components(manifest))
