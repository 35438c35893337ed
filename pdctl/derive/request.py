"""What a derivation is asked for and what it answers: plain frozen values, no IO."""

from collections.abc import Mapping
from typing import Any

from msgspec import Struct, field

from pdctl_transfer.layout.manifest import Manifest, Role
from pdctl_transfer.rules.outcome import Evidence


class Request(Struct, frozen=True, kw_only=True):
    """One side of a pair, before anything starts: a model's config and the engine arguments that shape its buffers.

    `tp` is the engine's tensor-parallel size, `dp` its attention data parallelism and `cp` its attention context
    parallelism: the buffers are cut over `tp / dp / cp` ranks. `page_size` is None where the engine's default holds.
    `flags` are further engine flags that shape buffers, by their canonical name without dashes. `origins` says where
    a field came from (`fleet.yaml:12`, `--page-size`), by the name of the field or flag.
    """

    engine: str
    role: Role
    config: Mapping[str, Any]
    config_source: str = "config.json"
    model_name: str | None = None
    tp: int = 1
    pp: int = 1
    dp: int = 1
    cp: int = 1
    page_size: int | None = None
    kv_cache_dtype: str = "auto"
    backend: str | None = None
    platform: str | None = None
    speculative: Mapping[str, Any] | None = None
    flags: Mapping[str, str] = field(default_factory=dict)
    origins: Mapping[str, str] = field(default_factory=dict)
    engine_version: str | None = None
    without_draft: bool = False
    """Leave a draft's buffers out: its config is not here, and the model's own are wanted all the same."""

    @property
    def attn_tp(self) -> int:
        """Ranks that one request's attention is cut over."""
        return self.tp // self.dp // self.cp

    def stated_speculative(self) -> dict[str, Any] | None:
        """What the manifest says of speculation; a draft's whole config stays out of it."""
        if not self.speculative:
            return None
        return {key: value for key, value in self.speculative.items() if key != "draft_config"}


class Derived(Struct, frozen=True, kw_only=True):
    """A manifest, where each of its effective values came from, and the assumptions that were made."""

    manifest: Manifest
    sources: Mapping[str, Evidence]
    notes: tuple[str, ...] = ()
