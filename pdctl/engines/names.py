"""The names that a pool's engines answer to: by its own `served_name` or flag, else the model's."""

from typing import TYPE_CHECKING, Final

from pdctl.flags import load, read_words

if TYPE_CHECKING:
    from pdctl.fleet.model import Fleet, Pool

FLAG: Final = "--served-model-name"


def served_names(fleet: "Fleet", pool: "Pool") -> tuple[str, ...]:
    """At least one; vLLM's flag takes several."""
    given = read_words(load(pool.engine or fleet.engine), pool.args).last(FLAG)
    if given is not None and given.values:
        return given.values
    return (own_name(fleet, pool),)


def own_name(fleet: "Fleet", pool: "Pool") -> str:
    """The name by the fields of the file."""
    return pool.served_name or fleet.model.served_name


def naming(fleet: "Fleet", pool: "Pool") -> tuple[str, ...]:
    """The words that name the model, unless the pool's own `args` do."""
    given = read_words(load(pool.engine or fleet.engine), pool.args).last(FLAG)
    return () if given is not None else (FLAG, own_name(fleet, pool))
