"""PD1051 against SGLang's own send paths: what they make of a compressor's ring that one side alone has widened."""

import json
import subprocess
import sys
from typing import Any

import pytest

from pdctl.python import code
from tests.engines.fleets import ROOT

pytestmark = pytest.mark.engines

#: DeepSeek-V4's state of ratio 4 without drafts, and with them.
NARROW, WIDE = 65536, 131072
ASK = """
import json, sys
from types import SimpleNamespace
import numpy
from sglang.srt.disaggregation.base.conn import StateType
from sglang.srt.disaggregation.mooncake.conn import MooncakeKVManager
from sglang.srt.disaggregation.nixl.conn import NixlKVManager


def bare(manager, kv_args):
    made = object.__new__(manager)
    values = dict(is_mla_backend=True, is_hybrid_mla_backend=False, pp_size=1, attn_tp_size=1, state_tp_size=1)
    vars(made).update(values, kv_args=kv_args, prep_handles={})
    return made


def answer(ours, theirs, page):
    kv_args = SimpleNamespace(
        mla_compression_ratios=[4], state_types=[StateType.SWA], state_data_ptrs=[[8]], state_data_lens=[[9 * ours]],
        state_item_lens=[[ours]], state_layer_ids=[[]], kv_data_ptrs=[], gpu_id=0,
    )
    peer = SimpleNamespace(
        agent_name="decode", decode_tp_size=1, dst_state_data_ptrs=[[16]], dst_state_item_lens=[[theirs]],
        dst_state_data_lens=[[9 * theirs]], dst_state_layer_ids=[[]],
    )
    mooncake, nixl, written = bare(MooncakeKVManager, kv_args), bare(NixlKVManager, kv_args), []
    said = {"mooncake": mooncake._state_stride_mismatch(
        src_data_ptrs=[8], dst_data_ptrs=[16], item_lens=[ours], dst_item_lens=[theirs], state_type=StateType.SWA
    )}
    try:
        nixl._plan_prepared_state_component(index=0, peer_info=peer)
        said["nixl"] = None
    except ValueError as error:
        said["nixl"] = str(error)
    nixl.agent = SimpleNamespace(
        get_xfer_descs=lambda blocks, _: written.append(blocks.tolist()), initialize_xfer=lambda *_: 1
    )
    nixl._post_xfer = lambda *_: None
    nixl._send_kvcache_generic(
        peer_name="decode", src_data_ptrs=[0], dst_data_ptrs=[0], item_lens=[ours], dst_item_lens=[theirs],
        dst_gpu_id=0, prefill_data_indices=numpy.array([0], dtype=numpy.int32),
        dst_data_indices=numpy.array([page], dtype=numpy.int32), state_type=StateType.SWA,
    )
    return {**said, "written_at": written[1][0][0]}


print(json.dumps([answer(*case) for case in json.load(sys.stdin)]))
"""


def ask(*cases: tuple[int, int, int]) -> list[dict[str, Any]]:
    """What each backend says of (prefill's length, decode's, page), and where NIXL's general path writes that page."""
    tool = [sys.executable, str(ROOT / "tools" / "engine_envs.py"), "sglang", "--print-python"]
    python = subprocess.run(tool, capture_output=True, text=True, check=True).stdout.strip()
    done = subprocess.run(code(python, ASK), input=json.dumps(cases), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return list(json.loads(done.stdout.splitlines()[-1]))


def test_both_backends_fail_a_peer_whose_ring_is_wider() -> None:
    """And where they do not look, what is meant for page 6 is written into that of page 3. Equal rings are taken."""
    unlike, alike = ask((NARROW, WIDE, 6), (WIDE, WIDE, 6))
    assert "item length mismatch" in unlike["mooncake"]
    assert "stride mismatch" in unlike["nixl"]
    assert unlike["written_at"] == 6 * NARROW == 3 * WIDE
    assert alike == {"mooncake": None, "nixl": None, "written_at": 6 * WIDE}
