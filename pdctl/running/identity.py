"""Whether what answers can be the engine that a fleet file means: by family, role and model, as far as it shows."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from pdctl.engines.live import Running
from pdctl.engines.names import served_names
from pdctl.engines.said import Said

if TYPE_CHECKING:
    from pdctl.fleet.loaded import LoadedFleet
    from pdctl.fleet.model import Pool


class Contradiction(NamedTuple):
    """What the engine says, and what the file means, by its line."""

    what: str
    says: str
    source: str
    means: str

    def __str__(self) -> str:
        return f"{self.what} {self.says}, {self.source} says {self.means}"


def pool_of(loaded: "LoadedFleet", member: Running) -> "Pool":
    """The pool that the engine belongs to."""
    return next(pool for pool in loaded.pools() if member.name in pool.members)


def contradictions(member: Running, loaded: "LoadedFleet", said: Said) -> Iterator[Contradiction]:
    """Each way in which it is another engine."""
    pool = pool_of(loaded, member)
    if said.engine not in (None, member.engine):
        where = loaded.where(f"{pool.key}.engine" if pool.engine else "engine")
        yield Contradiction("engine", str(said.engine), where, member.engine)
    where = loaded.where(f"{pool.key}.urls" if pool.urls else pool.key)
    if said.role is not None and member.role in ("prefill", "decode", "aggregate") and said.role != member.role:
        yield Contradiction("role", said.role, where, member.role)
    if said.takes_kv is False and member.role == "decode":
        yield Contradiction("role", "one that takes no KV", where, member.role)
    names = served_names(loaded.fleet, pool)
    if said.models is not None and not any(_is_one_of(names, name, loaded, pool) for name in said.models):
        told = f"{pool.key}.served_name" if pool.served_name else "model.name"
        where = loaded.where(told if told in loaded else "model.path")
        yield Contradiction("model", ", ".join(said.models[:4]) or "none", where, names[0])


def _is_one_of(names: Sequence[str], name: str, loaded: "LoadedFleet", pool: "Pool") -> bool:
    """Engines serve a model under its whole path unless told another name, which the file then says."""
    told = pool.served_name or loaded.fleet.model.name or names != (loaded.fleet.model.served_name,)
    return name in names or (not told and name.rstrip("/").rsplit("/", 1)[-1] in names)
