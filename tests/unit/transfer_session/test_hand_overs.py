"""What a small request costs: counted, since time on a shared machine tells little."""

from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from pdctl_transfer.session.drive.link import Link
from pdctl_transfer.session.drive.loop import Loop
from pdctl_transfer.session.drive.workers import Workers
from tests.unit.transfer_session.world import World, manifest


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    """What is handed over from thread to thread, and said between the two sides."""
    made: Counter[str] = Counter()

    def counting(owner: type, method: str, name: Callable[..., str]) -> None:
        was = getattr(owner, method)

        def count(self: Any, *args: Any, **more: Any) -> Any:
            made[name(self, *args)] += 1
            return was(self, *args, **more)

        monkeypatch.setattr(owner, method, count)

    counting(Loop, "call", lambda self, *_: f"to the loop of {self._thread.name.split('-')[1]}")
    counting(Workers, "submit", lambda self, *_: f"to a worker of {self._name.split('-')[2]}")
    counting(Link, "send", lambda self, message: type(message).__name__)
    return made


def test_hand_overs_and_messages_of_a_small_request(counts: Counter[str]) -> None:
    """From `send` to the confirmation of both sides: the call itself, a worker that writes and comes back, and two
    messages. Decode looks at so little on its loop."""
    with World(manifest("prefill", 1), manifest("decode", 1)) as world:
        first_senders, first_receivers, _ = world.transfer()
        assert {h.wait(10) for h in [*first_senders, *first_receivers]} == {"confirmed"}
        counts.clear()
        senders, receivers, wrong = world.transfer()
        assert {h.wait(10) for h in [*senders, *receivers]} == {"confirmed"}
        assert wrong() == []
    said = {name: n for name, n in counts.items() if not name.startswith("to ") and name not in ("Beat", "Bye")}
    assert said == {"Ask": 1, "Ready": 1, "Done": 1, "Confirm": 1}
    assert counts["to a worker of prefill"] == 1
    assert counts["to a worker of decode"] == 0
    assert counts["to the loop of prefill"] == 3 + 1, "open, send, the write's end; and close"
    assert counts["to the loop of decode"] == 1 + 1, "open; and close"
