"""Fleets that somebody else started: where their engines are, and keys that say nothing of what runs."""

from pathlib import Path

import pytest

from pdctl.check import check_fleet
from pdctl.engines.refusals import refuse
from pdctl.errors import FleetFileError
from pdctl.fleet import LoadedFleet, parse_fleet

BASE = {
    "schema": "pdctl.fleet/v1",
    "name": "f",
    "model": "{path: builtin:tiny-llama}",
    "engine": "sglang",
    "launcher": "{kind: external}",
    "prefill": "{urls: [http://10.0.0.1:30000]}",
    "decode": "{urls: [http://10.0.0.2:30000]}",
}


def load(**changes: str | None) -> LoadedFleet:
    fields = {key: value for key, value in {**BASE, **changes}.items() if value is not None}
    return parse_fleet("".join(f"{key}: {value}\n" for key, value in fields.items()).encode(), Path("f.yaml"))


def fault(**changes: str | None) -> FleetFileError:
    with pytest.raises(FleetFileError) as caught:
        load(**changes)
    return caught.value


def test_replicas_and_hosts_follow_from_the_urls() -> None:
    pool = load(prefill="{urls: [http://a:1, http://b:1, http://a:2]}").pools("prefill")[0]
    assert pool.members == ["prefill-0", "prefill-1", "prefill-2"]
    assert [pool.place(index) for index in range(3)] == [("a", 0), ("b", 0), ("a", 1)]
    assert load(prefill="{urls: [http://a:1], hosts: [me@login]}").pools("prefill")[0].hosts == ["me@login"]


@pytest.mark.code("PD0054")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"prefill": "{}"}, "prefill.urls: missing"),
        ({"prefill": "{urls: [10.0.0.1:30000]}"}, "expected a URL that begins with http:// or https://"),
        ({"prefill": "{urls: ['http://h:99999']}"}, "whose port is from 1 to 65535"),
        ({"prefill": "{urls: ['http://h:1/?a=b']}"}, "without ? or #"),
        ({"prefill": "{urls: ['http://a,b:1']}"}, "a URL with a host"),
        ({"prefill": "{urls: ['http://fd00::1:30000']}"}, "an IPv6 address in brackets"),
        ({"prefill": "{urls: [{url: 'http://h:1', bootstrap: 'h:0'}]}"}, "prefill.urls.0.bootstrap: found 'h:0'"),
        ({"prefill": "{urls: [http://10.0.0.2:30000/]}"}, "is already prefill.urls.0"),
        ({"router": "{url: 10.0.0.9:8000}"}, "router.url: found '10.0.0.9:8000'"),
        ({"router": "{api_key_env: KEY}"}, "router.url: missing"),
        ({"launcher": None}, "prefill.urls: pdctl starts this fleet"),
        (
            {"launcher": None, "prefill": "{}", "decode": "{}", "router": "{url: 'http://h:1'}"},
            "router.url: pdctl starts",
        ),
    ],
)
def test_an_address_that_can_be_none(changes: dict[str, str], message: str) -> None:
    found = fault(**changes)
    assert (found.code, message in found.message) == ("PD0054", True), found.message
    assert found.where


def test_a_password_in_a_url_is_refused_and_not_shown() -> None:
    found = fault(prefill="{urls: ['http://me:hunter2@h:1']}")
    assert "`api_key_env` names the variable" in found.message
    assert "hunter2" not in found.message


@pytest.mark.code("PD0055")
@pytest.mark.parametrize(
    ("changes", "key"),
    [
        ({"prefill": "{urls: [http://a:1], replicas: 1}"}, "prefill.replicas"),
        ({"prefill": "{urls: [http://a:1], startup_s: 5}"}, "prefill.startup_s"),
        ({"prefill": "{urls: [http://a:1], ports: {http: 1}}"}, "prefill.ports.http"),
        ({"router": "{url: http://r:1, port: 1}"}, "router.port"),
        ({"router": "{url: http://r:1, host: 0.0.0.0}"}, "router.host"),
    ],
)
def test_a_key_that_only_starts_something(changes: dict[str, str], key: str) -> None:
    found = fault(**changes)
    assert (found.code, found.message.partition(":")[0]) == ("PD0055", key)


def test_what_describes_an_engine_stays_and_is_judged() -> None:
    """The image says which release runs, flags of placing are as whoever started it likes."""
    sides = {
        role: f"{{urls: [http://{role}:30000], image: 'lmsysorg/sglang:v0.5.22', page_size: 32,"
        f" args: [--host, 0.0.0.0, --port, '30000', --model-path, /models/x, --disaggregation-mode, {role}]}}"
        for role in ("prefill", "decode")
    }
    loaded = load(**sides)
    report = check_fleet(loaded)
    assert [pair.verdict for pair in report.pairs] == ["fits"]
    assert report.judged_for[0].stated == "0.5.22"


@pytest.mark.code("PD3102")
@pytest.mark.parametrize("args", ["--disaggregation-mode, decode", "--page-size, '64'", "--api-key, secret"])
def test_flags_that_contradict_the_file_are_refused_all_the_same(args: str) -> None:
    loaded = load(prefill=f"{{urls: [http://a:1], page_size: 32, args: [{args}]}}")
    with pytest.raises(FleetFileError) as caught:
        refuse(loaded)
    assert caught.value.code == "PD3102"
    assert "secret" not in str(caught.value.message)


@pytest.mark.parametrize("item", ["30000", "[http://a:1]", "null"])
def test_an_item_that_is_neither_a_url_nor_says_more(item: str) -> None:
    found = fault(prefill=f"{{urls: [{item}]}}")
    assert (found.code, "expected a URL, or a mapping with a `url`" in found.message) == ("PD0004", True)
