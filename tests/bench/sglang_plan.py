"""Times SGLang's own way to the blocks of a sliced KV send; run by a Python that has SGLang, knows nothing of pdctl.

stdin: {"src_tp", "dst_tp", "heads", "page_size", "layers", "src_item_len", "dst_item_len", "src_ptrs", "dst_ptrs",
"src_pages", "dst_pages", "repeat", "blocks"}. It calls the engine's `send_kvcache_slice` with a transfer engine that
only keeps the lists it is given. stdout: {"version", "cpu_seconds"}, the least of `repeat`; the blocks (src, dst,
length) go to the file `blocks` as int64 rows.
"""

import concurrent.futures
import gc
import json
import sys
import time
from importlib.metadata import version
from types import SimpleNamespace

import numpy as np


def main() -> None:
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager

    asked = json.load(sys.stdin)
    sent: list[tuple[list[int], list[int], list[int]]] = []

    def keep(_session, src, dst, lengths):
        sent.append((src, dst, lengths))
        return 0

    layers = len(asked["src_ptrs"]) // 2
    sender = SimpleNamespace(
        kv_args=SimpleNamespace(
            kv_item_lens=[asked["src_item_len"]] * (2 * layers),
            page_size=asked["page_size"],
            total_kv_head_num=asked["heads"],
            kv_head_num=asked["heads"] // asked["src_tp"],
            engine_rank=0,
            kv_data_ptrs=asked["src_ptrs"],
            kv_layer_ids=asked["layers"] * 2,
        ),
        attn_tp_size=asked["src_tp"],
        pp_size=1,
        engine=SimpleNamespace(batch_transfer_sync=keep),
        _await_transfer_futures=lambda futures: max(future.result() for future in futures),
    )
    src_pages, dst_pages = (np.array(asked[side], dtype=np.int32) for side in ("src_pages", "dst_pages"))
    best = float("inf")
    with concurrent.futures.ThreadPoolExecutor(1) as executor:
        for _ in range(asked["repeat"]):
            sent.clear()
            gc.collect()
            start = time.process_time()
            status = MooncakeKVManager.send_kvcache_slice(
                sender,
                "session",
                src_pages,
                asked["dst_ptrs"],
                dst_pages,
                0,
                asked["dst_tp"],
                asked["dst_item_len"],
                executor,
                dst_layer_ids=asked["layers"] * 2,
            )
            best = min(best, time.process_time() - start)
            assert status == 0
    np.concatenate([np.array(batch, dtype=np.int64) for batch in sent], axis=1).tofile(asked["blocks"])
    json.dump({"version": version("sglang"), "cpu_seconds": best}, sys.stdout)


if __name__ == "__main__":
    main()
