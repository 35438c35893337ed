"""What the operator says of the core inside an engine: a word, and a session's options."""

import logging
from typing import Any

import pytest

from pdctl_transfer.errors import TransferError
from pdctl_transfer.plugins.core import options, wanted
from pdctl_transfer.session import Options


@pytest.mark.parametrize(
    ("said", "means"), [(None, "engine"), ("", "engine"), ("pdctl", "pdctl"), (" AUTO ", "auto"), ("engine", "engine")]
)
def test_a_word_is_taken_as_it_is_meant(said: str | None, means: str, caplog: pytest.LogCaptureFixture) -> None:
    assert wanted({} if said is None else {"PDCTL_CORE": said}) == means
    assert not caplog.records


@pytest.mark.code("PD4018")
def test_an_unknown_word_leaves_the_engine_its_path_and_is_said(caplog: pytest.LogCaptureFixture) -> None:
    """Fails if a typing mistake turns the core on, or is passed over."""
    with caplog.at_level(logging.WARNING, "pdctl"):
        assert wanted({"PDCTL_CORE": "pdclt"}) == "engine"
    assert "PD4018 PDCTL_CORE: found 'pdclt', expected one of engine, pdctl, auto" in caplog.text


@pytest.mark.parametrize("given", [None, "", "{}", {}])
def test_nothing_given_is_the_defaults_at_the_engine_s_address(given: Any) -> None:
    assert options("10.0.0.7", given, {}) == Options(host="10.0.0.7")


@pytest.mark.parametrize("given", ['{"verify": "full", "chunk_bytes": 4096}', {"verify": "full", "chunk_bytes": 4096}])
def test_options_change_the_defaults(given: Any) -> None:
    made = options("::1", given, {"PDCTL_TRANSFER_SECRET": "s"})
    assert made == Options(host="::1", verify="full", chunk_bytes=4096, secret=b"s")
    assert options("h", {"host": "127.0.0.1", "advertise": "n7", "staging_bytes": 0}, {}).host == "127.0.0.1"


@pytest.mark.code("PD4019")
@pytest.mark.parametrize(
    ("given", "named"),
    [
        ('{"chunk_byte": 1}', "chunk_byte"),
        ("{", "JSON"),
        ("[" * 100_000, "JSON"),
        ("[1]", "object"),
        ('{"verify": "some"}', "verify"),
        ('{"waiting_s": "1"}', "waiting_s"),
        ('{"waiting_s": -1}', "waiting_s"),
        ('{"waiting_s": NaN}', "waiting_s"),
        ('{"chunk_bytes": 0}', "chunk_bytes"),
        ('{"secret": "c2VjcmV0"}', "secret"),
    ],
)
def test_what_is_no_option_is_refused_by_name(given: str, named: str) -> None:
    """A secret in there could be read by every user of the host."""
    with pytest.raises(TransferError, match=named) as caught:
        options("h", given, {})
    assert caught.value.code == "PD4019"
