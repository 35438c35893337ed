"""The routes: SGLang's API and the OpenAI one, enough for routers and clients of a pair."""

import asyncio
import json
import os
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import msgspec
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

from pdctl.engines.reference.options import API_KEY
from pdctl.engines.reference.request import Failure
from pdctl.engines.reference.sampling import Sampling
from pdctl.engines.reference.scheduler import Scheduler
from pdctl.engines.reference.server.bodies import (
    AbortBody,
    ChatBody,
    CompletionBody,
    GenerateBody,
    Job,
    Limits,
    bad,
    completion_jobs,
    generate_jobs,
    read,
)
from pdctl.engines.reference.server.door import TOO_LONG, Door
from pdctl.engines.reference.server.info import model_info, model_list, server_info
from pdctl.engines.reference.server.metrics import events, exposition
from pdctl.engines.reference.server.openai import Shape, chat_shape, completion_shape
from pdctl.engines.reference.server.runner import Runner, Snapshot, token_logprobs
from pdctl.errors import InputError

Handler = Callable[[Request], Awaitable[Response]]
Snapshots = asyncio.Future[list[Snapshot]]

SERIAL_DIGITS = 18
DONE = b"data: [DONE]\n\n"


def make_app(scheduler: Scheduler) -> Starlette:
    """The application of one engine."""
    engine = scheduler.engine
    return Api(scheduler).app(
        {
            "/health": lambda: Response(status_code=200 if scheduler.alive else 503),
            "/server_info": lambda: JSONResponse(server_info(scheduler)),
            "/get_server_info": lambda: JSONResponse(server_info(scheduler)),
            "/model_info": lambda: JSONResponse(model_info(engine)),
            "/get_model_info": lambda: JSONResponse(model_info(engine)),
            "/v1/models": lambda: JSONResponse(model_list(engine)),
            "/pdctl/layout": lambda: JSONResponse(msgspec.to_builtins(engine.manifest())),
            "/metrics": lambda: PlainTextResponse(exposition(scheduler), media_type="text/plain; version=0.0.4"),
        }
    )


class Api:
    """The handlers that run requests."""

    def __init__(self, scheduler: Scheduler) -> None:
        self._runner = Runner(scheduler)
        options = scheduler.engine.options
        self._name = scheduler.engine.name
        self._limits = Limits(scheduler.engine.config.vocab, options.role != "aggregate")

    def app(self, facts: dict[str, Callable[[], Response]]) -> Starlette:
        """All routes; `facts` are answered without running anything."""
        routes = [Route(path, _constant(answer)) for path, answer in facts.items()]
        routes += [
            Route("/health_generate", self.health_generate),
            Route("/generate", self.generate, methods=["POST"]),
            Route("/v1/completions", self.completions, methods=["POST"]),
            Route("/v1/chat/completions", self.chat, methods=["POST"]),
            Route("/pdctl/events", self.events),
            Route("/abort_request", self.abort, methods=["POST"]),
        ]
        door = Middleware(Door, key=os.environ.get(API_KEY))
        return Starlette(routes=routes, middleware=[door], exception_handlers={InputError: _refused})

    async def health_generate(self, request: Request) -> Response:
        """One token on an aggregate engine; one side of a pair cannot generate alone, and says that it runs."""
        if self._limits.needs_bootstrap:
            return Response(status_code=200 if self._runner.scheduler.alive else 503)
        snapshot = await self._runner.complete(Job((0,), Sampling(max_new_tokens=1, temperature=0), None, False, None))
        return Response(status_code=snapshot.failure.status if snapshot.failure else 200)

    async def generate(self, request: Request) -> Response:
        """SGLang's own endpoint."""
        body = read(await request.body(), GenerateBody)
        jobs, batch = generate_jobs(body, self._limits)
        if body.stream and not batch:
            return _events(self._generate_events(jobs[0]))
        snapshots = await self._all(request, jobs)
        answers = [_generate_shape(job, snapshot) for job, snapshot in zip(jobs, snapshots, strict=True)]
        return _failed(snapshots) or JSONResponse(answers if batch else answers[0])

    async def completions(self, request: Request) -> Response:
        """OpenAI text completions."""
        body = read(await request.body(), CompletionBody)
        jobs = completion_jobs(body, self._limits)
        shape = completion_shape(self._name, int(time.time()))
        if body.stream:
            return _events(self._openai_events(jobs, shape))
        snapshots = await self._all(request, jobs)
        return _failed(snapshots) or JSONResponse(shape.whole(jobs, snapshots))

    async def chat(self, request: Request) -> Response:
        """OpenAI chat completions."""
        body = read(await request.body(), ChatBody)
        jobs = completion_jobs(body, self._limits)
        shape = chat_shape(self._name, int(time.time()))
        if body.stream:
            return _events(self._openai_events(jobs, shape))
        snapshots = await self._all(request, jobs)
        return _failed(snapshots) or JSONResponse(shape.whole(jobs, snapshots))

    async def events(self, request: Request) -> Response:
        """Transfers' last events by rank; `?after=` gives those above a serial number."""
        after = request.query_params.get("after", "0")
        if not after.isdecimal() or len(after) > SERIAL_DIGITS:
            raise bad(f"after is {after!r}, a serial number is needed")
        return JSONResponse(events(self._runner.scheduler, int(after)))

    async def abort(self, request: Request) -> Response:
        """End a request by its rid."""
        given = read(await request.body() or b"{}", AbortBody)
        self._runner.scheduler.abort(given.rid, "aborted by /abort_request")
        return Response(status_code=200)

    async def _all(self, request: Request, jobs: list[Job]) -> list[Snapshot]:
        """Run jobs side by side; all are aborted once the client has gone."""
        return await _while_connected(request, asyncio.gather(*(self._runner.complete(job) for job in jobs)))

    async def _generate_events(self, job: Job) -> AsyncIterator[bytes]:
        async for snapshot in self._runner.stream(job):
            yield _event(_error_body(snapshot.failure) if snapshot.failure else _generate_shape(job, snapshot))
        yield DONE

    async def _openai_events(self, jobs: list[Job], shape: Shape) -> AsyncIterator[bytes]:
        for index, job in enumerate(jobs):
            sent = ""
            async for snapshot in self._runner.stream(job):
                if snapshot.failure:
                    yield _event(_error_body(snapshot.failure))
                    break
                # A character may still be incomplete, or a stop string may yet cut it: send what can no longer change.
                text = snapshot.text if snapshot.finish else snapshot.text.rstrip("�")
                if not text.startswith(sent):
                    continue
                yield _event(shape.chunk(index, text[len(sent) :], snapshot))
                sent = text
        yield DONE


def _constant(answer: Callable[[], Response]) -> Handler:
    async def handler(request: Request) -> Response:
        return answer()

    return handler


async def _while_connected(request: Request, work: Snapshots) -> list[Snapshot]:
    """Await work, and cancel it once the client has hung up."""
    watch: asyncio.Future[None] = asyncio.ensure_future(_gone(request))
    watch.add_done_callback(lambda _: work.cancel())
    try:
        return await work
    finally:
        watch.cancel()


async def _gone(request: Request) -> None:
    while not await request.is_disconnected():
        await asyncio.sleep(0.2)


def _events(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(events, media_type="text/event-stream")


def _event(document: dict[str, Any]) -> bytes:
    return b"data: " + json.dumps(document, separators=(",", ":")).encode() + b"\n\n"


def _generate_shape(job: Job, snapshot: Snapshot) -> dict[str, Any]:
    meta = snapshot.meta
    if job.logprob:
        meta["input_token_logprobs"] = []
        meta["output_token_logprobs"] = token_logprobs(snapshot)
    return {"text": snapshot.text, "output_ids": list(snapshot.output), "meta_info": meta}


def _failed(snapshots: list[Snapshot]) -> Response | None:
    """The answer if a job failed: the first failure, with its code and HTTP status."""
    failure = next((snapshot.failure for snapshot in snapshots if snapshot.failure), None)
    return JSONResponse(_error_body(failure), failure.status) if failure else None


def _error_body(failure: Failure) -> dict[str, Any]:
    return {"error": {"code": failure.code, "message": failure.message, "type": "pdctl", "status": failure.status}}


async def _refused(request: Request, error: Exception) -> Response:
    code, message = getattr(error, "code", "PD3050"), getattr(error, "message", str(error))
    status = 413 if code == TOO_LONG else 400
    return JSONResponse(_error_body(Failure(code, message, status)), status)
