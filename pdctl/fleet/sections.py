"""The sections of a fleet file below its pools, and the words that all of them are written in."""

from collections.abc import Mapping
from typing import Annotated, Any, Final, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from pdctl.fleet.names import NAME_PATTERN
from pdctl_transfer.plugins.names import Core as Core

Engine = Literal["reference", "sglang", "vllm", "vllm-ascend"]


def _text(value: Any) -> Any:
    """YAML reads `OMP_NUM_THREADS: 1` as a number; a variable or a flag's value is text all the same."""
    return str(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


Name = Annotated[str, Field(pattern=rf"^{NAME_PATTERN}$")]
Text = Annotated[str, BeforeValidator(_text)]
Variable = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_]*$", max_length=128)]
Version = Annotated[str, Field(pattern=r"^[0-9]+\.[0-9]+[0-9A-Za-z.+-]*$", max_length=64)]
Kind = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._+-]*$", max_length=64)]
Port = Annotated[int, Field(ge=1, le=65535)]
Size = Annotated[int, Field(ge=1, le=65536)]
Network = Literal["host", "own"]
PORTS_TAKEN: Final[Mapping[str, int]] = {"dist_init": 8}
"""Ports that one engine takes from the given one on, by purpose, where that is more than one: beside the port where
its nodes meet SGLang opens up to seven more (server_args.py:847 of 0.5.23)."""


class Section(BaseModel):
    """Strict: no unknown key, no silent conversion, immutable."""

    # Built with the fleet, not one by one: seven validators that nobody calls would cost a sixth of a check.
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, populate_by_name=True, defer_build=True)


class Model(Section):
    """The model that every engine serves."""

    path: str = Field(description="A folder with a config.json, a name the engine resolves, or `builtin:NAME`.")
    name: str | None = Field(default=None, description="The served name; the last part of `path` unless given.")
    draft: str | None = Field(
        default=None,
        description="A folder with the draft model's config.json, where `speculative` names one elsewhere.",
    )

    @property
    def served_name(self) -> str:
        """The name that clients ask for."""
        return self.name or self.path.rstrip("/").rsplit("/", 1)[-1].rsplit(":", 1)[-1]


class Transfer(Section):
    """How state moves from prefill to decode."""

    backend: Literal["mooncake", "nixl", "mori", "ascend"] = "mooncake"
    protocol: Literal["rdma", "tcp"] = "rdma"
    devices: list[str] = Field(default=[], description="HCAs, such as mlx5_0; none: the engine chooses.")
    options: dict[str, Any] = Field(default={}, description="Connector options, passed through to the engine.")
    core: Core = Field(
        default="engine",
        description="Who carries the state: engine, its own transfer; pdctl, the transfer core; auto, the core where "
        "the engine's own cannot or is much slower.",
    )
    session: dict[str, Any] = Field(
        default={}, description="What the core's sessions are told where the core carries: verify, staging_bytes, …"
    )


class PoolTransfer(Section):
    """How one pool's engines move state, where that is not the fleet's way."""

    core: Core | None = Field(default=None, description="Another way than the fleet's: engine, pdctl, auto.")


class Launcher(Section):
    """What starts the engines."""

    kind: Literal["local", "external"] = Field(
        default="local",
        description="local: pdctl, on this machine. external: somebody else; `urls` say where they are.",
    )


class Address(Section):
    """Where one engine of an external fleet answers."""

    url: str = Field(description="The root of its HTTP endpoints: http://10.0.0.1:30000, a path behind it if need be.")
    bootstrap: Port | str | None = Field(
        default=None,
        description="Port, or HOST:PORT, of its bootstrap server; none: `ports.bootstrap` on the URL's host.",
    )
    side_channel: Port | str | None = Field(default=None, description="The same of NIXL's side channel.")
    log: str | None = Field(default=None, description="A file on this machine that holds its output.")


def _address(value: Any) -> Any:
    """A URL alone says all that most engines need."""
    return {"url": value} if isinstance(value, str) else value


Addresses = list[Annotated[Address, BeforeValidator(_address)]]


def one_or_more(value: Any) -> Any:
    """One text, or a list of them."""
    return [value] if isinstance(value, str) else value
