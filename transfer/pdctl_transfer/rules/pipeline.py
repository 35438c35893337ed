"""PD1006: pipeline and context-parallel sizes that the engine can pair.

SGLang asserts that decode CP is 1 and that decode PP is 1 or the prefill's. QSA state with several stages travels by
layer ids, which mori's protocol does not carry; DeepSeek-V4's has none, and mori pairs it by position between equally
many stages. MiniMax state with several stages is refused on every backend. The
reference engine pairs any PP; for vLLM unequal PP is not established, but over NIXL, whose connectors say what they
take (`vllm_refusals`).
"""

from collections.abc import Iterator
from fnmatch import fnmatchcase

from pdctl_transfer.layout.manifest import Manifest
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components, listed

#: SGLang: state kinds that cannot travel between several stages, and the backends that refuse them; "*" is every one.
ONE_STAGE_ONLY = (("qsa_*", "mori"), ("minimax_*", "*"))
#: SGLang: state kinds that come without layer ids, and the backends that pair such between equally many stages alone.
EQUAL_STAGES_ONLY = (("c128_state", "mori"),)


KNOWN = frozenset({"sglang", "vllm", "vllm-ascend", "reference"})


def check_pipeline(pair: Pair) -> Iterator[Outcome]:
    """Sizes first, then kinds of state that need one stage."""
    if pair.outside and {*_sizes(pair.prefill), *_sizes(pair.decode)} != {1}:
        sizes = f"PP {pair.prefill.parallel.pp} → {pair.decode.parallel.pp}"
        yield pair.skipped("pipeline", f"{sizes}: {pair.outside}", needed=True)
        return
    found = list(_sglang(pair) if "sglang" in pair.engines else _vllm(pair) if "vllm" in pair.engines else ())
    yield from found
    strangers = pair.engines - KNOWN
    if strangers and _sizes(pair.prefill) != _sizes(pair.decode):
        yield pair.skipped("pipeline", f"what {listed(sorted(strangers))} can pair is not known", needed=True)
    elif not found:
        sizes = f"PP {pair.prefill.parallel.pp} → {pair.decode.parallel.pp}"
        yield pair.held("pipeline", f"{sizes}, CP {pair.prefill.parallel.attn_cp} → {pair.decode.parallel.attn_cp}")


def _sizes(manifest: Manifest) -> tuple[int, int]:
    return manifest.parallel.pp, manifest.parallel.attn_cp


def _sglang(pair: Pair) -> Iterator[Outcome]:
    prefill, decode = pair.prefill.parallel, pair.decode.parallel
    if decode.pp not in (1, prefill.pp):
        what = f"PP {prefill.pp} on prefill, {decode.pp} on decode: SGLang's decode PP is 1 or the prefill's"
        yield pair.finding("PD1006", pair.evidence("pp"), what=what)
    if decode.attn_cp != 1:
        what = f"context parallelism {decode.attn_cp} on decode: SGLang's decode engine has 1"
        yield pair.finding("PD1006", (pair.decode_side.evidence("attn_cp"),), what=what)
    if max(prefill.pp, decode.pp) == 1:
        return
    kinds = {part.kind for part in components(pair.prefill, pair.decode) if part.entries}
    unequal = EQUAL_STAGES_ONLY if prefill.pp != decode.pp else ()
    for pattern, backend in (*ONE_STAGE_ONLY, *unequal):
        stuck = sorted(kind for kind in kinds if fnmatchcase(kind, pattern))
        if stuck and backend in ("*", pair.backend):
            where = f"on {pair.backend}" if backend != "*" else "on any backend"
            what = f"{listed(stuck)} cannot travel between PP {prefill.pp} and {decode.pp} {where}"
            yield pair.finding("PD1006", pair.evidence("pp"), what=what)


def _vllm(pair: Pair) -> Iterator[Outcome]:
    prefill, decode = pair.prefill.parallel.pp, pair.decode.parallel.pp
    if prefill != decode and pair.backend != "nixl":
        what = f"PP {prefill} on prefill, {decode} on decode: not established for vLLM"
        yield pair.finding("PD1006", pair.evidence("pp"), "warning", what=what)
