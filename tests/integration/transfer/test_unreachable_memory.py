"""Memory that the CPU cannot reach: what needs the CPU there is refused with a code, and nothing ever touches it."""

import itertools
import signal
from contextlib import ExitStack, closing
from multiprocessing.connection import Connection
from typing import Any, Literal, NamedTuple

import pytest
from msgspec.structs import replace

from pdctl_transfer.errors import TransferError
from pdctl_transfer.session import DecodePeer, PrefillPeer, Registry
from tests.integration.transfer.device import DeviceBuffers, DeviceFabric
from tests.integration.transfer.ranks import indices
from tests.integration.transfer.wide import FORKS
from tests.unit.transfer_session.world import FAST, Buffers, manifest, ranks

pytestmark = pytest.mark.integration

ITEMS = 64
Sides = Literal["both", "prefill", "decode"]


class Case(NamedTuple):
    """Sizes, what decode compares, and whose memory is on a device."""

    tps: tuple[int, int]
    verify: Literal["none", "sample", "full"]
    device: Sides

    def __str__(self) -> str:
        return f"{self.device} tp{self.tps[0]}-{self.tps[1]} {self.verify}"


NOT_COMPARED = [
    Case(tps, "none", device)
    for tps, device in itertools.product([(1, 1), (1, 2), (2, 1)], ("both", "prefill", "decode"))
]
COMPARED = [
    Case((1, 1), "sample", "both"),
    Case((1, 2), "full", "prefill"),
    Case((2, 1), "sample", "decode"),
]


def move(case: Case) -> list[str]:
    """In a process of its own: what every rank says of one request, or the code with which one was refused."""
    options = replace(FAST, verify=case.verify)
    with ExitStack() as stack:
        registry = stack.enter_context(closing(Registry()))
        at = ("127.0.0.1", registry.port)
        peers: dict[str, list[tuple[Any, Any]]] = {"prefill": [], "decode": []}
        for role, tp in zip(peers, case.tps, strict=True):
            made = manifest(role, tp)
            for rank in ranks(made):
                buffers = (DeviceBuffers if case.device in ("both", role) else Buffers)(made, rank, ITEMS)
                fabric = stack.enter_context(closing(DeviceFabric()))
                for region in buffers.regions():
                    fabric.register(region.base, region.items * region.item_len)
                held = made, rank, buffers.regions(), fabric
                try:
                    peer: Any = (
                        PrefillPeer(*held, registry=at, options=options)
                        if role == "prefill"
                        else DecodePeer(*held, options)
                    )
                except TransferError as error:
                    return [f"refused {error.code}"]
                peers[role].append((stack.enter_context(closing(peer)), buffers))
        ours, theirs = indices(1, ITEMS, 6), indices(2, ITEMS, 6)
        handles = [peer.open(1, at, theirs) for peer, _ in peers["decode"]]
        for peer, buffers in peers["prefill"]:
            buffers.fill(1, ours)
            handles.append(peer.open(1))
            handles[-1].send(ours, b"m")
        said = [handle.failure.code if handle.wait(10.0) == "failed" else handle.state for handle in handles]
        if set(said) == {"confirmed"}:
            said += [wrong for _, buffers in peers["decode"] for wrong in buffers.wrong(1, theirs)]
        return said


def answer(pipe: Connection, case: Case) -> None:
    pipe.send(move(case))


def said_of(case: Case) -> set[str]:
    """What `move` says; AssertionError where a signal ended its process."""
    ours, theirs = FORKS.Pipe()
    process = FORKS.Process(target=answer, args=(theirs, case))
    process.start()
    theirs.close()
    try:
        assert ours.poll(30), "no answer"
        return set(ours.recv())
    except EOFError:
        process.join(10)
        status = process.exitcode or 0
        raise AssertionError(signal.Signals(-status).name if status < 0 else f"exit status {status}") from None
    finally:
        process.kill()
        process.join()


@pytest.mark.parametrize("case", NOT_COMPARED, ids=str)
def test_without_a_comparison_all_of_it_goes_straight(case: Case) -> None:
    """Fails by SIGSEGV if rows are gathered or scattered there."""
    assert said_of(case) == {"confirmed"}


@pytest.mark.parametrize("case", COMPARED, ids=str)
def test_a_comparison_that_nobody_can_make_is_refused_with_a_code(case: Case) -> None:
    """Fails by SIGSEGV if the default `verify` is taken for granted."""
    (said,) = said_of(case)
    assert said.startswith(("PD", "refused PD"))
