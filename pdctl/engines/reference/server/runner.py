"""Between asyncio and the scheduler's thread: submits jobs, carries snapshots back, aborts when the client leaves."""

import asyncio
import uuid
from collections.abc import AsyncIterator
from typing import Any

from msgspec import Struct

from pdctl.engines.reference.request import Failure, Request
from pdctl.engines.reference.scheduler import Scheduler
from pdctl.engines.reference.server.bodies import Job
from pdctl.engines.reference.tokenizer import decode


class Snapshot(Struct, frozen=True):
    """A request as it was when the scheduler told of it."""

    rid: str
    text: str
    output: tuple[int, ...]
    logprobs: tuple[float, ...]
    finish: dict[str, Any] | None
    failure: Failure | None
    prompt_tokens: int
    computed: int
    cached: int
    accepted: int
    verified: int
    seconds: float

    @property
    def meta(self) -> dict[str, Any]:
        """SGLang's meta_info, and what this engine computed itself."""
        info: dict[str, Any] = {
            "id": self.rid,
            "finish_reason": self.finish,
            "prompt_tokens": self.prompt_tokens,
            "completion_tokens": len(self.output),
            "cached_tokens": self.cached,
            "prompt_tokens_computed": self.computed,
            "e2e_latency": self.seconds,
            "weight_version": "default",
        }
        if self.verified:
            info["spec_verify_ct"] = self.verified
            info["spec_accept_length"] = 1 + self.accepted / self.verified
        return info


class Runner:
    """Runs jobs of HTTP requests on a scheduler."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.scheduler = scheduler

    async def stream(self, job: Job, *, every_token: bool = True) -> AsyncIterator[Snapshot]:
        """Snapshots of a job until it has ended; leaving the iteration early aborts it."""
        loop = asyncio.get_running_loop()
        queue: asyncio.Queue[Snapshot] = asyncio.Queue()

        def notify(request: Request) -> None:
            if every_token or request.ended:
                loop.call_soon_threadsafe(queue.put_nowait, _snapshot(request))

        request = Request(job.rid or uuid.uuid4().hex, job.prompt, job.sampling, notify, job.bootstrap)
        self.scheduler.submit(request)
        ended = False
        try:
            while not ended:
                snapshot = await queue.get()
                ended = snapshot.finish is not None
                yield snapshot
        finally:
            if not ended:
                self.scheduler.abort(request.rid, "the client went away")

    async def complete(self, job: Job) -> Snapshot:
        """The last snapshot of a job."""
        async for snapshot in self.stream(job, every_token=False):
            last = snapshot
        return last


def token_logprobs(snapshot: Snapshot) -> list[tuple[float, int, str]]:
    """SGLang's output_token_logprobs."""
    pairs = zip(snapshot.logprobs, snapshot.output, strict=True)
    return [(logprob, token, decode([token])) for logprob, token in pairs]


def _snapshot(request: Request) -> Snapshot:
    return Snapshot(
        rid=request.rid,
        text=request.text,
        output=tuple(request.output),
        logprobs=tuple(request.logprobs),
        finish=request.finish if request.ended else None,
        failure=request.failure,
        prompt_tokens=len(request.prompt),
        computed=request.computed,
        cached=request.cached,
        accepted=request.accepted,
        verified=request.verified,
        seconds=request.seconds,
    )
