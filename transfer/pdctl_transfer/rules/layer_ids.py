"""PD1010: layer ids must cover the entries of a component, all of them and evenly.

With several buffer groups (the NPU's MLA pools) ids repeat once a group; a number of groups that does not divide shifts
every pairing after it, and on Ascend nothing notices.
"""

from collections.abc import Iterator

from pdctl_transfer.rules.outcome import Finding, Outcome
from pdctl_transfer.rules.pair import Pair


def check_layer_ids(pair: Pair) -> Iterator[Outcome]:
    """One finding a side and kind."""
    problems = pair.pairing.of("mixed_ids", "uneven_ids")
    for problem in problems:
        side = pair.prefill_side if problem.side == "prefill" else pair.decode_side
        params = {"side": problem.side, "what": f"{problem.kind}: {problem.text}"}
        yield Finding("PD1010", side.name, (side.said(f"{problem.kind}: {problem.text}"),), params)
    if not problems:
        yield pair.held("layer_ids", "layer ids cover the entries evenly, or there are none")
