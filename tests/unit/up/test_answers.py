"""What `up` says of two answers: equal, alike within noise, wrong with a code, or that it cannot be told."""

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from pdctl.cli.progress import phase_line
from pdctl.engines.answer import Answer, Prompt, Step
from pdctl.engines.base import Probe
from pdctl.errors import GateError
from pdctl.fleet import load_fleet
from pdctl.launch.state import FleetFolder, PhaseEntry
from pdctl.up.alike import Doubtful
from pdctl.up.pairs import probe_pairs
from pdctl.up.phases import Phase
from pdctl.up.router import first_completion
from pdctl.up.runner import bring_up
from tests.unit.engines.answering import Model
from tests.unit.engines.serving import Handler, serving
from tests.unit.up.test_runner import FLEET


class Completions(Handler):
    """/v1/completions of a model; a bare one says text and ids only."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        server = cast(Any, self.server)
        answer = server.model.answer(ids(body["prompt"]), body["max_tokens"])
        logprobs = {
            "tokens": [step.word for step in answer.steps],
            "token_logprobs": [step.likely[step.word] for step in answer.steps],
            "top_logprobs": [step.likely for step in answer.steps],
        }
        choice = {
            "text": " ".join(map(str, answer.tokens)),
            "token_ids": answer.tokens,
            "prompt_token_ids": answer.prompt,
        }
        self.answer(200, json.dumps({"choices": [choice | ({} if server.bare else {"logprobs": logprobs})]}).encode())


def ids(prompt: Prompt) -> list[int]:
    return [ord(letter) % 40 for letter in prompt] if isinstance(prompt, str) else list(prompt)


@dataclass
class Engine:
    """Speaks for all engines of a fleet; a pair answers as its decode engine's model does."""

    models: dict[str, Model]
    exact: bool = False
    bare: bool = False
    asked: list[str] = field(default_factory=list)

    def probe(self, prefill: Any, decode: Any, prompt: Prompt, max_tokens: int, timeout_s: float) -> Probe:
        self.asked.append(decode.name)
        answer = self.models[decode.name].answer(ids(prompt), max_tokens)
        steps = tuple(Step(token) for token in answer.tokens) if self.bare else answer.steps
        return Probe(Answer("", steps, answer.prompt), 0, 0.01)


@contextmanager
def fleet(
    *decode: Model, router: Model | None = None, alone: Model | None = None, exact: bool = False, bare: bool = False
) -> Iterator[Any]:
    """A bring-up whose engines have been started: one prefill, so many decode, perhaps one that serves alone."""
    engine = Engine({f"decode-{index}": model for index, model in enumerate(decode)}, exact, bare)
    with ExitStack() as stack:

        def unit(name: str, role: str, model: Model | None) -> Any:
            url = ""
            if model is not None:
                server = stack.enter_context(serving(Completions, model=model, bare=bare))
                url = f"http://127.0.0.1:{server.server_address[1]}"
            instance = SimpleNamespace(name=name, role=role, url=url, key=None, served_name="tiny")
            return SimpleNamespace(instance=instance, engine=engine, unit=SimpleNamespace(name=name))

        units = [unit("prefill-0", "prefill", None), *(unit(name, "decode", None) for name in engine.models)]
        units += [unit("aggregate-0", "aggregate", alone)] if alone else []
        plan = SimpleNamespace(
            engines=units,
            of=lambda role: tuple(one for one in units if one.instance.role == role),
            url=unit("router", "router", router).instance.url,
            router_key=None,
        )
        yield SimpleNamespace(
            plan=plan,
            probes={},
            opened={},
            engine=engine,
            events=SimpleNamespace(progress=lambda text: None),
            launcher=SimpleNamespace(log=lambda name: Path("/dev/null")),
        )


def quiet(count: int, noise: float = 0.03) -> list[Model]:
    return [Model(noise, seed) for seed in range(count)]


def refused(phase: Callable[[Any], str], run: Any) -> GateError:
    with pytest.raises(GateError) as caught:
        phase(run)
    return caught.value


# ---- pairs ----


def test_equal_pairs_are_said_to_be_equal() -> None:
    with fleet(Model(), Model()) as run:
        assert probe_pairs(run).endswith("s, all answers equal")


def test_a_single_pair_has_nothing_to_be_equal_to() -> None:
    with fleet(Model()) as run:
        assert probe_pairs(run) == "1 of 1, slowest 0.01 s"


def test_pairs_within_rounding_are_alike_and_nothing_more_is_asked() -> None:
    with fleet(*quiet(3)) as run:
        note = probe_pairs(run)
        assert "all answers alike within the engine's own noise: prefill-0 → decode-" in note
        assert "the engine's noise is 0.12 by rounding" in note
        assert len(run.engine.asked) == 3


@pytest.mark.parametrize("alone", [Model(0.15, 9), None])
def test_noise_beyond_rounding_is_measured_on_whom_the_fleet_has(alone: Model | None) -> None:
    with fleet(*quiet(4, 0.15), alone=alone) as run:
        note = probe_pairs(run)
        assert "within the engine's own noise" in note
        assert "from itself" in note
        assert (len(run.engine.asked) > 4) == (alone is None)


@pytest.mark.code("PD3010")
@pytest.mark.parametrize("alone", [Model(0.15, 9), None])
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.15])
def test_a_pair_with_another_requests_state_is_named(alone: Model | None, noise: float) -> None:
    with fleet(*quiet(3, noise), Model(noise, 7, state=1), alone=alone) as run:
        error = refused(probe_pairs, run)
        assert error.code == "PD3010"
        assert error.message.startswith("prefill-0 → decode-3: another answer than over the remaining pairs")
        assert "logprobs up to" in error.message


@pytest.mark.code("PD3010")
def test_exact_engines_are_allowed_no_noise() -> None:
    with fleet(Model(), Model(), Model(0.01, 1), exact=True, alone=Model()) as run:
        assert refused(probe_pairs, run).code == "PD3010"
        assert len(run.engine.asked) == 3


def test_pairs_without_logprobs_that_differ_leave_a_doubt() -> None:
    with fleet(Model(), Model(state=1), bare=True) as run:
        note = probe_pairs(run)
        assert isinstance(note, Doubtful)
        assert "whether all answers agree cannot be told: prefill-0 → decode-1: other tokens from number 1 on" in note


# ---- completion ----


def test_an_equal_completion_is_said_to_be_equal() -> None:
    with fleet(router=Model(), alone=Model()) as run:
        assert first_completion(run).endswith("s, equal to aggregate-0's")


def test_without_an_aggregate_engine_nothing_is_claimed() -> None:
    with fleet(router=Model()) as run:
        assert first_completion(run).endswith(" s")


@pytest.mark.parametrize(("noise", "source"), [(0.03, "by rounding"), (0.15, "from itself")])
def test_a_completion_within_noise_says_how_far_it_is(noise: float, source: str) -> None:
    with fleet(router=Model(noise, 1), alone=Model(noise, 2)) as run:
        note = first_completion(run)
        assert "alike aggregate-0's within its own noise: logprobs up to 0." in note
        assert source in note


@pytest.mark.code("PD3012")
@pytest.mark.parametrize("noise", [0.0, 0.03, 0.15])
def test_a_completion_from_another_requests_state_is_wrong(noise: float) -> None:
    with fleet(router=Model(noise, 1, state=1), alone=Model(noise, 2)) as run:
        error = refused(first_completion, run)
        assert error.code == "PD3012"
        assert error.message.startswith("through the router '")


class Shifted(Model):
    """The same tokens from other logprobs: nobody sees it in the text."""

    def answer(self, prompt: Sequence[int] = (), length: int = 0) -> Answer:
        answer = super().answer(prompt, length)
        steps = tuple(
            step._replace(likely={word: value - 0.5 for word, value in step.likely.items()}) for step in answer.steps
        )
        return Answer(answer.text, steps, answer.prompt)


@pytest.mark.code("PD3012")
def test_equal_text_from_other_logprobs_is_wrong() -> None:
    with fleet(router=Shifted(), alone=Model()) as run:
        error = refused(first_completion, run)
        assert error.code == "PD3012"
        assert "logprobs up to 0.5 apart" in error.message


@pytest.mark.code("PD3012")
def test_an_exact_engines_completion_must_be_equal_even_without_logprobs() -> None:
    with fleet(router=Model(state=1), alone=Model(), exact=True, bare=True) as run:
        assert refused(first_completion, run).code == "PD3012"


def test_other_tokens_without_logprobs_leave_a_doubt() -> None:
    with fleet(router=Model(state=1), alone=Model(), bare=True) as run:
        note = first_completion(run)
        assert isinstance(note, Doubtful)
        assert "whether it is aggregate-0's cannot be told: other tokens from number 1 on" in note


# ---- how a doubt is shown ----


def test_a_doubt_is_no_tick(tmp_path: Path) -> None:
    (tmp_path / "fleet.yaml").write_text(FLEET)
    phases = [Phase("sure", "is", lambda run: "fine"), Phase("unsure", "may be", lambda run: Doubtful("who knows"))]
    state = bring_up(load_fleet(tmp_path / "fleet.yaml"), phases=phases)
    assert [entry.outcome for entry in state.phases] == ["done", "doubtful"]
    read = FleetFolder("two").read()
    assert read is not None
    assert read.phases == state.phases
    assert phase_line(PhaseEntry("unsure", "doubtful", 1.0, "who knows"), 6) == (" unsure    1.0 s  who knows", "?")
