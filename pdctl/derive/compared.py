"""What shapes no buffer and is compared or refused all the same: a manifest's `settings`, each with its origin."""

from collections.abc import Mapping
from typing import Any, Final

from pdctl.derive.config import Config
from pdctl.derive.dtypes import model_dtype
from pdctl.derive.request import Request
from pdctl.flags import dialect
from pdctl_transfer.rules.element_types import ALIASES
from pdctl_transfer.rules.outcome import Evidence

#: Flags of the context-parallel sizes and of others, by the setting that they become.
FLAGS: Final[Mapping[str, str]] = {
    "kv_role": "kv_role",
    "connector": "connector",
    "attention_backend": "attention-backend",
    "dcp": "dcp",
    "pcp": "pcp",
    "state_dtype": "mamba-ssm-dtype",
    "cross_layers": "cross-layers",
    "compat_hash": "compat-hash",
}
#: Settings that an engine's derivation knows, by the flag that they are else told by.
TOLD_BY: Final[Mapping[str, str]] = {"hybrid_manager": "disable-hybrid"}
#: Settings by the engines whose handshake or start they matter to.
OF_ENGINE: Final[Mapping[str, tuple[str, ...]]] = {
    "vllm": ("kv_role", "connector", "attention_backend", "dcp", "pcp", "state_dtype", "cross_layers", "compat_hash"),
    "sglang": ("kv_role", "dcp", "state_dtype"),
    "reference": ("kv_role",),
}
NUMBERS: Final = frozenset({"dcp", "pcp"})


def compared(request: Request, config: Config, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Evidence]]:
    """The settings and their origins. `given`: what the engine's derivation knows besides; None is not stated."""
    settings: dict[str, Any] = {}
    sources: dict[str, Evidence] = {}
    if request.engine != "reference" and (word := _own_type(request, config, sources)) is not None:
        settings["dtype"] = word
    for name, value in given.items():
        if value is not None:
            settings[name] = value
            origin = request.origins.get(TOLD_BY.get(name, name), "the engine's default")
            sources[name] = Evidence(origin, str(value))
    for name in OF_ENGINE.get(dialect(request.engine), ()):
        flag = FLAGS[name]
        value = request.flags.get(flag)
        if value in (None, "auto"):
            continue
        settings[name] = int(value) if name in NUMBERS and value.isdigit() else value
        sources[name] = Evidence(request.origins.get(flag, f"--{flag}"), value)
    return settings, sources


def _own_type(request: Request, config: Config, sources: dict[str, Evidence]) -> str | None:
    """The type that the model runs in; None where the engine chooses, as it does for a config of 32 bits."""
    own = model_dtype(request, config)
    word = ALIASES.get(word := own.word.removeprefix("torch."), word)
    if " " in word or (word == "float32" and own.itemsize == 2):
        return None
    sources["dtype"] = Evidence(own.key, word)
    return word
