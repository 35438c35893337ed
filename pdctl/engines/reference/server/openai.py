"""The shapes of OpenAI's text and chat completions."""

from collections.abc import Sequence
from typing import Any, Literal

from msgspec import Struct

from pdctl.engines.reference.server.bodies import Job
from pdctl.engines.reference.server.runner import Snapshot, token_logprobs


class Shape(Struct, frozen=True):
    """How one of the two APIs words an answer."""

    model: str
    created: int
    kind: Literal["text_completion", "chat.completion"]

    def whole(self, jobs: Sequence[Job], snapshots: Sequence[Snapshot]) -> dict[str, Any]:
        """An answer at once."""
        prompt = sum(snapshot.prompt_tokens for snapshot in snapshots)
        output = sum(len(snapshot.output) for snapshot in snapshots)
        return self._frame(snapshots[0], self.kind) | {
            "choices": [
                self._choice(index, snapshot.text, snapshot, "message", job.logprob) | _ids(job, snapshot)
                for index, (job, snapshot) in enumerate(zip(jobs, snapshots, strict=True))
            ],
            "usage": {"prompt_tokens": prompt, "completion_tokens": output, "total_tokens": prompt + output},
        }

    def chunk(self, index: int, text: str, snapshot: Snapshot) -> dict[str, Any]:
        """One event of a stream."""
        kind = "chat.completion.chunk" if self._chat else self.kind
        return self._frame(snapshot, kind) | {"choices": [self._choice(index, text, snapshot, "delta", False)]}

    @property
    def _chat(self) -> bool:
        return self.kind == "chat.completion"

    def _frame(self, snapshot: Snapshot, kind: str) -> dict[str, Any]:
        return {"id": snapshot.rid, "object": kind, "created": self.created, "model": self.model}

    def _choice(self, index: int, text: str, snapshot: Snapshot, part: str, logprobs: bool) -> dict[str, Any]:
        content = {part: {"role": "assistant", "content": text}} if self._chat else {"text": text}
        finish = snapshot.finish["type"] if snapshot.finish else None
        return {
            "index": index,
            **content,
            "finish_reason": finish,
            "logprobs": _logprobs(snapshot) if logprobs else None,
        }


def _ids(job: Job, snapshot: Snapshot) -> dict[str, Any]:
    return {"token_ids": list(snapshot.output), "prompt_token_ids": list(job.prompt)} if job.ids else {}


def _logprobs(snapshot: Snapshot) -> dict[str, Any]:
    triples = token_logprobs(snapshot)
    return {"tokens": [text for _, _, text in triples], "token_logprobs": [logprob for logprob, _, _ in triples]}


def completion_shape(model: str, created: int) -> Shape:
    """Text completions."""
    return Shape(model, created, "text_completion")


def chat_shape(model: str, created: int) -> Shape:
    """Chat completions."""
    return Shape(model, created, "chat.completion")
