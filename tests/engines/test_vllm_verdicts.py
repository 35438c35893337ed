"""What `check` says of pairs of the real vLLM, and what those very pairs then do: verdict and fact in one test.

The plugin that pdctl ships is off in the engines that are to be refused: what refuses there is vLLM itself.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from pdctl.engines import adapter
from pdctl.engines.alike import NONE, compare, judge
from pdctl.engines.answer import Answer, complete
from pdctl.engines.base import Instance
from pdctl.engines.http import request
from pdctl.errors import GateError
from tests.engines.drafts import write_draft
from tests.engines.fleets import TOKENS, Fleet, by_hand, example, free_port
from tests.engines.pairs import PROMPTS

pytestmark = pytest.mark.engines
STAND_INS = Path(__file__).parent / "stand_ins"
ROLES = ("kv_producer", "kv_consumer")
NIXL = {"kv_buffer_device": "cpu", "kv_connector_extra_config": {"backends": ["UCX"]}}
OFFLOADING = {
    "kv_connector": "OffloadingConnector",
    "kv_role": "kv_both",
    "kv_connector_extra_config": {
        "cpu_bytes_to_use": 1 << 24,
        "spec_name": "CopyingSpec",
        "spec_module_path": "pdctl_cpu_offload",
    },
}


def document(draft: Path) -> dict[str, Any]:
    """One fleet file with a pool for each kind of engine; every prefill could meet every decode engine."""
    shipped = example("vllm-cpu", name="vllm-verdicts")
    args = shipped["prefill"]["args"]
    half = [*args[: args.index("--dtype")], "--dtype", "bfloat16"]
    producer, consumer = ({"kv_connector": "NixlConnector", "kv_role": role} | NIXL for role in ROLES)
    push = producer | {"kv_connector": "NixlPushConnector"}
    both = {"connectors": [producer, OFFLOADING]}
    multi = {"kv_connector": "MultiConnector", "kv_role": "kv_producer", "kv_connector_extra_config": both}
    off, stand_ins = {"env": {"PDCTL_PLUGIN": "off"}}, {"env": {"PYTHONPATH": str(STAND_INS)}}

    def pool(name: str, connector: dict[str, Any], words: list[str] = args, **more: Any) -> dict[str, Any]:
        words = [*words, "--kv-transfer-config", json.dumps(connector)]
        return {"name": name, "attn_tp": 1, "page_size": 128, "args": words, **more}

    def drafting(method: str, tokens: int, **more: Any) -> dict[str, Any]:
        return {"speculative": {"method": method, "num_speculative_tokens": tokens, **more}}

    return shipped | {
        "prefill": [
            pool("push", push, **off),
            pool("manager", producer, [*args, "--disable-hybrid-kv-cache-manager"], **off),
            pool("half", producer, half, **off),
            pool("plain", producer),
            pool("multi", multi, **stand_ins),
            pool("one", producer, **drafting("eagle", 1, model=str(draft))),
        ],
        "decode": [
            pool("alone", consumer, **off),
            pool("ngram", consumer, **drafting("ngram", 4, prompt_lookup_min=1, prompt_lookup_max=4)),
            pool("three", consumer, **drafting("eagle", 3, model=str(draft))),
        ],
        "roles": {"aggregate": {"attn_tp": 1, "page_size": 128, "args": args}},
    }


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Fleet:
    """The file; its engines are started by hand, a few at a time."""
    folder = tmp_path_factory.mktemp("verdicts")
    return Fleet(folder, document(write_draft(folder / "draft", "tiny-llama")))


@pytest.fixture(scope="module")
def verdicts(fleet: Fleet) -> dict[tuple[str, str], dict[str, Any]]:
    """What `pdctl check` says of each pair of the file, before any of them runs."""
    return {(pair["prefill"], pair["decode"]): pair for pair in fleet.check("--platform", "cpu")["pairs"]}


Engines = dict[str, Instance]


@contextmanager
def running(fleet: Fleet, *names: str) -> Iterator[Engines]:
    """These engines of the file, started together: a start is a minute of one core."""
    made = {name: fleet.instance(f"{name}-0", http=free_port(), side_channel=free_port()) for name in names}
    with by_hand(*made.values(), logs=fleet.path.parent):
        yield made


@pytest.fixture(scope="module")
def expected(fleet: Fleet) -> dict[str, Answer]:
    """The aggregate engine's answers; it needs to run no longer than it takes to give them."""
    with running(fleet, "aggregate") as engines:
        return {prompt: answer(engines["aggregate"], prompt) for prompt in PROMPTS}


def answer(engine: Instance, prompt: str) -> Answer:
    return complete(engine.url, engine.fleet.model.served_name, prompt, TOKENS, 180.0)


@pytest.fixture(scope="module")
def decode(fleet: Fleet, expected: object) -> Iterator[Instance]:
    """A plain decode engine, alone: without the plugin. All but the drafts meet it."""
    with running(fleet, "alone") as engines:
        yield engines["alone"]


def drafts(engine: Instance) -> float:
    """How often it has drafted since it started."""
    status, text = request(f"{engine.url}/metrics")
    assert status == 200
    counts = re.findall(r"^vllm:spec_decode_num_drafts_total\{.*\} (\S+)$", text.decode(), re.MULTILINE)
    return sum(map(float, counts))


def unlike(prefill: Instance, decode: Instance, expected: dict[str, Answer]) -> list[str]:
    """Prompts whose answer over this very pair is not, token for token, the aggregate engine's."""
    wrong = []
    for prompt, theirs in expected.items():
        over_pair = adapter("vllm").probe(prefill, decode, prompt, TOKENS, 180.0).answer
        verdict = judge(compare(over_pair, theirs), NONE)
        if verdict.kind != "equal":
            wrong.append(f"{prompt[:20]}… of {len(prompt)}: {verdict.words}")
    return wrong


REFUSED = {"push": "PD1036", "manager": "PD1036", "half": "PD1035"}


class TestRefused:
    """Verdicts that a pair is refused, and vLLM's own refusal."""

    @pytest.fixture(scope="class")
    def prefills(self, fleet: Fleet, decode: Instance) -> Iterator[Engines]:
        with running(fleet, *REFUSED) as engines:
            yield engines

    @pytest.mark.parametrize("name", REFUSED)
    def test_the_engines_handshake_refuses_what_check_refuses(
        self,
        name: str,
        verdicts: dict[tuple[str, str], dict[str, Any]],
        prefills: Engines,
        decode: Instance,
        fleet: Fleet,
    ) -> None:
        said = verdicts[f"{name}-0", decode.name]
        assert said["verdict"] == "refused"
        assert REFUSED[name] in said["codes"]
        log = fleet.path.parent / f"{decode.name}.log"
        before = log.stat().st_size
        with pytest.raises(GateError, match="HTTP 500"):
            adapter("vllm").probe(prefills[name], decode, PROMPTS[1], TOKENS, 180.0)
        assert "NIXL compatibility hash mismatch" in log.read_text()[before:]


class TestAllowed:
    """Verdicts that a pair fits, and the aggregate engine's tokens over it."""

    @pytest.fixture(scope="class")
    def prefills(self, fleet: Fleet, decode: Instance) -> Iterator[Engines]:
        with running(fleet, "plain", "multi", "ngram") as engines:
            yield engines | {"alone": decode}

    @pytest.mark.parametrize(("prefill", "other"), [("plain", "ngram"), ("multi", "alone"), ("multi", "ngram")])
    def test_a_pair_that_check_lets_through_gives_the_aggregate_engines_tokens(
        self,
        prefill: str,
        other: str,
        verdicts: dict[tuple[str, str], dict[str, Any]],
        prefills: Engines,
        expected: dict[str, Answer],
    ) -> None:
        assert verdicts[f"{prefill}-0", f"{other}-0"]["verdict"].startswith("fits")
        assert unlike(prefills[prefill], prefills[other], expected) == []
        assert (drafts(prefills[other]) > 0) == (other == "ngram")


class TestDrafts:
    """Drafts with a KV of their own, as many tokens a step on prefill as suit it, and more on decode."""

    def test_drafts_of_unequal_numbers_give_the_aggregate_engines_tokens(
        self, fleet: Fleet, verdicts: dict[tuple[str, str], dict[str, Any]], expected: dict[str, Answer]
    ) -> None:
        assert verdicts["one-0", "three-0"]["verdict"].startswith("fits")
        with running(fleet, "one", "three") as engines:
            assert unlike(engines["one"], engines["three"], expected) == []
            assert drafts(engines["three"]) > 0
