"""Units by the names that an operator gives."""

from collections.abc import Sequence
from difflib import get_close_matches

from pdctl.errors import InputError


def refuse_unknown(fleet: str, unit: str, known: Sequence[str]) -> None:
    """Raises InputError (PD3015) for a unit that is none of the known ones, with the nearest."""
    if unit in known:
        return
    close = get_close_matches(unit, known, n=1)
    hint = f'did you mean "{close[0]}"?' if close else f"it has {', '.join(known) or 'none'}"
    raise InputError(f"{fleet} has no unit {unit}", code="PD3015", hint=hint)
