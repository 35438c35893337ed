"""Choosing tokens, and knowing when to stop."""

import pytest
import torch

from pdctl.engines.reference.request import Request
from pdctl.engines.reference.sampling import Sampling, choose, uniform

LOGITS = torch.log(torch.tensor([0.5, 0.3, 0.15, 0.05], dtype=torch.float64))


def counted(sampling: Sampling, draws: int = 4000) -> list[float]:
    """Shares of the four tokens."""
    tokens = [choose(LOGITS, sampling, 1, position)[0] for position in range(draws)]
    return [tokens.count(token) / draws for token in range(4)]


def test_greedy_takes_the_most_likely_and_reports_its_logprob() -> None:
    token, logprob = choose(LOGITS, Sampling(temperature=0), 0, 0)
    assert (token, logprob) == (0, pytest.approx(-0.693147, abs=1e-6))


def test_samples_follow_the_distribution() -> None:
    assert counted(Sampling()) == pytest.approx([0.5, 0.3, 0.15, 0.05], abs=0.03)


@pytest.mark.parametrize(
    ("sampling", "shares"),
    [
        (Sampling(top_k=2), [0.625, 0.375, 0, 0]),
        (Sampling(top_p=0.6), [0.625, 0.375, 0, 0]),
        (Sampling(min_p=0.25), [0.526, 0.316, 0.158, 0]),
        (Sampling(temperature=0.5), [0.685, 0.247, 0.062, 0.007]),
    ],
)
def test_filters_drop_what_they_say(sampling: Sampling, shares: list[float]) -> None:
    assert counted(sampling) == pytest.approx(shares, abs=0.03)


def test_a_seeded_choice_depends_on_seed_and_position_alone() -> None:
    """Fails if decode, which never drew the first number, would continue another sequence than an engine alone."""
    assert uniform(7, 12) == uniform(7, 12)
    assert len({uniform(7, 12), uniform(7, 13), uniform(8, 12)}) == 3


def made(text: str, sampling: Sampling) -> Request:
    request = Request("r", (1,), sampling, lambda _: None)
    for byte in text.encode():
        if not request.finish:
            request.add(byte, -1.0, 257)
    return request


def test_a_stop_string_ends_the_text_before_itself() -> None:
    request = made("one two three", Sampling(stop=["two"]))
    assert request.finish == {"type": "stop", "matched": "two"}
    assert request.text == "one "


def test_the_end_token_stops_unless_it_is_to_be_ignored() -> None:
    request = Request("r", (1,), Sampling(), lambda _: None)
    request.add(257, -1.0, 257)
    assert request.finish == {"type": "stop", "matched": 257}
    request = Request("r", (1,), Sampling(ignore_eos=True), lambda _: None)
    request.add(257, -1.0, 257)
    assert request.finish is None


def test_length_ends_a_request() -> None:
    assert made("abc", Sampling(max_new_tokens=3)).finish == {"type": "length", "length": 3}
