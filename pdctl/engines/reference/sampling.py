"""Choosing the next token: a pure function of the logits, the parameters and the position.

A seeded choice depends on (seed, position) alone, so decode continues a request that prefill began without any random
state moving between them.
"""

import hashlib
import math

import torch
from msgspec import Struct
from torch import Tensor


class Sampling(Struct, frozen=True, forbid_unknown_fields=True):
    """SGLang's sampling parameters, as many as this engine honours; others are refused, not ignored."""

    max_new_tokens: int = 128
    min_new_tokens: int = 0
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    sampling_seed: int | None = None
    stop: str | list[str] | None = None
    stop_token_ids: list[int] | None = None
    ignore_eos: bool = False
    skip_special_tokens: bool = True
    spaces_between_special_tokens: bool = True
    no_stop_trim: bool = False
    n: int = 1

    @property
    def stops(self) -> list[str]:
        """Stop strings as a list."""
        return [self.stop] if isinstance(self.stop, str) else self.stop or []

    def fault(self) -> str | None:
        """Why these parameters cannot be used, or None."""
        checks = (
            (self.max_new_tokens < 1, f"max_new_tokens is {self.max_new_tokens}, at least 1 is needed"),
            (self.temperature < 0, f"temperature is {self.temperature}, at least 0 is needed"),
            (not 0 < self.top_p <= 1, f"top_p is {self.top_p}, a value in (0, 1] is needed"),
            (self.top_k == 0 or self.top_k < -1, f"top_k is {self.top_k}, -1 or at least 1 is needed"),
            (not 0 <= self.min_p <= 1, f"min_p is {self.min_p}, a value in [0, 1] is needed"),
            (self.n != 1, f"n is {self.n}, only 1 is supported"),
        )
        return next((reason for wrong, reason in checks if wrong), None)


def choose(logits: Tensor, sampling: Sampling, seed: int, position: int) -> tuple[int, float]:
    """The next token and its log-probability under the unmodified distribution. logits: `[vocab]`."""
    logprobs = logits.log_softmax(-1)
    if sampling.temperature == 0 or sampling.top_k == 1:
        token = int(logits.argmax())
        return token, float(logprobs[token])
    ordered, ids = (logits / sampling.temperature).softmax(-1).sort(descending=True, stable=True)
    before = ordered.cumsum(-1) - ordered
    kept = (before < sampling.top_p) & (ordered >= sampling.min_p * ordered[0])
    if sampling.top_k > 0:
        kept &= torch.arange(len(ordered)) < sampling.top_k
    weights = torch.where(kept, ordered, 0.0).cumsum(-1)
    place = torch.searchsorted(weights, uniform(seed, position) * weights[-1], right=True)
    token = int(ids[min(int(place), int(kept.sum()) - 1)])
    return token, float(logprobs[token])


def uniform(seed: int, position: int) -> float:
    """A number in [0, 1), the same for the same seed and position anywhere."""
    digest = hashlib.blake2b(f"{seed}/{position}".encode(), digest_size=7).digest()
    return int.from_bytes(digest, "big") / 2**56


def finite(logprob: float) -> bool:
    """Whether a log-probability came of numbers; damaged state shows as NaN."""
    return math.isfinite(logprob)
