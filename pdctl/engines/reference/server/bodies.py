"""What clients send, checked: SGLang's /generate and the OpenAI bodies, turned into prompts and sampling parameters."""

from collections.abc import Sequence
from typing import Any, TypeVar

import msgspec
from msgspec import Struct

from pdctl.engines.reference.request import Bootstrap
from pdctl.engines.reference.sampling import Sampling
from pdctl.engines.reference.tokenizer import chat_prompt, encode
from pdctl.errors import InputError


class Unhonoured(Struct):
    """Fields that would change an answer and that this engine knows nothing of: refused unless they are null."""

    image_data: None = None
    video_data: None = None
    audio_data: None = None
    input_embeds: None = None
    lora_path: None = None


class GenerateBody(Unhonoured):
    """POST /generate. A list of prompts makes a batch; then the bootstrap fields may be lists as well."""

    text: str | list[str] | None = None
    input_ids: list[Any] | None = None
    sampling_params: dict[str, Any] | list[Any] | None = None
    rid: str | list[str] | None = None
    stream: bool = False
    return_logprob: bool | list[bool] = False
    bootstrap_host: str | list[str] | None = None
    bootstrap_port: int | list[Any] | None = None
    bootstrap_room: int | list[int] | None = None


class CompletionBody(Unhonoured):
    """POST /v1/completions, the fields that are honoured."""

    prompt: str | list[Any] = ""
    model: str = ""
    max_tokens: int | None = None
    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = -1
    min_p: float = 0.0
    seed: int | None = None
    stop: str | list[str] | None = None
    ignore_eos: bool = False
    n: int = 1
    stream: bool = False
    logprobs: int | bool | None = None
    return_token_ids: bool = False
    rid: str | None = None
    bootstrap_host: str | list[str] | None = None
    bootstrap_port: int | list[Any] | None = None
    bootstrap_room: int | list[int] | None = None


class Message(Struct):
    """One turn of a chat."""

    role: str
    content: str | list[dict[str, Any]] | None = None


class ChatBody(CompletionBody):
    """POST /v1/chat/completions."""

    messages: list[Message] = []
    max_completion_tokens: int | None = None


class AbortBody(Struct):
    """POST /abort_request."""

    rid: str = ""


Body = TypeVar("Body", bound=GenerateBody | CompletionBody | AbortBody)


class Job(Struct, frozen=True):
    """One prompt of a body, ready to run."""

    prompt: tuple[int, ...]
    sampling: Sampling
    rid: str | None
    logprob: bool
    bootstrap: Bootstrap | None
    ids: bool = False
    """Whether the answer names the tokens of prompt and output, as vLLM and SGLang do for `return_token_ids`."""


class Limits(Struct, frozen=True):
    """What a job is checked against."""

    vocab: int
    needs_bootstrap: bool


def bad(message: str, code: str = "PD3050") -> InputError:
    """A body that cannot be served."""
    return InputError(message, code=code)


def read(body: bytes, kind: type[Body]) -> Body:
    """Decode and type-check a body; PD3050 says which field is wrong."""
    try:
        return msgspec.json.decode(body, type=kind)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise bad(str(error)) from None


def generate_jobs(body: GenerateBody, limits: Limits) -> tuple[list[Job], bool]:
    """The jobs of a /generate body, and whether it is a batch."""
    prompts, batch = _prompts(body)
    count = len(prompts)
    parameters = _spread(body.sampling_params or {}, count, "sampling_params")
    rids = (
        _spread(body.rid, count, "rid")
        if batch and isinstance(body.rid, list)
        else [None] * count
        if batch
        else [body.rid]
    )
    logprobs = _spread(body.return_logprob, count, "return_logprob")
    rooms = _bootstraps(body, count, limits)
    jobs = [
        Job(_checked(prompt, limits), _sampling(given), rid, logprob, room)
        for prompt, given, rid, logprob, room in zip(prompts, parameters, rids, logprobs, rooms, strict=True)
    ]
    return jobs, batch


def completion_jobs(body: CompletionBody, limits: Limits) -> list[Job]:
    """The jobs of an OpenAI body."""
    if isinstance(body, ChatBody):
        prompts: list[Sequence[int]] = [encode(chat_prompt([(turn.role, _content(turn)) for turn in body.messages]))]
        most = body.max_completion_tokens or body.max_tokens
    else:
        prompts = [encode(prompt) if isinstance(prompt, str) else prompt for prompt in _listed(body.prompt)]
        most = body.max_tokens or 16
    sampling = _usable(
        Sampling(
            max_new_tokens=128 if most is None else most,
            temperature=body.temperature,
            top_p=body.top_p,
            top_k=body.top_k,
            min_p=body.min_p,
            sampling_seed=body.seed,
            stop=body.stop,
            ignore_eos=body.ignore_eos,
            n=body.n,
        )
    )
    rooms = _bootstraps(body, len(prompts), limits)
    rid = body.rid if len(prompts) == 1 else None
    return [
        Job(_checked(prompt, limits), sampling, rid, bool(body.logprobs), room, body.return_token_ids)
        for prompt, room in zip(prompts, rooms, strict=True)
    ]


def _prompts(body: GenerateBody) -> tuple[list[Sequence[int]], bool]:
    if (body.text is None) == (body.input_ids is None):
        raise bad("give either text or input_ids")
    if body.text is not None:
        return [encode(text) for text in _listed(body.text)], isinstance(body.text, list)
    ids = body.input_ids or []
    batch = bool(ids) and isinstance(ids[0], list)
    return list(_listed(ids)), batch


def _listed(given: Any) -> list[Any]:
    """A prompt is a string or a list of ids; a batch is a list of either."""
    nested = isinstance(given, list) and (not given or not isinstance(given[0], int))
    return given if nested else [given]


def _spread(given: Any, count: int, field: str) -> list[Any]:
    """One value for all, or a list with one for each."""
    if not isinstance(given, list):
        return [given] * count
    if len(given) != count:
        raise bad(f"{field} has {len(given)} values for {count} prompts")
    return given


def _bootstraps(body: GenerateBody | CompletionBody, count: int, limits: Limits) -> list[Bootstrap | None]:
    if not limits.needs_bootstrap:
        return [None] * count
    if body.bootstrap_room is None or body.bootstrap_host is None:
        raise bad(
            "bootstrap_host or bootstrap_room is missing: this is one side of a pair, send requests to its router",
            "PD3054",
        )
    hosts = _spread(body.bootstrap_host, count, "bootstrap_host")
    ports = _spread(body.bootstrap_port, count, "bootstrap_port")
    rooms = _spread(body.bootstrap_room, count, "bootstrap_room")
    return [
        Bootstrap(host, port if port is not None else 8998, room)
        for host, port, room in zip(hosts, ports, rooms, strict=True)
    ]


def _checked(prompt: Sequence[int], limits: Limits) -> tuple[int, ...]:
    if not prompt:
        raise bad("the prompt is empty")
    if not all(isinstance(token, int) for token in prompt):
        raise bad("a prompt is a text or a list of token ids")
    wrong = next((token for token in prompt if not 0 <= token < limits.vocab), None)
    if wrong is not None:
        raise bad(f"token {wrong} is outside the vocabulary of {limits.vocab}")
    return tuple(prompt)


def _sampling(given: dict[str, Any]) -> Sampling:
    try:
        return _usable(msgspec.convert(given, Sampling, strict=False))
    except msgspec.ValidationError as error:
        raise bad(f"sampling_params: {error}") from None


def _usable(sampling: Sampling) -> Sampling:
    if fault := sampling.fault():
        raise bad(fault)
    return sampling


def _content(turn: Message) -> str:
    if isinstance(turn.content, list):
        strange = next((kind for part in turn.content if (kind := part.get("type", "text")) != "text"), None)
        if strange is not None:
            raise bad(f"messages: a part of type {strange}, and this engine reads text alone")
        return "".join(str(part.get("text", "")) for part in turn.content)
    return turn.content or ""
