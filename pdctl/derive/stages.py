"""Pipeline stages: which layers each computes. Engines differ in where the layers go that do not divide."""

from collections.abc import Iterator
from typing import Final, Literal

from pdctl.errors import InputError

Spare = Literal["first", "last", "before-last"]

#: Stages that take a layer more, in this order, as far as there are spare layers.
TAKERS: Final = {
    "first": lambda stages: range(stages),
    "last": lambda stages: range(stages - 1, -1, -1),
    "before-last": lambda stages: range(stages - 2, -1, -1),
}


def partition(
    num_layers: int, stages: int, spare: Spare, *, listed: str | None = None, where: str = "--pp-size"
) -> list[tuple[int, int]]:
    """Half-open layer ranges, one a stage. `spare` says which stages take the layers that do not divide.

    `listed` is an explicit partition, `12,10,10`. Raises InputError where it does not add up, or a stage stays empty.
    """
    if stages > num_layers:
        raise InputError(f"found {stages} stages, but the model has {num_layers} layers", where=where)
    if listed is not None and stages > 1:
        sizes = [int(size) if size.strip().isdecimal() else 0 for size in listed.split(",")]
        if len(sizes) != stages or sum(sizes) != num_layers or min(sizes) < 1:
            raise InputError(f"partition {listed} does not cut {num_layers} layers into {stages} stages", where=where)
    else:
        base, more = divmod(num_layers, stages)
        takers = set(list(TAKERS[spare](stages))[:more])
        sizes = [base + (stage in takers) for stage in range(stages)]
    return list(_ranges(sizes))


def _ranges(sizes: list[int]) -> Iterator[tuple[int, int]]:
    start = 0
    for size in sizes:
        yield start, start + size
        start += size
