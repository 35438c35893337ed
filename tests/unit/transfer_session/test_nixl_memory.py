"""NIXL is told what kind of memory a block is of, on both sides; what is not DRAM a peer hears of with the metadata."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from pdctl_transfer.errors import FabricError
from pdctl_transfer.fabric import nixl
from pdctl_transfer.fabric.base import Blocks, Deadline
from pdctl_transfer.fabric.nixl_memory import MARK

MIB = 1 << 20


class Agent:
    """Notes what it is given; every transfer is done at once."""

    def __init__(self, name: str, config: Any) -> None:
        self.registered: list[tuple[Any, str]] = []
        self.written: list[tuple[tuple[str, list[list[int]]], tuple[str, list[list[int]]]]] = []
        self.peers: list[bytes] = []

    def get_agent_metadata(self) -> bytes:
        return b"nixl's own"

    def add_remote_agent(self, metadata: bytes) -> bytes:
        self.peers.append(metadata)
        return b"peer"

    def register_memory(self, memory: Any, mem_type: str) -> Any:
        self.registered.append((memory, mem_type))
        return memory

    def deregister_memory(self, memory: Any) -> None:
        pass

    def get_xfer_descs(self, rows: Any, mem_type: str) -> Any:
        return mem_type, rows.tolist()

    def initialize_xfer(self, what: str, here: Any, there: Any, peer: str) -> Any:
        self.written.append((here, there))
        return object()

    def transfer(self, handle: Any) -> None:
        pass

    def check_xfer_state(self, handle: Any) -> str:
        return "DONE"

    def release_xfer_handle(self, handle: Any) -> None:
        pass


@pytest.fixture
def fabrics(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    api = SimpleNamespace(nixl_agent=Agent, nixl_agent_config=lambda backends: None, nixlBind=SimpleNamespace())
    monkeypatch.setattr(nixl, "_module", lambda: api)
    return [nixl.NixlFabric(), nixl.NixlFabric()]


def write(here: Any, there: Any, rows: list[tuple[int, int, int]]) -> Any:
    blocks = Blocks(*np.array(rows, dtype=np.int64).T)
    return here.write(here.connect(there.address()), blocks, Deadline(5))


def test_memory_of_the_cpu_is_told_as_it_always_was(fabrics: list[Any]) -> None:
    here, there = fabrics
    for fabric in fabrics:
        fabric.register(MIB, 4096)
    assert there.address() == b"nixl's own"
    assert write(here, there, [(MIB, MIB + 64, 32)]).ok
    assert here._agent.registered == [([(MIB, 4096, 0, "")], "DRAM")]
    assert here._agent.written == [(("DRAM", [[MIB, 32, 0]]), ("DRAM", [[MIB + 64, 32, 0]]))]


def test_each_block_has_its_kind_and_its_device_on_both_sides(fabrics: list[Any]) -> None:
    """Out of one GPU's pools and the CPU's scratch, into pools of two GPUs and a row of the CPU's."""
    here, there = fabrics
    here.register(MIB, 4096, "cuda:1")
    here.register(8 * MIB, 4096)
    there.register(2 * MIB, 4096, "cuda:0")
    there.register(3 * MIB, 4096, "cuda:7")
    there.register(9 * MIB, 4096)
    rows = [
        (MIB, 2 * MIB, 8),
        (8 * MIB, 3 * MIB, 8),
        (MIB + 4095, 3 * MIB + 4095, 1),
        (MIB + 4096, 9 * MIB, 2),
        (MIB + 8, 9 * MIB + 8, 8),
    ]
    result = write(here, there, rows)
    assert (result.ok, result.calls) == (True, 4)
    assert here._agent.registered[0] == ([(MIB, 4096, 1, "")], "VRAM")
    assert here._agent.peers == [b"nixl's own"]
    assert here._agent.written == [
        (("DRAM", [[MIB + 4096, 2, 0]]), ("DRAM", [[9 * MIB, 2, 0]])),
        (("DRAM", [[8 * MIB, 8, 0]]), ("VRAM", [[3 * MIB, 8, 7]])),
        (("VRAM", [[MIB + 8, 8, 1]]), ("DRAM", [[9 * MIB + 8, 8, 0]])),
        (("VRAM", [[MIB, 8, 1], [MIB + 4095, 1, 1]]), ("VRAM", [[2 * MIB, 8, 0], [3 * MIB + 4095, 1, 7]])),
    ]


def test_memory_that_is_given_up_is_no_devices_any_more(fabrics: list[Any]) -> None:
    here, there = fabrics
    there.register(MIB, 4096, "cuda:0")
    told = there.address()
    assert told.startswith(MARK)
    there.deregister(MIB)
    assert there.address() == b"nixl's own"
    assert here.connect(told).places
    assert not here.connect(there.address()).places


def test_transfers_of_one_kind_are_cut_as_before(fabrics: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nixl, "BATCH", 3)
    here, there = fabrics
    here.register(MIB, 4096, "cuda:0")
    assert write(here, there, [(MIB + n, 5 * MIB + n, 1) for n in range(8)]).calls == 3


@pytest.mark.code("PD4011")
def test_places_that_are_none_are_refused(fabrics: list[Any]) -> None:
    with pytest.raises(FabricError, match="not the address of a NIXL peer") as caught:
        fabrics[0].connect(MARK + b"\x93garbage")
    assert caught.value.code == "PD4011"


@pytest.mark.code("PD4014")
@pytest.mark.parametrize("where", ["xpu:0", "npu", "cuda:x"])
def test_a_place_of_which_nixl_has_no_kind_is_refused(fabrics: list[Any], where: str) -> None:
    with pytest.raises(FabricError, match=f"no kind of memory for {where}") as caught:
        fabrics[0].register(MIB, 4096, where)
    assert caught.value.code == "PD4014"


def test_a_gpu_adds_what_ucx_needs_for_its_memory(fabrics: list[Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for gpu, transports in ((False, "tcp,self"), (True, "tcp,self,cuda_copy")):
        monkeypatch.delenv("UCX_TLS", raising=False)
        monkeypatch.setattr(nixl, "has_gpu", lambda gpu=gpu: gpu)
        nixl.NixlFabric("tcp")
        assert nixl.os.environ["UCX_TLS"] == transports
