"""The life of a request only moves forward, and its first end is the end."""

from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from pdctl_transfer.session.failure import ENDS, ORDER, Failure, State
from pdctl_transfer.session.life import Life


class Lives(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.life = Life()
        self.seen: list[State] = ["bootstrapping"]
        self.first: Failure | None = None
        self.settled = False
        self.told = 0
        self.life.when_over(self._tell)

    def _tell(self) -> None:
        self.told += 1

    @rule(state=st.sampled_from(ORDER[:-1]))
    def advance(self, state: State) -> None:
        moved = self.life.advance(state)
        assert moved == (self.seen[-1] not in ENDS and ORDER.index(state) > ORDER.index(self.seen[-1]))
        if moved:
            self.seen.append(state)

    @rule(code=st.sampled_from(["PD4004", "PD4031"]))
    def fail(self, code: str) -> None:
        failure = Failure(code, "because", "decode")
        moved = self.life.fail(failure)
        assert moved == (self.seen[-1] not in ENDS)
        if moved:
            self.seen.append("failed")
            self.first = failure

    @rule()
    def settle(self) -> None:
        self.life.settle()
        self.settled = True

    @invariant()
    def it_is_what_it_was_last_moved_to(self) -> None:
        over = self.seen[-1] in ENDS
        assert self.life.state == self.seen[-1]
        assert self.life.failure is self.first
        assert self.life.wait(0) == over
        assert self.told == over
        assert self.life.reusable == (over and self.settled)
        assert list(self.life.reached) == self.seen


TestLives = Lives.TestCase
