"""Bodies: what is not understood is refused with a code, never guessed."""

import json
from typing import Any

import pytest

from pdctl.engines.reference.server.bodies import (
    ChatBody,
    CompletionBody,
    GenerateBody,
    Limits,
    completion_jobs,
    generate_jobs,
    read,
)
from pdctl.errors import InputError

ALONE, PAIRED = Limits(258, needs_bootstrap=False), Limits(258, needs_bootstrap=True)


def generate(limits: Limits = ALONE, **body: Any) -> Any:
    return generate_jobs(read(json.dumps(body).encode(), GenerateBody), limits)


@pytest.mark.code("PD3050")
@pytest.mark.parametrize(
    "body",
    [
        {},
        {"text": "a", "input_ids": [1]},
        {"text": ""},
        {"text": 3},
        {"input_ids": [999]},
        {"input_ids": ["a"]},
        {"text": "a", "sampling_params": {"temperature": -1}},
        {"text": "a", "sampling_params": {"max_new_tokens": 0}},
        {"text": "a", "sampling_params": {"frequency_penalty": 1}},
        {"text": ["a", "b"], "sampling_params": [{}]},
    ],
)
def test_a_body_that_cannot_be_served_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(InputError) as caught:
        generate(**body)
    assert caught.value.code == "PD3050"


@pytest.mark.code("PD3050")
@pytest.mark.parametrize("field", ["image_data", "video_data", "audio_data", "input_embeds", "lora_path"])
@pytest.mark.parametrize("kind", [GenerateBody, CompletionBody, ChatBody])
def test_what_would_be_left_out_of_the_answer_is_refused(kind: type[Any], field: str) -> None:
    """Not dropped with HTTP 200; null asks for nothing."""
    with pytest.raises(InputError, match=field) as caught:
        read(json.dumps({field: "x"}).encode(), kind)
    assert caught.value.code == "PD3050"
    read(json.dumps({field: None}).encode(), kind)


@pytest.mark.code("PD3050")
def test_a_part_that_is_no_text_is_refused() -> None:
    parts = [{"type": "text", "text": "u"}, {"type": "image_url", "image_url": {"url": "data:,"}}]
    body = read(json.dumps({"messages": [{"role": "user", "content": parts}]}).encode(), ChatBody)
    with pytest.raises(InputError, match="image_url") as caught:
        completion_jobs(body, ALONE)
    assert caught.value.code == "PD3050"


@pytest.mark.code("PD3050")
def test_a_body_that_is_no_json_is_refused() -> None:
    with pytest.raises(InputError, match="truncated") as caught:
        read(b"{", GenerateBody)
    assert caught.value.code == "PD3050"


@pytest.mark.code("PD3054")
def test_one_side_of_a_pair_needs_a_room() -> None:
    with pytest.raises(InputError) as caught:
        generate(PAIRED, text="a")
    assert caught.value.code == "PD3054"


def test_a_batch_has_a_room_for_each_prompt() -> None:
    jobs, batch = generate(
        PAIRED, text=["a", "bc"], bootstrap_host="h", bootstrap_port=[1, None], bootstrap_room=[5, 6]
    )
    assert batch
    assert [(job.prompt, job.bootstrap.room, job.bootstrap.port) for job in jobs] == [
        ((97,), 5, 1),
        ((98, 99), 6, 8998),
    ]


def test_openai_prompts_come_as_text_ids_or_batches() -> None:
    for prompt, expected in (("ab", [(97, 98)]), ([97], [(97,)]), ([[97], [98]], [(97,), (98,)]), (["a"], [(97,)])):
        body = read(json.dumps({"prompt": prompt}).encode(), CompletionBody)
        assert [job.prompt for job in completion_jobs(body, ALONE)] == expected


def test_a_chat_becomes_one_prompt() -> None:
    turns = [{"role": "system", "content": "s"}, {"role": "user", "content": [{"type": "text", "text": "u"}]}]
    [job] = completion_jobs(read(json.dumps({"messages": turns, "max_tokens": 3}).encode(), ChatBody), ALONE)
    assert bytes(job.prompt) == b"system: s\nuser: u\nassistant:"
    assert job.sampling.max_new_tokens == 3
