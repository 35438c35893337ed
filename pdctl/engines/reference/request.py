"""A request on its way through the engine, and what is told about it."""

import hashlib
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from pdctl.engines.reference.allocator import Place
from pdctl.engines.reference.sampling import Sampling
from pdctl.engines.reference.tokenizer import decode


@dataclass(frozen=True)
class Failure:
    """Why a request ended without success; `status` is what HTTP says."""

    code: str
    message: str
    status: int = 500


@dataclass(frozen=True)
class Bootstrap:
    """Where decode finds the prefill of its request, and the room in which they meet."""

    host: str
    port: int
    room: int


Phase = Literal["waiting", "prefilling", "sending", "receiving", "decoding", "finished"]


@dataclass
class Request:
    """The scheduler's record of one request; only its thread changes it, `notify` is called from there."""

    rid: str
    prompt: Sequence[int]
    sampling: Sampling
    notify: Callable[["Request"], None]
    bootstrap: Bootstrap | None = None
    seed: int = field(default_factory=lambda: int.from_bytes(os.urandom(7), "big"))
    phase: Phase = "waiting"
    place: Place | None = None
    group: int = 0
    transfer: Any = None
    done: int = 0
    computed: int = 0
    cached: int = 0
    output: list[int] = field(default_factory=list)
    logprobs: list[float] = field(default_factory=list)
    proposal: int | None = None
    proposals: list[int] = field(default_factory=list)
    accepted: int = 0
    verified: int = 0
    finish: dict[str, Any] | None = None
    failure: Failure | None = None
    cut: int | None = None
    arrived: float = field(default_factory=time.monotonic)
    first_token: float | None = None

    def __post_init__(self) -> None:
        if self.sampling.sampling_seed is not None:
            self.seed = self.sampling.sampling_seed

    @property
    def tokens(self) -> int:
        """Prompt and output tokens so far."""
        return len(self.prompt) + len(self.output)

    @property
    def ended(self) -> bool:
        """Whether nothing more will happen to it."""
        return self.phase == "finished"

    def add(self, token: int, logprob: float, eos: int) -> None:
        """Append one output token and see whether the request is complete with it."""
        self.output.append(token)
        self.logprobs.append(logprob)
        if self.first_token is None:
            self.first_token = time.monotonic()
        self.finish = self._finish(token, eos)

    def _finish(self, token: int, eos: int) -> dict[str, Any] | None:
        sampling, count = self.sampling, len(self.output)
        if count >= sampling.min_new_tokens:
            stops = [] if sampling.ignore_eos else [eos]
            if token in stops or token in (sampling.stop_token_ids or ()):
                return {"type": "stop", "matched": token}
            text = decode(self.output) if sampling.stops else ""
            for stop in sampling.stops:
                if (found := text.find(stop)) >= 0:
                    self.cut = found + len(stop) * sampling.no_stop_trim
                    return {"type": "stop", "matched": stop}
        if count >= sampling.max_new_tokens:
            return {"type": "length", "length": count}
        return None

    @property
    def seconds(self) -> float:
        """Time since it arrived."""
        return time.monotonic() - self.arrived

    @property
    def text(self) -> str:
        """The output as text, without a matched stop string."""
        return decode(self.output)[: self.cut]


def digest(prompt: Sequence[int]) -> str:
    """Names a prompt: prefill and decode must have been given the same one."""
    return hashlib.blake2b(b"".join(token.to_bytes(4, "little") for token in prompt), digest_size=16).hexdigest()
