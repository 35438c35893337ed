"""Transfers inside the real engines, on CPU: the core's way against the engine's own, each pair measured in turn.

Times are taken inside the engines (`tests/engines/inside/timed_transfers.py`), so neither HTTP nor a model's arithmetic
is in them. SGLang's own path at unequal TP takes a block a token and tensor, and fails over TCP beyond what Mooncake
queues; it is measured where it works. On vLLM the yardstick is NIXL's connector.
"""

import random
import statistics
import tempfile
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import NamedTuple

from pdctl.engines.builtin_models import CONFIGS, write
from tests.bench.harness import Row, at_least, at_most, in_turn, paired, plain
from tests.engines import core_pools
from tests.engines.core_pairs import FIRST_ID, LAST_ID
from tests.engines.fleets import until
from tests.engines.shared import Shared, Stand
from tools.engine_envs import ENVIRONMENTS, python_of

REPEAT = 5
SHAPE = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 64}
"""A token is 16 KiB in float32."""
PAGES = (1, 32)
AS_SHIPPED = core_pools.Ways(session={})
"""Options as they are unless told: samples of every item in the checksum."""


class Taken(NamedTuple):
    """Of one request: seconds of its transfer, CPU seconds of the processes of either side."""

    transfer: float
    prefill: float
    decode: float


class Timed:
    """Engines that write down how long their transfers take."""

    def __init__(self, folder: Path, stand: Stand, clocks: Sequence[str]) -> None:
        """clocks: pools whose engines see a transfer from its beginning to its end."""
        self._times = folder / "times"
        env = {**stand.env, **{name: {**stand.env.get(name, {}), "TEST_TIMES": str(self._times)} for name in clocks}}
        self.shared = Shared(folder, Stand(stand.document, env), most=8)

    def __enter__(self) -> "Timed":
        return self

    def __exit__(self, *_: object) -> None:
        self.shared.stop()

    def move(self, prefill: str, decode: str, prompt: tuple[int, ...]) -> Taken:
        """One request over one pair. RuntimeError where it fails."""
        self.shared.ready(prefill, decode)
        self._times.unlink(missing_ok=True)
        cpu = [self._cpu(name) for name in (prefill, decode)]
        (answer,) = self.shared.over(prefill, decode, [prompt], 2, 1)
        if isinstance(answer, str):
            raise RuntimeError(f"{prefill} → {decode}, {len(prompt)} tokens: {answer}")
        until("the transfer is written down", self._times.exists, 10)
        used = [self._cpu(name) - before for name, before in zip((prefill, decode), cpu, strict=True)]
        return Taken(float(self._times.read_text().split()[1]), *used)

    def _cpu(self, name: str) -> float:
        return sum(sum(process.cpu_times()[:2]) for process in self.shared.processes(name))


def rows() -> Iterator[Row]:
    if any(python_of(ENVIRONMENTS[name].folder()) is None for name in ("sglang", "vllm")):
        print("  the engines are not built: python tools/engine_envs.py sglang vllm", flush=True)
        return
    with tempfile.TemporaryDirectory() as scratch:
        model = Path(scratch) / "model"
        model.mkdir()
        write(model, {**CONFIGS["tiny-llama"], **SHAPE, "max_position_embeddings": 32768})
        for page in PAGES:
            with Timed(made(scratch, f"sglang-{page}"), core_pools.sglang(model, AS_SHIPPED, page), ["p1"]) as timed:
                yield from compared(timed, f"SGLang, page size {page}", ("p1", "d2"), ("p1", "d2-engine"), 500, 20.0)
                for tokens in (4096, 16_000):
                    yield from compared(timed, f"SGLang, page size {page}", ("p1", "d1"), ("p1", "d-engine"), tokens, 1)
        with Timed(made(scratch, "vllm"), core_pools.vllm(model, AS_SHIPPED), ["d2", "off2"]) as timed:
            yield from compared(timed, "vLLM", ("p1", "d2"), ("p-off", "off2"), 4096, 1)


def compared(
    timed: Timed, engine: str, ours: tuple[str, str], theirs: tuple[str, str], tokens: int, factor: float
) -> Iterator[Row]:
    """Both ways in turn with one prompt, which prefill has in its cache: the same pages, and next to no arithmetic."""
    rng = random.Random(tokens)
    prompt = tuple(rng.randrange(FIRST_ID, LAST_ID) for _ in range(tokens))
    runs = [partial(timed.move, *pair, prompt) for pair in (ours, theirs)]
    in_turn(1, *runs)
    core, engines = in_turn(REPEAT, *runs)
    widths = " → ".join(str(instance.pool.tp) for instance in timed.shared.ready(*ours))
    name = f"{engine}, TP {widths}, {tokens:,} tokens"
    seconds = [[taken.transfer for taken in way] for way in (core, engines)]
    yield plain(f"{name}: transfer by the core", statistics.median(seconds[0]) * 1e3, "ms")
    yield plain(f"{name}: transfer by the engine's path", statistics.median(seconds[1]) * 1e3, "ms")
    if factor > 1:
        yield at_least(f"{name}: faster than the engine's path", paired(seconds[1], seconds[0]), "×", factor)
    else:
        yield at_most(f"{name}: time against the engine's path", paired(seconds[0], seconds[1]), "×", 1.0)
    for side in ("prefill", "decode"):
        for way, found in (("core", core), ("engine's path", engines)):
            cpu = statistics.median(getattr(taken, side) for taken in found)
            yield plain(f"{name}: CPU of {side}, {way}, a request", cpu * 1e3, "ms")


def made(scratch: str, name: str) -> Path:
    folder = Path(scratch) / name
    folder.mkdir()
    return folder
