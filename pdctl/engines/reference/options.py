"""What an engine is started with, checked against the model before anything is allocated."""

from dataclasses import dataclass
from typing import Literal

from pdctl.engines.reference.config import Gqa, ModelConfig
from pdctl.errors import InputError

EngineRole = Literal["aggregate", "prefill", "decode"]
ROLES: tuple[EngineRole, ...] = ("aggregate", "prefill", "decode")
BACKENDS = ("mooncake", "nixl", "memory")
DTYPES = ("float64", "float32")
SECRET = "PDCTL_TRANSFER_SECRET"
"""Environment variable with the secret of the transfer session."""
API_KEY = "PDCTL_API_KEY"
"""Environment variable with the key that clients must send."""


@dataclass(frozen=True)
class EngineOptions:
    """Sizes and roles; `tp` counts all ranks of a stage, of which each of `dp` groups has `tp / dp`."""

    model: str = "builtin:tiny-hybrid"
    served_name: str | None = None
    role: EngineRole = "aggregate"
    host: str = "127.0.0.1"
    port: int = 30000
    tp: int = 1
    pp: int = 1
    dp: int = 1
    page_size: int = 16
    dtype: str = "float64"
    max_total_tokens: int = 16384
    max_running: int = 16
    prefix_tokens: int = 0
    draft: bool = False
    bootstrap_host: str | None = None
    bootstrap_port: int = 8998
    backend: str = "mooncake"
    protocol: str = "tcp"
    devices: str = ""
    session: tuple[str, ...] = ()

    @property
    def attn_tp(self) -> int:
        """Ranks that split one request's attention."""
        return self.tp // self.dp

    @property
    def bootstrap_address(self) -> str:
        """Where the registry listens: beside the HTTP server unless told."""
        return self.bootstrap_host or self.host

    @property
    def pages(self) -> int:
        """KV pages of each group."""
        return self.max_total_tokens // self.page_size


def check_options(options: EngineOptions, config: ModelConfig) -> None:
    """Raise InputError (PD3044, PD1004, PD1019) naming the first option that the model or the others rule out."""
    for flag, value in (
        ("--tp", options.tp),
        ("--pp", options.pp),
        ("--dp", options.dp),
        ("--page-size", options.page_size),
    ):
        if value < 1:
            raise InputError(f"found {value}, expected at least 1", where=flag, code="PD3044")
    if options.tp % options.dp:
        raise InputError(
            f"{options.tp} ranks do not divide into {options.dp} groups", where="--dp", code="PD3044",
            hint="give a --dp that divides --tp",
        )  # fmt: skip
    _check_split(options.attn_tp, config)
    if options.pp > config.layers:
        raise InputError(f"{options.pp} stages for {config.layers} layers", where="--pp", code="PD3044")
    if config.indexer and options.page_size % config.indexer.ratio:
        raise InputError(
            f"page size {options.page_size} is not a multiple of indexer_compress_ratio {config.indexer.ratio}",
            where="--page-size",
            code="PD1019",
            hint=f"give a multiple of {config.indexer.ratio}",
        )
    if options.draft and not config.draft_layers:
        raise InputError(
            f"{config.source} has no draft layer (mtp_num_hidden_layers)",
            where="--speculative-algorithm",
            code="PD3044",
            hint="leave the flag out",
        )
    if options.pages < 1 or options.max_running < 1:
        raise InputError(
            f"{options.max_total_tokens} tokens make {options.pages} pages", where="--max-total-tokens", code="PD3044"
        )


def _check_split(tp: int, config: ModelConfig) -> None:
    """Query and value heads divide by the ranks; key-value heads divide or are divided."""
    attention, delta = config.attention, config.delta
    shared = {"linear_num_key_heads": delta.key_heads}
    if isinstance(attention, Gqa):
        shared["num_key_value_heads"] = attention.kv_heads
    for key, heads in shared.items():
        if heads % tp and tp % heads:
            raise _split_error(tp, key, heads)
    for key, heads in {"num_attention_heads": attention.heads, "linear_num_value_heads": delta.value_heads}.items():
        if heads % tp:
            raise _split_error(tp, key, heads)
    if delta.key_heads % tp:
        raise _split_error(tp, "linear_num_key_heads", delta.key_heads)


def _split_error(tp: int, key: str, heads: int) -> InputError:
    return InputError(
        f"{heads} heads ({key}) do not divide over {tp} ranks", where="--tp", code="PD1004", hint="give a smaller --tp"
    )
