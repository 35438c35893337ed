"""Both machines against a wire that loses, delays, repeats, reorders and cuts, jobs that break, processes that die."""

from typing import Any

from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from pdctl_transfer.session.machine.leg import Cut
from tests.unit.transfer_session.machines import Model
from tests.unit.transfer_session.verdicts import at_rest, violations

STEPS = 50
EXAMPLES = 450
"""22,500 steps."""

shapes = st.sampled_from(
    [
        Cut(True, False, 0, True),
        Cut(False, True, 0, False),
        Cut(True, True, 0, True),
        Cut(False, False, 3, True),
        Cut(True, True, 2, True),
        Cut(False, False, 0, True),
    ]
)
endings = st.sampled_from([*["well"] * 8, "again", "late", "late", "failed", "broke", "begun", "begun"])


class Sessions(RuleBasedStateMachine):
    """Moves of `Model`; each picks among what is possible now."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()
        self.wild = False
        """A message was lost or overtaken without a cut, so two sides may end apart."""

    def pick(self, data: st.DataObject, things: Any) -> Any:
        return data.draw(st.sampled_from(list(things)))

    @rule(
        shape=shapes,
        order=st.permutations([0, 1, 2, 3]),
        again=st.integers(0, 3),
        forgotten=st.integers(0, 9),
        ahead=st.integers(0, 3),
        parts=st.sampled_from([1, 1, 2, 3]),
    )
    def open(self, shape: Cut, order: list[int], again: int, forgotten: int, ahead: int, parts: int) -> None:
        """On all four ranks in any order; sometimes under a number whose request was confirmed."""
        ranks = [*self.model.side("prefill"), *self.model.side("decode")]
        if any(rank.closing for rank in ranks):
            return
        busy = {h.room for rank in ranks for h in rank.handles.values() if h.code != "confirmed"}
        used = [number for number in self.model.uses if number not in busy]
        number = used[0] if used and not again else len(self.model.uses) + 1
        self.model.open(shape, tuple(ranks[n] for n in order), number, forgotten=forgotten == 9, parts=parts)
        for _ in range(ahead):  # so that not all of the steps go into meeting
            self.model.link_well()
            self.model.talk_well()

    @precondition(lambda self: any(self.model.unsent(rank) for rank in self.model.side("prefill")))
    @rule(data=st.data())
    def send(self, data: st.DataObject) -> None:
        """The engine has computed some more, or the rest."""
        handles = [(rank, n) for rank in self.model.side("prefill") for n in self.model.unsent(rank)]
        self.model.send_next(*self.pick(data, handles))

    @precondition(lambda self: any(rank.finding for rank in self.model.ranks.values()))
    @rule(data=st.data())
    def route(self, data: st.DataObject) -> None:
        rank = self.pick(data, [rank for rank in self.model.ranks.values() if rank.finding])
        self.model.route(rank, self.pick(data, rank.finding))

    @precondition(lambda self: any(not link.up for link in self.model.links.values()))
    @rule(data=st.data())
    def connect(self, data: st.DataObject) -> None:
        self.model.connect(self.pick(data, [key for key, link in self.model.links.items() if not link.up]))

    @rule(data=st.data(), many=st.integers(1, 6))
    def deliver(self, data: st.DataObject, many: int) -> None:
        for _ in range(many):
            ways = [(key, to) for key, link in self.model.links.items() for to, q in link.queues.items() if q]
            if ways:
                self.model.deliver(*self.pick(data, ways))

    @rule(steps=st.lists(st.sampled_from(["link_well", "talk_well"]), min_size=1, max_size=5))
    def go_well(self, steps: list[str]) -> None:
        for step in steps:
            getattr(self.model, step)()

    @rule(data=st.data(), kind=st.sampled_from(["lose", "repeat", "swap"]))
    def disturb(self, data: st.DataObject, kind: str) -> None:
        queues = [q for link in self.model.links.values() for q in link.queues.values() if q]
        if not queues:
            return
        queue = self.pick(data, queues)
        at = data.draw(st.integers(0, len(queue) - 1))
        if kind == "repeat":
            queue.append(queue[at])
        elif kind == "lose":
            self.wild = True
            del queue[at]
        elif len(queue) > 1:
            self.wild = True
            queue[at], queue[at - 1] = queue[at - 1], queue[at]

    @precondition(lambda self: any(link.up for link in self.model.links.values()))
    @rule(data=st.data(), back=st.booleans())
    def cut(self, data: st.DataObject, back: bool) -> None:
        keys = [key for key, link in self.model.links.items() if link.up]
        doubted = [key for key in keys if key in {(p.name, d.name) for p, d in self.model.in_doubt()}]
        key = self.pick(data, doubted or keys)
        self.model.cut(key)
        if back:
            self.model.connect(key)

    @precondition(lambda self: any(link.fresh and link.refused is None for link in self.model.links.values()))
    @rule(data=st.data(), sure=st.integers(0, 9))
    def refuse(self, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        keys = [key for key, link in self.model.links.items() if link.fresh and link.refused is None]
        key = self.pick(data, keys)
        for rank in self.model.both(key):
            for handle in rank.handles.values():
                self.model.causes[handle.room] += 1
        self.model.refuse(key)

    @precondition(lambda self: any(rank.wishes and rank.free for rank in self.model.side("decode")))
    @rule(data=st.data())
    def lend(self, data: st.DataObject) -> None:
        self.model.lend(self.pick(data, [r for r in self.model.side("decode") if r.wishes and r.free]))

    @precondition(lambda self: any(rank.jobs for rank in self.model.ranks.values()))
    @rule(data=st.data(), ends=st.lists(endings, min_size=1, max_size=5))
    def work(self, data: st.DataObject, ends: list[str]) -> None:
        for how in ends:
            jobs = [job for rank in self.model.ranks.values() for job in rank.jobs.values()]
            if not jobs:
                return
            job = self.pick(data, jobs)
            if not job.begun and not job.abandoned:
                self.model.begin(job)
            if how != "begun":
                self.model.finish(job, how if job.writes or how == "broke" else "well")

    @precondition(lambda self: any(rank.late for rank in self.model.ranks.values()))
    @rule(data=st.data(), sure=st.integers(0, 3))
    def drain(self, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        self.model.drain(self.pick(data, self.model.ranks.values()))

    @rule(data=st.data(), sure=st.integers(0, 3))
    def abort(self, data: st.DataObject, sure: int) -> None:
        if sure:
            return
        handles = [(rank, n) for rank in self.model.ranks.values() for n, h in rank.handles.items() if not h.ends]
        if handles:
            self.model.abort(*self.pick(data, handles))

    @rule(data=st.data(), what=st.sampled_from([*[""] * 6, "kill", "lose", "silent", "close"]))
    def accident(self, data: st.DataObject, what: str) -> None:
        if not what:
            return
        doubted = [rank for pair in self.model.in_doubt() for rank in pair]
        rank = self.pick(data, doubted or self.model.ranks.values())
        if what in {"kill", "lose"}:
            self.model.kill(rank, shown=what == "kill")
            self.model.start(rank.side, rank.rank)
        elif what == "silent":
            key = self.pick(data, [key for key in self.model.links if rank.name in key])
            other = next(r for r in self.model.both(key) if r is not rank)
            self.model.silent(rank, other)
        elif what == "close":
            self.model.close(rank)

    @rule(seconds=st.sampled_from([0.1, 1.0, 4.0, 70.0, 400.0]), sure=st.integers(0, 3))
    def pass_time(self, seconds: float, sure: int) -> None:
        if sure == 0 or seconds < 2:
            self.model.pass_time(seconds)

    @invariant()
    def nothing_is_wrong(self) -> None:
        assert not (wrong := list(violations(self.model))), wrong

    def teardown(self) -> None:
        self.model.calm()
        self.nothing_is_wrong()
        wrong = [text for text in at_rest(self.model) if not (self.wild and text.startswith("room"))]
        assert not wrong, wrong


Sessions.TestCase.settings = settings(
    max_examples=EXAMPLES,
    stateful_step_count=STEPS,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=[Phase.generate],
)
test_sessions = Sessions.TestCase
