"""The schedule of the pair probe."""

from dataclasses import dataclass
from typing import Any, cast

from hypothesis import given
from hypothesis import strategies as st

from pdctl.up.pairs import rounds


@dataclass(frozen=True)
class Side:
    role: str
    index: int


@given(st.integers(1, 9), st.integers(1, 9))
def test_every_pair_once_in_the_fewest_rounds_and_nobody_twice_in_one(prefill: int, decode: int) -> None:
    left = cast(Any, tuple(Side("prefill", index) for index in range(prefill)))
    right = cast(Any, tuple(Side("decode", index) for index in range(decode)))
    schedule = list(rounds(left, right))
    assert len(schedule) == max(prefill, decode)
    met = [pair for pairs in schedule for pair in pairs]
    assert sorted(met, key=repr) == sorted(((a, b) for a in left for b in right), key=repr)
    for pairs in schedule:
        assert len({a for a, _ in pairs}) == len({b for _, b in pairs}) == len(pairs)
