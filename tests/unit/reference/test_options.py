"""Flags that cannot be served end the engine with a code that names them, before it holds anything."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from pdctl.engines.reference.arguments import parse_arguments
from pdctl.engines.reference.config import load_config
from pdctl.engines.reference.link import session_options
from pdctl.engines.reference.options import EngineOptions, check_options
from pdctl.errors import InputError

HYBRID = load_config("builtin:tiny-hybrid")
DEFAULT = EngineOptions()


def refusal(**changed: object) -> InputError:
    with pytest.raises(InputError) as caught:
        check_options(replace(DEFAULT, **changed), HYBRID)  # type: ignore[arg-type]
    return caught.value


@pytest.mark.code("PD3044")
@pytest.mark.parametrize(
    ("changed", "flag"),
    [
        ({"tp": 0}, "--tp"),
        ({"tp": 4, "dp": 3}, "--dp"),
        ({"pp": 9}, "--pp"),
        ({"max_total_tokens": 8}, "--max-total-tokens"),
    ],
)
def test_sizes_that_do_not_go_together(changed: dict[str, int], flag: str) -> None:
    error = refusal(**changed)
    assert (error.code, error.where) == ("PD3044", flag)


def test_a_split_that_does_not_divide() -> None:
    error = refusal(tp=8)
    assert (error.code, error.where) == ("PD1004", "--tp")


def test_a_page_that_cuts_a_compressed_block() -> None:
    error = refusal(page_size=24)
    assert (error.code, error.where) == ("PD1019", "--page-size")


@pytest.mark.code("PD3044")
def test_session_options_are_checked_by_name_and_type() -> None:
    assert session_options(replace(DEFAULT, session=("bootstrap_s=2", "verify=full"))).bootstrap_s == 2
    for wrong in ("no_such=1", "bootstrap_s=soon"):
        with pytest.raises(InputError) as caught:
            session_options(replace(DEFAULT, session=(wrong,)))
        assert caught.value.code == "PD3044"


@pytest.mark.code("PD0043")
def test_the_secret_comes_from_the_environment_and_from_nowhere_else(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("PDCTL_TRANSFER_SECRET", raising=False)
    assert session_options(DEFAULT).secret is None
    monkeypatch.setenv("PDCTL_TRANSFER_SECRET", "of the fleet")
    assert session_options(DEFAULT).secret == b"of the fleet"
    with pytest.raises(InputError, match="everybody on the host can read") as caught:
        session_options(replace(DEFAULT, session=("secret=mine",)))
    assert (caught.value.code, caught.value.where) == ("PD0043", "--session secret")


@pytest.mark.code("PD3044")
def test_an_empty_secret_is_not_taken_for_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PDCTL_TRANSFER_SECRET", "")
    with pytest.raises(InputError, match="empty secret") as caught:
        session_options(DEFAULT)
    assert caught.value.where == "PDCTL_TRANSFER_SECRET"


@pytest.mark.code("PD3041")
@pytest.mark.parametrize("model", ["builtin:none", "/nowhere"])
def test_a_missing_model_is_named(model: str) -> None:
    with pytest.raises(InputError, match="not found") as caught:
        load_config(model)
    assert caught.value.code == "PD3041"
    assert "builtin:tiny-hybrid" in str(caught.value.hint)


@pytest.mark.code("PD3042")
@pytest.mark.parametrize("spoil", ["hidden_size", "linear_num_key_heads", None])
def test_a_config_without_a_key_names_it(tmp_path: Path, spoil: str | None) -> None:
    document = dict(HYBRID.raw)
    if spoil:
        del document[spoil]
    (tmp_path / "config.json").write_text(json.dumps(document) if spoil else "{")
    with pytest.raises(InputError) as caught:
        load_config(str(tmp_path))
    assert caught.value.code == "PD3042"
    assert (spoil or "JSON") in caught.value.message


def test_flags_of_sglang_are_understood() -> None:
    given = parse_arguments(
        ["--disaggregation-mode", "decode", "--tp-size", "4", "--dp-size", "2", "--page-size", "32"]
    )
    assert (given.role, given.attn_tp, given.page_size) == ("decode", 2, 32)
