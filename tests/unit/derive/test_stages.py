"""Which layers each pipeline stage computes, by the rule of each engine."""

import pytest

from pdctl.derive.stages import Spare, partition
from pdctl.errors import InputError


@pytest.mark.parametrize(
    ("spare", "sizes"),
    [("last", [15, 15, 15, 16]), ("first", [16, 15, 15, 15]), ("before-last", [15, 15, 16, 15])],
)
def test_one_spare_layer_goes_where_the_engine_puts_it(spare: Spare, sizes: list[int]) -> None:
    """DeepSeek-V3's 61 layers over four stages: SGLang, the reference engine and vLLM each differ."""
    ranges = partition(61, 4, spare)
    assert [end - start for start, end in ranges] == sizes
    assert [start for start, _ in ranges][1:] == [end for _, end in ranges][:-1]


def test_several_spare_layers() -> None:
    assert [end - start for start, end in partition(11, 4, "last")] == [2, 3, 3, 3]
    assert [end - start for start, end in partition(11, 4, "before-last")] == [3, 3, 3, 2]


def test_listed_partition() -> None:
    assert partition(10, 2, "last", listed="7,3") == [(0, 7), (7, 10)]
    assert partition(10, 1, "last", listed="7,3") == [(0, 10)]
    for listed in ("7,4", "5,5,0", "10,0", "a,b", "7"):
        with pytest.raises(InputError, match="does not cut 10 layers"):
            partition(10, 2, "last", listed=listed)


def test_more_stages_than_layers() -> None:
    with pytest.raises(InputError, match="5 stages, but the model has 4 layers"):
        partition(4, 5, "last", where="--pp-size")
