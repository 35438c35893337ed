"""A config's `architectures`: where the engine has no class for it, a layout from keys is an assumption."""

from functools import cache
from pathlib import Path

import msgspec

from pdctl.derive.config import Config
from pdctl.derive.request import Request
from pdctl.versions import PINNED, SHOWN


def notes(request: Request) -> tuple[str, ...]:
    """One note where the engine would not know the model by its name; the layout follows from the keys all the same."""
    known = _known().get(request.engine)
    if known is None:
        return ()
    config = Config(request.config, request.config_source)
    names = config.words("architectures") if config.has("architectures") else ()
    title = f"{SHOWN[request.engine]} {PINNED[request.engine]}"
    if not names:
        return (f"the config names no architecture: that {title} serves it is assumed",)
    if known.isdisjoint(names):
        return (f"{title} has no class for {', '.join(names)}: its layout is assumed to follow from the keys",)
    return ()


@cache
def _known() -> dict[str, frozenset[str]]:
    data = Path(__file__).with_name("architectures.json").read_bytes()
    return msgspec.json.decode(data, type=dict[str, frozenset[str]])
