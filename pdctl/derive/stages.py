"""Pipeline stages: which layers each computes."""

from pdctl.errors import InputError


def partition(
    num_layers: int, stages: int, listed: str | None = None, *, where: str = "--pp-size"
) -> list[tuple[int, int]]:
    """Half-open layer ranges, one a stage. Layers that do not divide go one each to the *last* stages.

    `listed` is an explicit partition, `12,10,10`. Raises InputError where it does not add up, or a stage stays empty.
    """
    if stages > num_layers:
        raise InputError(f"found {stages} stages, but the model has {num_layers} layers", where=where)
    if listed is not None and stages > 1:
        sizes = [int(size) if size.strip().isdigit() else 0 for size in listed.split(",")]
        if len(sizes) != stages or sum(sizes) != num_layers or min(sizes) < 1:
            raise InputError(f"partition {listed} does not cut {num_layers} layers into {stages} stages", where=where)
    else:
        base, more = divmod(num_layers, stages)
        sizes = [base + (stage >= stages - more) for stage in range(stages)]
    ends = [sum(sizes[: stage + 1]) for stage in range(stages)]
    return [(end - size, end) for end, size in zip(ends, sizes, strict=True)]
