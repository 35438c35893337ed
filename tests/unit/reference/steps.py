"""An engine driven step by step, without a thread: what the unit tests look into."""

from collections.abc import Sequence

from pdctl.engines.reference.engine import Engine
from pdctl.engines.reference.options import EngineOptions
from pdctl.engines.reference.request import Request
from pdctl.engines.reference.sampling import Sampling

SMALL = EngineOptions(max_total_tokens=1024, max_running=4)


def sampling(new: int) -> Sampling:
    return Sampling(max_new_tokens=new, temperature=0, ignore_eos=True)


def prefilled(engine: Engine, prompt: Sequence[int], new: int = 8, parameters: Sampling | None = None) -> Request:
    """A request whose prompt is computed."""
    request = Request("r", tuple(prompt), parameters or sampling(new), lambda _: None)
    assert engine.place(request)
    while not request.output:
        engine.prefill(request)
    return request


def finished(engine: Engine, request: Request) -> Request:
    """The same, decoded to its end, its place given back."""
    while not request.finish:
        engine.decode(request)
    assert request.place is not None
    engine.groups[request.group].allocator.give(request.place)
    request.place = None
    return request


def run(engine: Engine, prompt: Sequence[int], new: int = 8) -> Request:
    return finished(engine, prefilled(engine, prompt, new))
