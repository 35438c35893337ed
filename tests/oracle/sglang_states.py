"""Has SGLang's own transfer code write a request's state, and says what stands at decode then. Run by the Python of an
environment that has SGLang installed; knows nothing of pdctl but `painted.py` beside it.

Its manager is made without its constructor, which would start threads and a transfer engine; its methods run as they
are, on the buffers that the dumps say SGLang registers, and what they hand to the engine is carried out on painted
memory. stdin: a list of cases. stdout: {"version": ..., "answers": [...]}, an answer a case: the digest of decode's
memory, or the text with which the engine refuses.
"""

import json
import sys
from concurrent.futures import Future
from importlib.metadata import version
from pathlib import Path
from types import SimpleNamespace

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))
import painted

ROOM = 7


class Here:
    """An executor that does it now."""

    def submit(self, do, *args):
        done = Future()
        try:
            done.set_result(do(*args))
        except (RuntimeError, ValueError, IndexError) as error:
            done.set_exception(error)
        return done


class Wire:
    """Stands for the transfer engine: carries blocks out on painted memory."""

    def __init__(self, source, target):
        self.source, self.target = source, target

    def batch_transfer_sync(self, session, src, dst, length):
        painted.copy(self.source, self.target, np.array(src, dtype=np.int64), np.array(dst, dtype=np.int64), length)
        return 0


def kv_args(side, pp, tp, memory):
    """What the engine's pools registered on this rank, at these addresses."""
    from sglang.srt.disaggregation.base.conn import KVArgs, StateType

    about = side["stages"][pp]
    args = KVArgs()
    args.engine_rank, args.pp_rank, args.page_size = tp, pp, side["page_size"]
    places = {}
    for number, entry in enumerate(about["entries"]):
        places.setdefault(entry["component"], []).append(number)
    lens = lambda numbers: [about["entries"][n]["item_len"] for n in numbers]  # noqa: E731
    kv = places.get(0, []) if about["kinds"][:1] == ["kv"] else []
    args.kv_data_ptrs, args.kv_item_lens = [memory.address(n) for n in kv], lens(kv)
    states = range(len(about["kinds"]))[1 if about["kinds"][:1] == ["kv"] else 0 :]
    args.state_types = [StateType(about["kinds"][n]) for n in states]
    args.state_data_ptrs = [[memory.address(n) for n in places[state]] for state in states]
    args.state_item_lens = [lens(places[state]) for state in states]
    for name, value in about["facts"].items():
        setattr(args, name, value)
    return args


def manager(side, pp, args, wire):
    """MooncakeKVManager on one prefill rank."""
    from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager

    made = object.__new__(MooncakeKVManager)
    made.kv_args, made.engine = args, wire
    made.attn_tp_size = made.state_tp_size = side["tp"]
    made.attn_cp_size, made.attn_cp_rank, made.kv_shard_size = 1, 0, 1
    made.pp_size, made.pp_rank = len(side["stages"]), pp
    made.is_mla_backend, made.is_hybrid_mla_backend = side["mla"], args.is_hybrid_mla_backend
    made.enable_custom_mem_pool, made.custom_mem_pool_type, made.max_transfer_batch_indices = False, None, 0
    made.enable_deferred_decode_kv_release = True
    made.request_status, made.state_strides_validated = {ROOM: 3}, set()

    def refuse(bootstrap_room, failure_reason):
        raise RuntimeError(failure_reason)

    made.conclude_failure = refuse
    return made


def send(made, request, registered, ids):
    """As `transfer_worker` does with the one chunk of a request."""
    skip_kv, skip_state = made._get_dsa_cache_transfer_skip_flags(registered)
    pages = np.array(ids["kv"], dtype=np.int32)
    status = 0
    if made.kv_args.kv_data_ptrs and not skip_kv:
        whole = made.is_mla_backend or made.is_hybrid_mla_backend
        if whole or made.attn_tp_size == registered.dst_attn_tp_size:
            status = made.send_kvcache(
                "session",
                pages,
                registered.dst_kv_ptrs,
                request.dst_kv_indices,
                Here(),
                dst_layer_ids=registered.dst_kv_layer_ids,
                dst_kv_item_len=registered.dst_kv_item_len,
                dst_attn_tp_size=registered.dst_attn_tp_size,
            )
        else:
            status = made.send_kvcache_slice(
                "session",
                pages,
                registered.dst_kv_ptrs,
                request.dst_kv_indices,
                registered.dst_tp_rank,
                registered.dst_attn_tp_size,
                registered.dst_kv_item_len,
                Here(),
                registered.dst_kv_layer_ids,
            )
    if status == 0 and not skip_state:
        states = [ids[kind.value] for kind in made.kv_args.state_types]
        status = made.maybe_send_extra(request, states, Here(), registered)
    if status != 0:
        raise RuntimeError(f"status {status}")


def carried(case):
    """Decode's memory after every prefill rank has sent what the engine has it send."""
    prefill, decode = case["prefill"], case["decode"]
    here = painted.memories(prefill, case["ids"], 1 << 50, filled=True)
    there = painted.memories(decode, case["there"], 1 << 60, filled=False)
    for (dst_pp, dst_tp), target in there.items():
        theirs = kv_args(decode, dst_pp, dst_tp, target)
        registered = SimpleNamespace(
            dst_kv_ptrs=theirs.kv_data_ptrs,
            dst_kv_item_len=theirs.kv_item_lens[0] if theirs.kv_item_lens else 0,
            dst_kv_layer_ids=theirs.kv_layer_ids,
            dst_state_data_ptrs=theirs.state_data_ptrs,
            dst_state_item_lens=theirs.state_item_lens,
            dst_state_dim_per_tensor=theirs.state_dim_per_tensor,
            dst_state_layer_ids=theirs.state_layer_ids,
            dst_tp_rank=dst_tp,
            dst_attn_tp_size=decode["tp"],
        )
        request = SimpleNamespace(
            room=ROOM,
            mooncake_session_id="session",
            dst_kv_indices=np.array(case["there"]["kv"], dtype=np.int32),
            dst_state_indices=[case["there"][kind.value] for kind in theirs.state_types],
        )
        for src_pp in range(len(prefill["stages"])):
            if len(decode["stages"]) > 1 and src_pp != dst_pp:
                continue
            senders = sources(prefill["tp"], decode["tp"], dst_tp)
            for src_tp in senders[:1] if prefill["mla"] else senders:
                source = here[src_pp, src_tp]
                args = kv_args(prefill, src_pp, src_tp, source)
                send(manager(prefill, src_pp, args, Wire(source, target)), request, registered, case["ids"])
    return painted.digest(there.values())


def sources(src_tp, dst_tp, rank):
    """The prefill ranks that this decode rank asks (`_resolve_rank_mapping`)."""
    if src_tp <= dst_tp:
        return [rank // (dst_tp // src_tp)]
    share = src_tp // dst_tp
    return list(range(rank * share, (rank + 1) * share))


def main():
    import logging

    logging.disable(logging.CRITICAL)
    from sglang.srt.disaggregation.common import conn as common
    from sglang.srt.disaggregation.mooncake import conn

    parallel = SimpleNamespace(
        enable_kv_cache_sharding=False, enable_dsa_cache_layer_split=False, enable_cp_tp_group_sharing=False
    )
    for module in (common, conn):
        module.get_parallel = lambda: parallel
        module.get_memory = lambda: SimpleNamespace(enable_unified_memory=False)
    answers = []
    for case in json.load(sys.stdin):
        try:
            answers.append(carried(case))
        except (RuntimeError, ValueError, IndexError) as error:
            answers.append(f"{type(error).__name__}: {error}"[:160])
    json.dump({"version": version("sglang"), "answers": answers}, sys.stdout, separators=(",", ":"))


if __name__ == "__main__":
    main()
