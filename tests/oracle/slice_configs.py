"""The configurations on which our slices are held against SGLang's own functions, drawn once from a seed.

Only configurations that both can express: TP sizes of which one divides the other (SGLang maps ranks by division), and
for states of several groups at least one head a rank (its sub-blocks know no replication within a group).
"""

import random
from itertools import product
from typing import Any

from pdctl_transfer.layout.algebra import divides

TP_PAIRS = [(a, b) for a, b in product((1, 2, 3, 4, 6, 8, 12, 16), repeat=2) if a % b == 0 or b % a == 0]


def all_configs() -> list[dict[str, Any]]:
    """Heads, recurrent states, replicated states and lists of layer ids; the same list on every machine."""
    draw = random.Random(20261129)
    return [*_heads(draw), *_states(draw, 260), *_replicated(draw, 120), *_pairs(draw, 160)]


def connected(src_tp: int, dst_tp: int) -> list[tuple[int, int]]:
    """The rank pairs that the engine connects: blocks of the larger side to one rank of the smaller."""
    if src_tp >= dst_tp:
        return [(src, src * dst_tp // src_tp) for src in range(src_tp)]
    return [(dst * src_tp // dst_tp, dst) for dst in range(dst_tp)]


def _heads(draw: random.Random) -> list[dict[str, Any]]:
    found = []
    for heads, (src_tp, dst_tp) in product((1, 2, 4, 8, 12, 16, 24, 48, 64), TP_PAIRS):
        if divides(heads, src_tp) and divides(heads, dst_tp):
            found.append({"what": "heads", "heads": heads, "src_tp": src_tp, "dst_tp": dst_tp})
    return draw.sample(found, 200)


def _states(draw: random.Random, count: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    while len(found) < count:
        src_tp, dst_tp = draw.choice(TP_PAIRS)
        cuts = [
            [draw.choice((4, 8, 12, 16, 24, 32, 48, 64)), draw.choice((1, 2, 32, 64, 128))]
            for _ in range(draw.choice((1, 3, 3, 3, 2)))
        ]
        if all(heads % tp == 0 for heads, _ in cuts for tp in (src_tp, dst_tp)):
            outer, inner = draw.choice((1, 1, 3)), draw.choice((2, 6, 64))
            found.append(
                {"what": "state", "groups": cuts, "outer": outer, "inner": inner, "src_tp": src_tp, "dst_tp": dst_tp}
            )
    return found


def _replicated(draw: random.Random, count: int) -> list[dict[str, Any]]:
    found = []
    for _ in range(count):
        src_tp, dst_tp = draw.choice(TP_PAIRS)
        item = draw.choice((8, 24, 1024, 3072))
        found.append({"what": "replicated", "item_len": item, "src_tp": src_tp, "dst_tp": dst_tp})
    return found


def _pairs(draw: random.Random, count: int) -> list[dict[str, Any]]:
    """One kind's ids on both sides, null where an entry has none; `pp`: the prefill side's stages."""
    found = []
    for _ in range(count):
        layers = sorted(draw.sample(range(32), draw.randint(1, 6)))
        repeats = draw.choice((1, 1, 2, 4))
        decode: list[int | None] = [layer for _ in range(repeats) for layer in layers]
        pp = draw.choice((1, 2))
        own = layers if pp == 1 else layers[: draw.randint(0, len(layers))]
        prefill: list[int | None] = [layer for _ in range(repeats) for layer in own]
        match draw.choice(("same", "same", "shuffled", "missing", "cut", "none", "one side", "short")):
            case "shuffled":
                draw.shuffle(decode)
            case "missing":
                gone = draw.choice(layers)
                decode = [layer for layer in decode if layer != gone]
            case "cut" if len(prefill) > 1:
                prefill[-1] = None
            case "none":
                prefill, decode = [None] * len(prefill), [None] * len(decode)
            case "one side":
                decode = [None] * len(decode)
            case "short":
                prefill, decode = [None] * len(prefill), [None] * max(len(decode) - 1, 1)
        found.append({"what": "pairs", "prefill": prefill, "decode": decode, "pp": pp})
    return found
