"""Who carries the bytes inside an engine, as the operator says: the engine itself, the core, or whichever is better."""

import json
import logging
import math
import os
from collections.abc import Mapping
from typing import Any, Final, get_args

import msgspec
from msgspec.structs import fields

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.names import CORE as CORE
from pdctl_transfer.plugins.names import OPTIONS as OPTIONS
from pdctl_transfer.plugins.names import SECRET as SECRET
from pdctl_transfer.plugins.names import Core as Core
from pdctl_transfer.session.options import Options

MAY_BE_ZERO: Final = frozenset({"staging_bytes", "linger_s", "regain_s", "events"})

log = logging.getLogger("pdctl")


def wanted(environ: Mapping[str, str] = os.environ) -> Core:
    """What PDCTL_CORE says, `engine` where it says nothing. An unknown word is `engine`, too, and logged as PD4018."""
    said = environ.get(CORE, "").strip().lower()
    for core in get_args(Core):
        if said == core:
            return core  # type: ignore[no-any-return]  # one of the Literal's own
    if said:
        known = ", ".join(get_args(Core))
        log.warning("PD4018 %s: found %r, expected one of %s; the engine's own path is used", CORE, said, known)
    return "engine"


def options(
    host: str, given: str | Mapping[str, Any] | None = None, environ: Mapping[str, str] = os.environ
) -> Options:
    """Options of a session in an engine at `host`, which `given` changes: an object over fields of `Options`, or its
    JSON. The secret comes from the environment, which other users of the host cannot read.

    Raises TransferError PD4019 for what is no option.
    """
    changes = _object(given) if given else {}
    known = [field.name for field in fields(Options) if field.name != "secret"]
    for name in changes:
        if name not in known:
            raise TransferError(f"{name}: no option of the core, which has {', '.join(known)}", code="PD4019")
    secret = environ.get(SECRET)
    try:
        made = msgspec.convert({"host": host, **changes}, Options)
    except msgspec.ValidationError as error:
        raise TransferError(f"an option of the core: {error}", code="PD4019") from error
    for name in changes:
        if not _possible(name, getattr(made, name)):
            raise TransferError(f"an option of the core: {name} cannot be {getattr(made, name)}", code="PD4019")
    return msgspec.structs.replace(made, secret=secret.encode()) if secret else made


def _possible(name: str, value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return True
    return math.isfinite(value) and (value > 0 or (value == 0 and name in MAY_BE_ZERO))


def _object(given: str | Mapping[str, Any]) -> Mapping[str, Any]:
    if isinstance(given, str):
        try:
            given = json.loads(given)
        except (ValueError, RecursionError) as error:
            raise TransferError(f"options of the core: not JSON: {error}", code="PD4019") from error
    if not isinstance(given, Mapping):
        raise TransferError(f"options of the core: found {given!r}, expected an object", code="PD4019")
    return given
