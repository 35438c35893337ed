"""Where two manifests of one engine differ: the one that was derived and the one that it reports."""

from collections.abc import Iterator

from pdctl_transfer.layout.manifest import SETTINGS, Entry, Manifest
from pdctl_transfer.layout.pairing import locate
from pdctl_transfer.rules.pair import FIELDS, field_value, shown

#: What a running engine may know and a derivation not, or the reverse.
ONE_SIDED = frozenset(
    {"engine_version", "transfer_version", "config_digest", "family", "kv_layout", "speculative", "model"}
    | {"values_digest", "transfer_mode", *SETTINGS}
)


def differences(derived: Manifest, live: Manifest) -> list[str]:
    """One line a difference: settings first, then entries. Fields that one side may not know count where both do."""
    return [*_settings(derived, live), *_entries(derived, live)]


def _settings(derived: Manifest, live: Manifest) -> Iterator[str]:
    for name in FIELDS:
        ours, theirs = field_value(derived, name), field_value(live, name)
        if ours != theirs and not (name in ONE_SIDED and None in (ours, theirs)):
            yield f"{name}: {shown(ours)} derived, {shown(theirs)} running"


def _entries(derived: Manifest, live: Manifest) -> Iterator[str]:
    ours = {(x.place.pp, *x.key): x.entry for x in locate(derived)}
    theirs = {(x.place.pp, *x.key): x.entry for x in locate(live)}
    for key in dict.fromkeys([*ours, *theirs]):
        pp, kind, layer, tensor, n = key
        name = f"stage {pp} {kind} layer {layer} {tensor}{f' ({n})' if n else ''}"
        if key not in theirs:
            yield f"{name}: derived, but not registered"
        elif key not in ours:
            yield f"{name}: registered, but not derived"
        elif _shape(ours[key]) != _shape(theirs[key]):
            yield f"{name}: {_said(ours[key])} derived, {_said(theirs[key])} running"


def _shape(entry: Entry) -> tuple[object, ...]:
    return entry.item_len, entry.sharding, entry.outer, entry.groups, entry.inner_bytes


def _said(entry: Entry) -> str:
    groups = " + ".join(f"{group.heads}×{group.width}" for group in entry.groups)
    return f"{entry.item_len} bytes ({entry.outer} × ({groups}) {entry.sharding} × {entry.inner_bytes})"
