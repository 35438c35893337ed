"""Wrapping an engine's methods: once, however often a process asks, and with the engine's own results and errors."""

from typing import Any

import pytest

from pdctl_transfer.plugins import wrap


class Engine:
    """Whose methods are wrapped; a fresh one a test."""

    def work(self, value: int) -> int:
        """What the engine does."""
        return value + 1


@pytest.fixture
def engine() -> type[Engine]:
    return type("Fresh", (Engine,), {"work": lambda self, value: Engine.work(self, value)})


def test_a_method_is_wrapped_once_in_a_class_and_its_subclasses(engine: type[Engine]) -> None:
    """vLLM asks for a connector's class several times a process: each event would be counted as often."""
    seen: list[int] = []
    for owner in (engine, engine, type("Sub", (engine,), {})):
        wrap.after(owner, "work", lambda _, result: seen.append(result))
        assert owner().work(1) == 2
    assert seen == [2, 2, 2]


def test_a_hook_that_refuses_keeps_the_engine_from_working(engine: type[Engine]) -> None:
    def refuse(_: Any, value: int) -> None:
        raise RuntimeError(f"PD1020: {value}")

    wrap.before(engine, "work", refuse)
    with pytest.raises(RuntimeError, match="PD1020: 1"):
        engine().work(1)


def test_a_hook_may_answer_in_the_engines_place(engine: type[Engine]) -> None:
    wrap.instead(engine, "work", lambda original, self, value: original(self, value) if value else -1)
    assert [engine().work(value) for value in (0, 1)] == [-1, 2]
