"""Asks SGLang's own functions; run by the Python of an environment that has SGLang installed, knows nothing of pdctl.

stdin: {"configs": [...], "connected": [[[src, dst], ...], ...]}. stdout: {"version": ..., "answers": [...]}, one answer
a configuration: blocks by rank pair, or pairs of entries, or the error's text.
"""

import json
import sys
from importlib.metadata import version


def main() -> None:
    from sglang.srt.disaggregation.common.staging_buffer import compute_head_slice_params
    from sglang.srt.disaggregation.utils import (
        build_transfer_entry_pairs,
        compute_mamba_state_slice_byte_blocks,
        should_send_replicated_state,
    )

    def heads(config, connected):
        tps = config["src_tp"], config["dst_tp"]
        return [list(compute_head_slice_params(*tps, src, dst, config["heads"])) for src, dst in connected]

    def state(config, connected):
        src_tp, dst_tp = config["src_tp"], config["dst_tp"]
        full = [heads * width for heads, width in config["groups"]]
        src_dim, dst_dim = sum(full) // src_tp, sum(full) // dst_tp
        unit = config["outer"] * config["inner"]
        return [
            compute_mamba_state_slice_byte_blocks(
                src_item_len=src_dim * unit,
                dst_item_len=dst_dim * unit,
                src_dim=src_dim,
                dst_dim=dst_dim,
                outer_count=config["outer"],
                src_attn_tp_size=src_tp,
                dst_attn_tp_size=dst_tp,
                dst_tp_rank_in_group=dst,
                local_tp_rank_in_group=src,
                conv_shard_groups=full if len(full) > 1 else None,
            )
            for src, dst in connected
        ]

    def replicated(config, connected):
        src_tp, dst_tp, size = config["src_tp"], config["dst_tp"], config["item_len"]
        sizes = {"src_item_len": size, "dst_item_len": size, "src_dim": 0, "dst_dim": 0, "outer_count": 1}
        tps = {"src_attn_tp_size": src_tp, "dst_attn_tp_size": dst_tp}
        answers = []
        for src, dst in connected:
            sends = should_send_replicated_state(**tps, local_tp_rank_in_group=src)
            blocks = compute_mamba_state_slice_byte_blocks(
                **sizes, **tps, dst_tp_rank_in_group=dst, local_tp_rank_in_group=src
            )
            assert sends == bool(blocks)
            answers.append(blocks)
        return answers

    def pairs(config, _):
        ids = [[layer for layer in config[side] if layer is not None] for side in ("prefill", "decode")]
        counts = len(config["prefill"]), len(config["decode"])
        try:
            return build_transfer_entry_pairs(*ids, *counts, allow_positional_fallback=config["pp"] == 1)
        except RuntimeError as error:
            return str(error)

    ask = {"heads": heads, "state": state, "replicated": replicated, "pairs": pairs}
    asked = json.load(sys.stdin)
    answers = [ask[c["what"]](c, pairs) for c, pairs in zip(asked["configs"], asked["connected"], strict=True)]
    json.dump({"version": version("sglang"), "answers": answers}, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
