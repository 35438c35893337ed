"""PD1047: state beside the KV is moved only since some release of the engine.

Read in SGLang's releases: nixl before 0.5.9 and mori before 0.5.12 move pages and nothing else. Nothing raises: decode
goes on with whatever lies in its slots.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair, components, listed
from pdctl_transfer.rules.releases import MOVED, brought_by


def check_moved(pair: Pair) -> Iterator[Outcome]:
    """Kinds with entries on prefill, by the older of the two sides."""
    if pair.engines != {"sglang"} or pair.by_core:
        return
    kinds = sorted({part.kind for part in components(pair.prefill) if part.entries} - {"kv"})
    lost = {kind: since for kind in kinds if (since := brought_by(MOVED, kind, pair.backend, *pair.versions))}
    if lost:
        evidence = [*pair.evidence("engine_version"), *pair.backend_evidence()]
        since = listed(lost.values())
        yield pair.finding("PD1047", evidence, states=listed(lost), engine="sglang", backend=pair.backend, since=since)
