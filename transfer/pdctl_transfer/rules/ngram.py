"""PD1018: where prefill holds an n-gram context, decode's pool must have one too.

The model reads the ids of the last tokens at every step. A decode pool built without the n-gram settings dies of an
assertion, or starts each request from an empty history.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.manifest import NGRAM_LAYER
from pdctl_transfer.layout.pairing import Problem
from pdctl_transfer.rules.outcome import Outcome
from pdctl_transfer.rules.pair import Pair


def is_ngram(problem: Problem) -> bool:
    """Whether a prefill n-gram context has no place on decode."""
    if problem.reason != "no_partner" or problem.at is None:
        return False
    return problem.at.entry.layer == NGRAM_LAYER or problem.at.entry.tensor == "ple_ngram"


def check_ngram(pair: Pair) -> Iterator[Outcome]:
    """Nothing to say for models without one."""
    homeless = [problem for problem in pair.pairing.problems if is_ngram(problem)]
    if homeless and homeless[0].at is not None:
        size = homeless[0].at.entry.item_len
        evidence = [pair.prefill_side.said(f"ple_ngram: {size} bytes"), pair.decode_side.said("ple_ngram: none")]
        yield pair.finding("PD1018", evidence, bytes=size)
