"""What rules look at: one prefill and one decode layout, where their values came from, and the backend to judge for."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any, Final

import msgspec
from msgspec import UNSET, Struct, field

from pdctl_transfer.layout.manifest import SETTINGS, Component, Manifest, Role
from pdctl_transfer.layout.pairing import Pairing, pair_entries
from pdctl_transfer.rules.outcome import Evidence, Finding, Held, Outcome, Severity, Skipped
from pdctl_transfer.rules.releases import outside

Rule = Callable[["Pair"], Iterable[Outcome]]

#: How vLLM's NIXL connectors move pages: decode reads them, or prefill writes them.
TRANSFER_MODES: Final[Mapping[str, str]] = {
    "NixlConnector": "pull",
    "NixlPullConnector": "pull",
    "NixlPushConnector": "push",
}


#: The core's own connector of vLLM, and what tables call it: none of their rows is about it.
CORE_CONNECTOR: Final = "PdctlConnector"
CORE_BACKEND: Final = "pdctl"


def setting(manifest: Manifest, name: str) -> Any:
    """One of the manifest's `settings`; None where it is not stated."""
    return None if manifest.settings is UNSET else manifest.settings.get(name)


def _setting(name: str) -> Callable[[Manifest], object]:
    return lambda manifest: setting(manifest, name)


#: Where the values that rules compare stand in a manifest.
_FIELDS: Final[Mapping[str, Callable[[Manifest], object]]] = {
    "engine": lambda m: m.engine.name,
    "engine_version": lambda m: m.engine.version,
    "backend": lambda m: m.transfer.backend,
    "transfer_version": lambda m: m.transfer.version,
    "model": lambda m: m.model.name,
    "family": lambda m: m.model.family,
    "config_digest": lambda m: m.model.config_digest,
    "attn_tp": lambda m: m.parallel.attn_tp,
    "attn_cp": lambda m: m.parallel.attn_cp,
    "pp": lambda m: m.parallel.pp,
    "page_size": lambda m: m.page_size,
    "kv_cache_dtype": lambda m: m.kv_cache_dtype,
    "kv_layout": lambda m: m.kv_layout,
    "speculative": lambda m: m.speculative,
    "values_digest": lambda m: None if m.model.values_digest is UNSET else m.model.values_digest,
    "transfer_mode": lambda m: TRANSFER_MODES.get(setting(m, "connector")),
    **{name: _setting(name) for name in SETTINGS},
    "cross_layers": lambda m: setting(m, "cross_layers") or "off",
}


FIELDS: Final = tuple(_FIELDS)

#: Fields that follow from another argument, whose origin is then theirs.
_ORIGINS: Final[Mapping[str, str]] = {"attn_tp": "tp", "attn_cp": "cp", "transfer_mode": "connector"}


class Side(Struct, frozen=True):
    """One layout, its name in reports, and the origin of its values by field name where it is known."""

    manifest: Manifest
    name: str
    sources: Mapping[str, Evidence] = field(default_factory=dict)

    def evidence(self, name: str) -> Evidence:
        """The value of a field and its origin: `fleet.yaml:12`, a flag, a file; the side's name at worst."""
        return self.known(name) or Evidence(self.name, f"{name}: {shown(_FIELDS[name](self.manifest))}")

    def known(self, name: str) -> Evidence | None:
        """The value of a field where its origin is known, with what the derivation says about it."""
        source = self.sources.get(name) or self.sources.get(_ORIGINS.get(name, ""))
        if source is None or name not in _FIELDS:
            return None
        value = shown(_FIELDS[name](self.manifest))
        return Evidence(source.source, f"{name}: {source.text if source.text.startswith(value) else value}")

    def said(self, text: str) -> Evidence:
        """Something about the entries, for which no single value stands."""
        known = self.sources.get("manifest")
        return Evidence(known.source if known else self.name, text)


class Pair(Struct, frozen=True, dict=True):
    """One prefill and one decode layout. `backend` overrides the one that the manifests name; `core`: the transfer core
    carries the state, over the engine's backend."""

    prefill_side: Side
    decode_side: Side
    judged_backend: str | None = None
    core: bool = False

    @classmethod
    def of(cls, prefill: Manifest, decode: Manifest, backend: str | None = None, *, core: bool = False) -> "Pair":
        """A pair of bare manifests, as the handshake has them."""
        return cls(Side(prefill, "prefill"), Side(decode, "decode"), backend, core)

    @property
    def by_core(self) -> bool:
        """Whether the core carries: rules about what the engine's own connector cannot are then not asked."""
        return self.core or self.backend == CORE_BACKEND

    @property
    def prefill(self) -> Manifest:
        """The prefill layout."""
        return self.prefill_side.manifest

    @property
    def decode(self) -> Manifest:
        """The decode layout."""
        return self.decode_side.manifest

    @property
    def subject(self) -> str:
        """How outcomes name the pair."""
        return f"{self.prefill_side.name} → {self.decode_side.name}"

    @property
    def backend(self) -> str:
        """The backend to judge for, in its short name; of the core's own connectors that one's, whatever carries it."""
        named = all(setting(side.manifest, "connector") == CORE_CONNECTOR for _, side in self.sides)
        own = named or (self.core and self.prefill.engine.name == "vllm")
        return backend_name(self.judged_backend or (CORE_CONNECTOR if own else self.prefill.transfer.backend))

    @property
    def engines(self) -> frozenset[str]:
        """Names of the engines of the two sides; one, unless they differ."""
        return frozenset({self.prefill.engine.name, self.decode.engine.name})

    @property
    def versions(self) -> tuple[str | None, str | None]:
        """Engine versions of prefill and decode, where they are stated."""
        return self.prefill.engine.version, self.decode.engine.version

    @property
    def outside(self) -> str | None:
        """Why no table of releases says what this pair's engine does; None where they do."""
        return outside(self.prefill.engine.name, *self.versions) if len(self.engines) == 1 else None

    @property
    def tp(self) -> tuple[int, int]:
        """Attention TP of prefill and decode."""
        return self.prefill.parallel.attn_tp, self.decode.parallel.attn_tp

    @property
    def unequal_tp(self) -> bool:
        """Whether ranks do not map one to one."""
        return self.tp[0] != self.tp[1]

    @cached_property
    def pairing(self) -> Pairing:
        """Which entry feeds which, computed once for all rules."""
        return pair_entries(self.prefill, self.decode)

    @property
    def sides(self) -> tuple[tuple[Role, Side], tuple[Role, Side]]:
        """Both sides with their roles."""
        return ("prefill", self.prefill_side), ("decode", self.decode_side)

    def evidence(self, *names: str) -> tuple[Evidence, ...]:
        """The fields' values on both sides, field by field."""
        return tuple(side.evidence(name) for name in names for _, side in self.sides)

    def backend_evidence(self) -> tuple[Evidence, ...]:
        """Where the backend that is judged for comes from."""
        if self.judged_backend:
            return (Evidence("--backend", f"backend: {self.judged_backend}"),)
        return self.evidence("backend")

    def held(self, rule: str, saw: str) -> Held:
        """The rule holds for the pair."""
        return Held(rule, self.subject, saw)

    def skipped(self, rule: str, reason: str, *, needed: bool = False) -> Skipped:
        """The rule cannot be judged; `needed` makes the pair's verdict unknown."""
        return Skipped(rule, self.subject, reason, needed)

    def finding(
        self, code: str, evidence: Iterable[Evidence] = (), severity: Severity | None = None, **params: Any
    ) -> Finding:
        """The rule does not hold for the pair: an error unless `severity` says less."""
        return Finding(code, self.subject, tuple(evidence), params, severity)


def field_value(manifest: Manifest, name: str) -> object:
    """One of `FIELDS` of a manifest."""
    return _FIELDS[name](manifest)


def components(*manifests: Manifest) -> Iterator[Component]:
    """Every component of every stage."""
    for manifest in manifests:
        for stage in manifest.stages:
            yield from stage.components


def shown(value: object) -> str:
    """A value as an operator would write it."""
    if isinstance(value, dict):
        return msgspec.json.encode(value).decode()
    return "not stated" if value is None else str(value)


def listed(names: Iterable[object], most: int = 6) -> str:
    """`a, b, c and 4 more`."""
    unique = list(dict.fromkeys(str(name) for name in names))
    rest = len(unique) - most
    return ", ".join(unique[:most]) + (f" and {rest} more" if rest > 0 else "")


def backend_name(name: str) -> str:
    """`NixlConnector` → `nixl`: vLLM names the connector, the tables name the library."""
    short = name.lower().removesuffix("v1").removesuffix("connector")
    return short or name.lower()
