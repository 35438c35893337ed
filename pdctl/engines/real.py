"""What the adapters of real engines share: an environment of their own, a model, the shipped core, a parser."""

import json
import os
import subprocess
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from msgspec import Struct

from pdctl.engines import shipping
from pdctl.engines.answer import Prompt
from pdctl.engines.base import Command, Instance, Need, Probe, Readiness, Unread
from pdctl.engines.builtin_models import PREFIX, materialise
from pdctl.engines.models import builtins_of, require_builtin
from pdctl.engines.settled import Settled
from pdctl.engines.words import interpreter, no_answer, of_backend
from pdctl.errors import InputError
from pdctl.fleet.model import Fleet, Pool
from pdctl.python import code, environment

PAIRED: Final = ("prefill", "decode")
PARSED_S: Final = 300
"""In which an engine must have parsed the command lines of its pools: it imports much first."""
_SYSTEM: Final = "apt-get install libibverbs1 libnuma1 libcurl4"
_LIBRARIES: Final[Mapping[str, tuple[str, ...]]] = {
    "mooncake": ("libibverbs.so.1", "libnuma.so.1", "libcurl.so.4"),
}


class RealEngine(Struct, frozen=True, kw_only=True):
    """An adapter is data: what its engine's modules say. Not `exact`, since kernels differ by batch and size."""

    name: str
    readiness: Readiness
    exact: bool = False
    key_variable: str
    signed: tuple[str, ...] = ()
    secret_variable: str | None = None
    """For the core inside of it; its own transfer takes none."""
    plugins: str
    """The entry point group through which the engine loads the core."""
    packages: Mapping[str, str]
    """The module that each transfer backend needs, by the backend's name."""
    ports: Callable[[Pool], Sequence[str]]
    build: Callable[[Instance], Command]
    answering: Callable[[Instance], bool]
    """Whether a node takes requests."""
    settle: Callable[[Fleet, Pool], Iterable[Settled]]
    ignore: Callable[[Fleet, Pool], Iterable[Unread]]
    read: Callable[[str], str | None]
    """The stage that a log has reached."""
    ask: Callable[[Instance, Instance, Prompt, int, float], Probe]
    parser: str
    """Python that reads a list of command lines as JSON from stdin, parses each as the engine would, and prints the
    index of each before it does."""
    skipped_words: int
    """How many words of the command stand before what the parser gets."""

    def purposes(self, pool: Pool) -> Sequence[str]:
        """The ports that one engine of the pool needs."""
        return self.ports(pool)

    def command(self, instance: Instance) -> Command:
        """The exact command line and environment."""
        return self.build(instance)

    def serves(self, instance: Instance) -> bool:
        """Whether this node answers requests."""
        return self.answering(instance)

    def python(self, pool: Pool) -> str:
        """The interpreter that runs the pool's engines."""
        return interpreter(pool, self.name)

    def settled(self, fleet: Fleet, pool: Pool) -> Iterable[Settled]:
        """The flags that fields of the fleet file set."""
        return self.settle(fleet, pool)

    def unread(self, fleet: Fleet, pool: Pool) -> Iterable[Unread]:
        """Fields that it does not read."""
        return self.ignore(fleet, pool)

    def stage(self, log: str) -> str | None:
        """What a starting engine is doing."""
        return self.read(log)

    def probe(self, prefill: Instance, decode: Instance, prompt: Prompt, max_tokens: int, timeout_s: float) -> Probe:
        """One greedy request through this very pair."""
        return self.ask(prefill, decode, prompt, max_tokens, timeout_s)

    def needs(self, fleet: Fleet, pool: Pool) -> Sequence[Need]:
        """The engine, its transfer backend with its libraries, the model. A built-in model is written on first use."""
        python, backend = interpreter(pool, self.name), fleet.transfer.backend
        package = of_backend(self.packages, backend, self.name)
        remedy = f"set `environment` to the environment that has it; for CPU: python tools/engine_envs.py {self.name}"
        needs = [self._model(fleet.model.path), Need("package", self.name, remedy, python)]
        if pool.role in PAIRED:
            needs += [Need("library", soname, _SYSTEM) for soname in _LIBRARIES.get(backend, ())]
            remedy = f"install {backend} in the engine's environment"
            needs.append(Need("package", package, remedy, python))
        return needs

    def _model(self, path: str) -> Need:
        if path.startswith(PREFIX):
            require_builtin(self.name, path, "model.path")
            return Need("model", str(materialise(path.removeprefix(PREFIX))), "remove the folder; it is written again")
        known = ", ".join(builtins_of(self.name))
        return Need("model", path, f"give a folder with a config.json and weights, or one of {known}")

    def ship_core(self, pools: Sequence[Pool]) -> str:
        """Put the core beside the environments and let each engine's own interpreter say which it would load."""
        path = shipping.install()
        pythons = sorted({interpreter(pool, self.name) for pool in pools})
        digests = {shipping.verify(python, path, self.plugins) for python in pythons}
        return f"pdctl-transfer sha256:{digests.pop()[:16]} in {len(pythons)} environment(s), from {path}"

    def validate(self, instances: Sequence[Instance]) -> None:
        """Let the installed engine parse all command lines, in one process an environment.

        Raises InputError (PD3103) with the parser's own words for the first that it refuses, GateError (PD0056) where
        there is no answer in time.
        """
        for python in sorted({interpreter(one.pool, self.name) for one in instances}):
            mine = [one for one in instances if interpreter(one.pool, self.name) == python]
            commands = [self.command(one) for one in mine]
            done = self._parsed(python, commands)
            if done.returncode:
                seen = [line for line in done.stdout.split() if line.isdigit()]
                pool = mine[int(seen[-1]) if seen else 0].pool
                lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
                reason = lines[-1] if lines else f"exit status {done.returncode}"
                message = f"{self.name} refuses its flags: {reason}"
                hint = "`pdctl up --plan` shows the command line; the engine's --help what it takes"
                raise InputError(message, where=f"{pool.key}.args", code="PD3103", hint=hint)

    def _parsed(self, python: str, commands: Sequence[Command]) -> "subprocess.CompletedProcess[str]":
        try:
            return subprocess.run(
                code(python, self.parser),
                input=json.dumps([command.argv[self.skipped_words :] for command in commands]),
                env=environment(os.environ, commands[0].env, {"PDCTL_PLUGIN": "off"}),
                capture_output=True,
                text=True,
                timeout=PARSED_S,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise no_answer(python, f"whether {self.name} takes its flags", PARSED_S) from error
