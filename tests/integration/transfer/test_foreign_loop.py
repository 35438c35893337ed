"""A process whose event loops are somebody else's: SGLang installs uvloop's policy before anything of ours starts."""

import asyncio
import importlib.util
from typing import Any

import pytest

from tests.integration.transfer.ranks import OPTIONS, Host, Spec, indices, pair, rooms
from tests.integration.transfer.wide import FORKS
from tests.unit.transfer_session.world import manifest, ranks

pytestmark = pytest.mark.integration


class Refusing(asyncio.DefaultEventLoopPolicy):
    """Makes no loop for us."""

    def new_event_loop(self) -> asyncio.AbstractEventLoop:
        raise RuntimeError("this process's loops are its own")

    def get_event_loop(self) -> asyncio.AbstractEventLoop:
        raise RuntimeError("this process's loops are its own")


class Foreign(Host):
    """A side in such a process."""

    def __init__(self, spec: Spec) -> None:
        asyncio.set_event_loop_policy(Refusing())
        super().__init__(spec)


class Uvloop(Host):
    """A side in a process of uvloop's."""

    def __init__(self, spec: Spec) -> None:
        uvloop: Any = importlib.import_module("uvloop")
        uvloop.install()
        super().__init__(spec)


HOSTS = [Foreign] + ([Uvloop] if importlib.util.find_spec("uvloop") else [])


@pytest.mark.parametrize("host", HOSTS)
def test_a_pair_works_whatever_the_event_loop_policy_is(host: type[Host]) -> None:
    """Fails if the core asks the policy for its loop, and then speaks to something that is no selector loop."""
    made = manifest("prefill", 2), manifest("decode", 1)
    specs = [Spec(one, tuple(ranks(one)), options=OPTIONS, items=64) for one in made]
    with pair(*specs, host, FORKS) as (prefill, decode):
        room = next(rooms)
        theirs = indices(room + 1, 64, 8)
        decode.call("open", room, prefill.call("address"), theirs)
        prefill.call("send", room, indices(room, 64, 8))
        assert {end[0] for end in decode.call("wait", room, 10.0)} == {"confirmed"}, decode.call("wait", room, 0.0)
        assert decode.call("wrong", room, theirs) == []
