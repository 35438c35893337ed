"""Which key goes to whom: named by variables, never in words that everybody on the host can read."""

import subprocess
import sys
from pathlib import Path

import pytest

from pdctl.errors import InputError
from pdctl.fleet import LoadedFleet, parse_fleet
from pdctl.routers.start import keyed
from pdctl.up.keys import known_keys, read_keys
from pdctl.up.plan import FleetPlan, make_plan

NAMED = "{api_key_env: K}"
ENVIRON = {"K": "hunter2", "OTHER": "hunter3", "EMPTY": "", "BLANK": "a b", "LINES": "a\nb", "ACCENT": "é"}


def load(prefill: str = "{}", decode: str = "{}", more: str = "", engine: str = "reference") -> LoadedFleet:
    text = (
        f"schema: pdctl.fleet/v1\nname: f\nmodel: {{path: m}}\nengine: {engine}\n"
        f"transfer: {{protocol: tcp}}\nprefill: {prefill}\ndecode: {decode}\n{more}"
    )
    return parse_fleet(text.encode(), Path("f.yaml"))


def plan(loaded: LoadedFleet) -> FleetPlan:
    return make_plan(loaded, keys=read_keys(loaded, lambda: "c0ntr0l", ENVIRON))


def having(found: FleetPlan, key: str) -> dict[str, list[str]]:
    return {unit.name: [name for name, value in unit.env.items() if value == key] for unit in found.units}


def test_without_keys_only_the_routers_control_has_one() -> None:
    found = plan(load())
    assert having(found, "c0ntr0l") == {"prefill-0": [], "decode-0": [], "router": ["PDCTL_CONTROL_KEY"]}
    assert found.router_key is None


@pytest.mark.parametrize(
    ("engine", "variable"),
    [("reference", "PDCTL_API_KEY"), ("sglang", "PDCTL_API_KEY"), ("vllm", "VLLM_API_KEY")],
)
def test_engines_and_router_get_it_by_environment(engine: str, variable: str) -> None:
    found = plan(load(NAMED, NAMED, "router: {kind: smg}\n", engine))
    assert having(found, "hunter2") == {"prefill-0": [variable], "decode-0": [variable], "router": ["PDCTL_API_KEY"]}
    assert found.router_key == "hunter2", "it can send one key only, so it asks for that one"
    assert [one.instance.key for one in found.engines] == ["hunter2"] * 2
    assert [entry.key_env for entry in found.entries()] == ["K", "K", None]
    assert not any("hunter2" in word for unit in found.units for word in unit.argv)
    assert "hunter2" not in repr([one.instance for one in found.engines])


def test_the_vllm_router_sends_engines_what_another_variable_holds() -> None:
    found = plan(load(NAMED, NAMED, "router: {kind: vllm-router}\n", "vllm"))
    assert having(found, "hunter2")["router"] == ["PDCTL_API_KEY", "OPENAI_API_KEY"]
    assert "PDCTL_CONTROL_KEY" not in found.router.env


def test_another_role_may_have_another_key() -> None:
    found = plan(load(NAMED, NAMED, "roles: {aggregate: {api_key_env: OTHER}}\n"))
    assert having(found, "hunter3")["aggregate-0"] == ["PDCTL_API_KEY"]


def test_another_key_is_another_unit() -> None:
    loaded = load(NAMED, NAMED)
    one, two = (
        make_plan(loaded, {u.name: u.ports for u in plan(loaded).units}, keys=read_keys(loaded, str, {"K": value}))
        for value in ("a", "b")
    )
    assert [u.digest for u in one.units] != [u.digest for u in two.units]


VLLM_ROUTER = "router: {kind: vllm-router, api_key_env: K}\n"
REFUSED = [
    (load("{api_key_env: NONE}"), "PD0050", "6: prefill.api_key_env: the environment variable NONE is not set"),
    (load(more="router: {api_key_env: EMPTY}\n"), "PD0050", "8: router.api_key_env: the environment variable EMPTY is"),
    (load("{api_key_env: BLANK}"), "PD0051", "6: prefill.api_key_env: what BLANK holds is no key"),
    (load("{api_key_env: LINES}"), "PD0051", "6: prefill.api_key_env: what LINES holds is no key"),
    (load("{api_key_env: ACCENT}"), "PD0051", "6: prefill.api_key_env: what ACCENT holds is no key"),
    (load(NAMED, "{api_key_env: OTHER}"), "PD0052", "7: decode.api_key_env: another key than prefill's"),
    (load("{}", "{api_key_env: OTHER}", "router: {api_key_env: K}\n"), "PD0052", "7: decode.api_key_env: another key"),
    (load(more=VLLM_ROUTER), "PD0053", "8: router.api_key_env: vllm-router asks its clients for no key"),
]


@pytest.mark.code("PD0050", "PD0051", "PD0052", "PD0053")
@pytest.mark.parametrize(("fleet", "code", "says"), REFUSED)
def test_what_cannot_be_is_told_at_its_line(fleet: LoadedFleet, code: str, says: str) -> None:
    with pytest.raises(InputError) as caught:
        read_keys(fleet, str, ENVIRON)
    assert caught.value.code == code
    assert f"{caught.value.where}: {caught.value.message}".startswith(f"f.yaml:{says}")
    assert not any(value in str(caught.value) for value in ENVIRON.values() if value)


def test_a_plan_can_be_shown_without_them() -> None:
    loaded = load("{api_key_env: NONE}", "{api_key_env: NONE}")
    assert having(make_plan(loaded, keys=known_keys(loaded, lambda: "…", {})), "…")["router"] == [
        "PDCTL_API_KEY",
        "PDCTL_CONTROL_KEY",
    ]


@pytest.mark.code("PD0004")
@pytest.mark.parametrize("name", ["", "a key", "sk-123", "$K", "1K"])
def test_what_is_no_variables_name_is_refused(name: str) -> None:
    """It may be the key itself."""
    with pytest.raises(InputError) as caught:
        load(f"{{api_key_env: '{name}'}}")
    assert caught.value.code == "PD0004"


@pytest.mark.code("PD0015", "PD3102")
@pytest.mark.parametrize("word", ["--api-key", "--api-key=hunter2", "--control-plane-api-keys"])
def test_keys_in_words_are_refused_with_what_to_write_instead(word: str) -> None:
    with pytest.raises(InputError) as caught:
        make_plan(load(more=f"router: {{args: ['{word}', hunter2]}}"))
    assert caught.value.code == "PD0015"
    assert "hunter2" not in str(caught.value)
    assert caught.value.hint
    if "control" in word:
        return
    for engine in ("sglang", "vllm"):
        with pytest.raises(InputError, match="api_key_env") as refused:
            make_plan(load(f"{{args: ['{word}', hunter2]}}", engine=engine))
        assert refused.value.code == "PD3102"
        assert "hunter2" not in str(refused.value)


def test_the_starters_make_flags_of_variables_and_forget_them(tmp_path: Path) -> None:
    assert keyed(["launch"], {"PDCTL_API_KEY": "a", "PDCTL_CONTROL_KEY": "c"}) == [
        "launch", "--api-key", "a", "--control-plane-api-keys", "pdctl:pdctl:admin:c",
    ]  # fmt: skip
    assert keyed(["launch"], {}) == ["launch"]
    (tmp_path / "told.py").write_text(
        "import multiprocessing, os, sys\n"
        "def show(queue): queue.put((__name__, sys.argv[1:]))\n"
        "if __name__ == '__main__':\n"
        "    context = multiprocessing.get_context('spawn')\n"
        "    queue = context.Queue()\n"
        "    child = context.Process(target=show, args=(queue,))\n"
        "    child.start()\n"
        "    print(__name__, sys.argv[1:], queue.get(), os.environ.get('PDCTL_API_KEY'))\n"
        "    print(open('/proc/self/cmdline').read().split(chr(0)))\n"
        "    child.join()\n"
    )
    for starter in ("pdctl.routers.start", "pdctl_transfer.plugins.keyed"):
        done = subprocess.run(
            [sys.executable, "-m", starter, "told", "--flag"],
            env={"PDCTL_API_KEY": "hunter2", "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=True,
        )  # fmt: skip
        first, second = done.stdout.splitlines()
        words = ["--flag", "--api-key", "hunter2"]
        assert first == f"__main__ {words} ('__mp_main__', {words}) None"
        assert "hunter2" not in second


def test_nobody_has_a_key_unless_said() -> None:
    assert (make_plan(load()).router_key, make_plan(load()).control_key) == (None, None)
