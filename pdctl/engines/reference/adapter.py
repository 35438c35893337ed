"""The reference engine's command line, readiness and pair probe."""

import secrets
import sys
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from pdctl import __version__
from pdctl.engines.answer import Prompt, from_generate
from pdctl.engines.base import Command, Instance, Need, Probe, Readiness, Unread, python_of
from pdctl.engines.core import unread_core
from pdctl.engines.http import post_json
from pdctl.engines.names import FLAG, naming
from pdctl.engines.reference.options import API_KEY, SECRET
from pdctl.engines.settled import Settled
from pdctl.engines.words import devices_unread, only_port, ucx_devices, unread_on_one_node
from pdctl.errors import GateError, InputError
from pdctl.fleet.model import Fleet, Pool
from pdctl.python import module

_ROLES = ("aggregate", "prefill", "decode")
_INSTALL = "pip install 'pdctl[engine,transfer-cpu]'"
_INSTALL_NIXL = "pip install 'pdctl[engine,nixl]'"
_SYSTEM = "apt-get install libibverbs1 libnuma1 libcurl4"


class ReferenceEngine:
    """pdctl's own engine, for trying and for tests: a real hybrid model, small enough for any CPU."""

    name = "reference"
    exact = True
    secret_variable = SECRET
    key_variable = API_KEY
    signed = ("bootstrap",)
    readiness = Readiness("/health", deadline_s=120)

    def purposes(self, pool: Pool) -> Sequence[str]:
        """Prefill engines carry a registry, which decode engines find at the bootstrap port."""
        return ("http", "bootstrap") if pool.role == "prefill" else ("http",)

    def needs(self, fleet: Fleet, pool: Pool) -> Sequence[Need]:
        """PyTorch, the HTTP server, and the backend with its system libraries."""
        python = python_of(pool)
        packages = {"torch": _INSTALL, "uvicorn": _INSTALL, "starlette": _INSTALL}
        libraries: tuple[str, ...] = ()
        if pool.role != "aggregate":
            backend = {"mooncake": "mooncake.engine", "nixl": "nixl_cu12"}
            if fleet.transfer.backend not in backend:
                message = f"the reference engine has no backend {fleet.transfer.backend}"
                raise InputError(message, where="transfer.backend", code="PD0016", hint="write mooncake or nixl")
            remedy = _INSTALL if fleet.transfer.backend == "mooncake" else _INSTALL_NIXL
            packages[backend[fleet.transfer.backend]] = remedy
            libraries = (
                ("libibverbs.so.1", "libnuma.so.1", "libcurl.so.4") if fleet.transfer.backend == "mooncake" else ()
            )
        return [
            Need("model", fleet.model.path, "builtin:tiny-hybrid is one that needs no download"),
            *(Need("library", soname, _SYSTEM) for soname in libraries),
            *(Need("package", package, remedy, python) for package, remedy in packages.items()),
        ]

    def command(self, instance: Instance) -> Command:
        """`python -m pdctl.engines.reference`, all sizes said."""
        pool, fleet = instance.pool, instance.fleet
        if pool.role not in _ROLES:
            hint = f"it knows {', '.join(_ROLES)}"
            raise InputError(f"the reference engine has no role {pool.role}", where=pool.key, code="PD0016", hint=hint)
        if pool.cp > 1:
            message = "the reference engine has no context parallelism"
            raise InputError(message, where=f"{pool.key}.cp", code="PD0016", hint="leave it out")
        flags: dict[str, Any] = {
            "--model": instance.model,
            "--role": pool.role,
            "--host": instance.host,
            "--port": instance.ports["http"],
            "--tp": pool.attn_tp * pool.dp,
            "--pp": pool.pp,
            "--dp": pool.dp,
            "--page-size": pool.page_size,
            "--dtype": None if pool.kv_cache_dtype == "auto" else pool.kv_cache_dtype,
        }
        if pool.role != "aggregate":
            flags |= {"--transfer-backend": fleet.transfer.backend, "--transfer-protocol": fleet.transfer.protocol}
            if fleet.transfer.backend == "mooncake":
                flags["--transfer-devices"] = ",".join(fleet.transfer.devices) or None
        if pool.role == "prefill":
            flags |= {"--bootstrap-host": instance.host, "--bootstrap-port": instance.ports["bootstrap"]}
        if pool.speculative is not None:
            flags["--speculative-algorithm"] = "NEXTN"
        words = [str(word) for flag, value in flags.items() if value is not None for word in (flag, value)]
        words += naming(fleet, pool)
        env = {"OMP_NUM_THREADS": "1"}
        if pool.role != "aggregate":
            env |= ucx_devices(fleet)
            session = dict(fleet.transfer.options)
            if "secret" in session:  # everybody on the host can read a command line
                env[SECRET] = str(session.pop("secret"))
            words += [word for name, value in session.items() for word in ("--session", f"{name}={value}")]
        argv = module(python_of(pool), "pdctl.engines.reference", *words, *pool.args)
        return Command(argv, {**env, **pool.env})

    def serves(self, instance: Instance) -> bool:
        """It has one node."""
        return instance.node == 0

    def python(self, pool: Pool) -> str:
        """The interpreter that runs the pool's engines."""
        return python_of(pool)

    def settled(self, fleet: Fleet, pool: Pool) -> Iterator[Settled]:
        """Every flag that `command` writes."""
        yield Settled("--model", (".model.path",), fleet.model.path, always=True)
        yield Settled(FLAG, ("served_name",), pool.served_name)
        yield Settled("--role", (pool.role,), pool.role, always=True)
        yield Settled("--host", ("hosts",), None, always=True)
        yield Settled("--port", ("ports.http",), only_port(pool, "http"), always=True)
        yield Settled("--tp", ("attn_tp", "dp"), str(pool.tp))
        yield Settled("--pp", ("pp",), str(pool.pp))
        yield Settled("--dp", ("dp", "attn_tp"), str(pool.dp))
        yield Settled("--page-size", ("page_size",), str(pool.page_size))
        yield Settled("--dtype", ("kv_cache_dtype",), pool.kv_cache_dtype)
        yield Settled("--speculative-algorithm", ("speculative",), "NEXTN")
        if pool.role != "aggregate":
            yield Settled("--transfer-backend", (".transfer.backend",), fleet.transfer.backend, always=True)
            yield Settled("--transfer-protocol", (".transfer.protocol",), fleet.transfer.protocol, always=True)
            yield Settled("--transfer-devices", (".transfer.devices",), ",".join(fleet.transfer.devices))
        yield Settled("--bootstrap-host", ("hosts",), None, always=True)
        yield Settled("--bootstrap-port", ("ports.bootstrap",), only_port(pool, "bootstrap"), always=True)

    def unread(self, fleet: Fleet, pool: Pool) -> Iterator[Unread]:
        """It runs on the CPU of one node, has no experts, and one way to guess ahead."""
        if pool.devices:
            yield Unread(f"{pool.key}.devices", "the reference engine", "leave it out: it runs on the CPU")
        if pool.role != "aggregate":
            yield from devices_unread(fleet, pool)
        hint = "leave it out: it has the core and no other way; `transfer.options` are its sessions' options"
        yield from unread_core(fleet, pool, "the reference engine", hint)
        if pool.nodes > 1:
            yield Unread(f"{pool.key}.nodes", "the reference engine", "leave it out: it runs on one node")
        if pool.ep is not None:
            yield Unread(f"{pool.key}.ep", "the reference engine", "leave it out: its model has no experts")
        yield from unread_on_one_node(pool)
        for name, value in (pool.speculative or {}).items():
            if (name, str(value).upper()) != ("algorithm", "NEXTN"):
                hint = "write `speculative: {algorithm: NEXTN}`, which is all that it has"
                yield Unread(f"{pool.key}.speculative.{name}", "the reference engine", hint)

    def stage(self, log: str) -> str | None:
        """It says nothing until it serves."""
        return "serving" if " serves " in log else None

    def ship_core(self, pools: Sequence[Pool]) -> str:
        """Nothing to ship: the engine imports the core of the environment that it runs in, so that must be one."""
        pythons = {python_of(pool) for pool in pools}
        if len(pythons) > 1:
            message = f"engines of {len(pythons)} environments: {', '.join(sorted(pythons))}"
            raise InputError(message, where="prefill", code="PD0016", hint="give all pools one `environment`")
        place = "this environment" if pythons == {sys.executable} else pythons.pop()
        return f"pdctl-transfer {__version__} of {place}"

    def probe(self, prefill: Instance, decode: Instance, prompt: Prompt, max_tokens: int, timeout_s: float) -> Probe:
        """The same request to both sides at once, as a router sends it."""
        body = {
            **({"text": prompt} if isinstance(prompt, str) else {"input_ids": list(prompt)}),
            "return_logprob": True,
            "sampling_params": {"temperature": 0, "max_new_tokens": max_tokens, "ignore_eos": True},
            "bootstrap_host": prefill.host,
            "bootstrap_port": prefill.ports["bootstrap"],
            "bootstrap_room": secrets.randbits(62),
        }
        began = time.monotonic()
        with ThreadPoolExecutor(2) as pool:
            sent = [
                pool.submit(post_json, f"{side.url}/generate", body, timeout_s, key=side.key)
                for side in (prefill, decode)
            ]
        faults = [str(error) for future in sent if (error := future.exception()) is not None]
        if faults:
            raise GateError("; ".join(faults), code="PD3008")
        document = sent[1].result()
        try:
            answer = from_generate(document)
            recomputed = int(document["meta_info"]["prompt_tokens_computed"])
        except (ValueError, TypeError, LookupError) as error:
            raise GateError(f"{decode.name}: no answer of a reference engine: {error}", code="PD3008") from error
        return Probe(answer, recomputed, time.monotonic() - began)


ADAPTER = ReferenceEngine()
