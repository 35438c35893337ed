"""What of SGLang the classes over its transfer manager stand on, as data; held against the engine by `sglang_shape.py`.

`takes` are methods that the engine calls on ours, so their parameters must be exactly those; `calls` are ours to call:
they must take what is named, and may take more that has a default.
"""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct

_CONN: Final = "sglang.srt.disaggregation.common.conn"
Names = tuple[str, ...]


class Shape(Struct, frozen=True):
    """One class, or with an empty name one module: parameters by method or function, `self` left out."""

    module: str
    name: str
    takes: Mapping[str, Names] = {}
    calls: Mapping[str, Names] = {}

    @property
    def path(self) -> str:
        """How it is named in reports."""
        return f"{self.module}.{self.name}".rstrip(".")


_OPENED: Final = ("mgr", "bootstrap_addr", "bootstrap_room")
_SEND: Final = ("kv_indices", "state_indices", "num_kv_tokens", "indices_event")
_METADATA: Final = (
    "kv_indices",
    "aux_index",
    "state_indices",
    "decode_prefix_len",
    "destination",
    "device_kv_indices",
)

SHAPES: Final[tuple[Shape, ...]] = (
    Shape(
        _CONN,
        "CommonKVManager",
        takes={
            "is_abort_release_safe": ("bootstrap_room", "required_acks"),
            "clear_deferred_abort_state": ("bootstrap_room",),
            "_handle_node_failure": ("failed_bootstrap_addr",),
        },
        calls={
            "update_status": ("bootstrap_room", "status"),
            "record_failure": ("bootstrap_room", "failure_reason"),
            "prepare_send_state_indices": ("state_indices",),
        },
    ),
    Shape(
        _CONN,
        "CommonKVSender",
        takes={
            "__init__": (*_OPENED, "req_has_disagg_prefill_dp_rank"),
            "send": _SEND,  # Mooncake's hides its own behind a wrapper
            "poll": (),
            "poll_pp_consensus": (),
            "abort": (),
            "clear": (),
            "pop_decode_prefix_len": (),
            "get_max_transfer_tokens": (),
        },
        calls={
            "_prepare_send_indices": ("kv_indices", "state_indices"),
            "_record_transfer_indices": ("kv_indices", "state_indices"),
        },
    ),
    Shape(
        _CONN,
        "CommonKVReceiver",
        takes={
            "__init__": _OPENED,
            "init": ("prefill_dp_rank",),
            "send_metadata": _METADATA,
            "poll": (),
            "abort": (),
            "clear": (),
            "ensure_abort_notified": ("force_arm",),
        },
    ),
    Shape(
        "sglang.srt.disaggregation.prefill",
        "PrefillBootstrapQueue",
        takes={"_init_kv_manager": ()},
    ),
    Shape(
        "sglang.srt.disaggregation.decode",
        "DecodePreallocQueue",
        takes={"_init_kv_manager": (), "_ensure_prefill_info": ("addr_to_reqs",)},
    ),
    Shape(
        "sglang.srt.disaggregation.decode",
        "DecodeTransferQueue",
        takes={"_defer_release": ("decode_req",)},
    ),
    Shape(
        "sglang.srt.disaggregation.utils",
        "",
        takes={"get_kv_class": ("transfer_backend", "class_type")},
    ),
)

OF_BACKENDS: Final[Mapping[str, tuple[Shape, ...]]] = {
    "mooncake": (
        Shape(
            "sglang.srt.disaggregation.mooncake.conn",
            "MooncakeKVManager",
            takes={"register_buffer_to_engine": (), "deregister_buffer_to_engine": ()},
            calls={"_registerable_regions": ()},
        ),
        Shape("sglang.srt.disaggregation.mooncake.conn", "MooncakeKVSender"),
        Shape("sglang.srt.disaggregation.mooncake.conn", "MooncakeKVReceiver"),
    ),
}

SLICES: Final[tuple[Shape, ...]] = (
    Shape(
        "sglang.srt.disaggregation.mooncake.conn",
        "MooncakeKVManager",
        takes={
            "send_kvcache_slice": (
                "mooncake_session_id",
                "prefill_kv_indices",
                "dst_kv_ptrs",
                "dst_kv_indices",
                "dst_tp_rank",
                "dst_attn_tp_size",
                "dst_kv_item_len",
                "executor",
                "dst_layer_ids",
            )
        },
        calls={"get_mha_kv_ptrs_with_pp": ("src_kv_ptrs", "dst_kv_ptrs")},
    ),
    Shape(
        "sglang.srt.disaggregation.common.staging_buffer",
        "",
        calls={
            "compute_head_slice_params": (
                "src_attn_tp_size",
                "dst_attn_tp_size",
                "src_tp_rank",
                "dst_tp_rank",
                "total_kv_heads",
            )
        },
    ),
    Shape(
        "sglang.srt.disaggregation.utils",
        "",
        calls={"build_transfer_entry_pairs": ("src_layer_ids", "dst_layer_ids", "n_src", "n_dst")},
    ),
)
"""Of what sends slices of a token: without it only the whole pages are missed."""

POLLS: Final = {"Failed": 0, "Bootstrapping": 1, "WaitingForInput": 2, "Transferring": 3, "Success": 4}
"""SGLang's KVPoll: a request's ranks are reduced by the minimum, so the order matters as much as the names."""

ATTRIBUTES: Final = (
    "attn_cp_size",
    "attn_dp_rank",
    "attn_dp_size",
    "attn_tp_rank",
    "attn_tp_size",
    "bootstrap_host",
    "bootstrap_port",
    "dcp_size",
    "defer_decode_allocation",
    "enable_deferred_decode_kv_release",
    "enable_staging",
    "kv_args",
    "kv_shard_size",
    "local_ip",
    "pp_rank",
    "pp_size",
    "request_status",
    "system_dp_size",
)
"""Of a manager."""

OF_MANAGERS: Final[Mapping[str, Names]] = {"mooncake": ("engine.engine", "engine.session_id")}
"""Of one backend's."""

KV_ARGS: Final = (
    "aux_data_lens",
    "aux_data_ptrs",
    "aux_item_lens",
    "kv_data_lens",
    "kv_data_ptrs",
    "kv_item_lens",
    "page_size",
    "state_data_lens",
    "state_data_ptrs",
    "state_item_lens",
    "state_types",
)
