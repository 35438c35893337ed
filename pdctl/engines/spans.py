"""The ranks of one engine and the nodes that they run on: by the fields of its pool, and flags in the place of those.

Which ranks a node runs shapes no buffer, so no layout depends on it. What has to hold so that each rank runs somewhere
is said by `unplaced`, for each engine as its own source has it.
"""

from collections.abc import Iterator
from typing import Final

from msgspec import Struct

from pdctl.errors import FleetFileError
from pdctl.flags import Reading, dialect, load, read_words
from pdctl.fleet.loaded import LoadedFleet
from pdctl.fleet.model import Pool

MEETING: Final = {"sglang": ("--dist-init-addr",), "vllm": ("--master-addr", "--data-parallel-address")}
"""Flags that say where the nodes of an engine meet."""
_LOCAL: Final = ("--data-parallel-size-local",)
_START: Final = ("--data-parallel-rank", "--data-parallel-start-rank", "--node-rank")


class Span(Struct, frozen=True, kw_only=True):
    """Sizes of one engine. None: a flag gives what is no number, as a placeholder is."""

    engine: str
    nodes: int | None
    tp: int | None
    pp: int | None
    copies: int | None
    """Times that tp × pp ranks are there: vLLM's data parallelism, SGLang's replicas behind one door."""
    ep: int | None = None
    moe_dp: int | None = 1
    spreads: str | None = None
    """What spreads SGLang's experts over all ranks whatever the size says."""
    local: tuple[int, ...] = ()
    """Data-parallel ranks of each node, where the file says so."""
    part: str | None = None
    """Flags that make this engine one node of several that the pool does not name."""

    @property
    def ranks(self) -> int | None:
        """All ranks."""
        return _product(self.tp, self.pp, self.copies)

    @property
    def per_node(self) -> int | None:
        """The most ranks that one node has; None where they cannot be placed."""
        if self.ranks is None or not self.nodes or unplaced(self):
            return None
        return (
            max(one * self.ranks // (self.copies or 1) for one in self.local)
            if self.local
            else -(-self.ranks // self.nodes)
        )


def span_of(loaded: LoadedFleet, pool: Pool) -> Span:
    """The span of each engine of the pool."""
    engine = dialect(pool.engine or loaded.fleet.engine)
    words = read_words(load(engine), pool.args)
    if engine == "reference":
        return Span(engine=engine, nodes=pool.nodes, tp=pool.tp, pp=pool.pp, copies=1, ep=pool.ep)
    nodes = _size(words, pool.nodes, "--nnodes")
    pp = _size(words, pool.pp, "--pp-size" if engine == "sglang" else "--pipeline-parallel-size")
    part = next((one.spelled for one in words.given if one.called(*_START, *_LOCAL, "--headless")), None)
    if engine == "sglang":
        attention = pool.dp > 1 or words.last("--enable-dp-attention") is not None
        return Span(
            engine=engine,
            nodes=nodes,
            tp=_size(words, pool.tp, "--tp-size"),
            pp=pp,
            copies=1 if attention else _size(words, 1, "--dp-size"),
            ep=_size(words, pool.ep or 1, "--ep-size"),
            moe_dp=_size(words, 1, "--moe-dp-size"),
            spreads=_spreads(words),
            part=part if pool.nodes == 1 else None,
        )
    tp = _product(
        _size(words, pool.attn_tp, "--tensor-parallel-size"), _size(words, 1, "--prefill-context-parallel-size")
    )
    copies, here = _size(words, pool.dp, "--data-parallel-size"), _size(words, 0, *_LOCAL)
    return Span(
        engine=engine,
        nodes=nodes,
        tp=tp,
        pp=pp,
        copies=copies,
        ep=pool.ep,
        local=tuple(pool.dp_local) or ((here,) if here and pool.nodes == 1 else ()),
        part=part if pool.nodes == 1 else None,
    )


#: SGLang 0.5.23, arg_groups/overrides.py:1578: backends that set the expert parallelism to all ranks.
SPREADING: Final = frozenset(
    {"megamoe", "deepep", "deepep_v2", "mooncake", "nixl", "ascend_fuseep", "flashinfer", "flashinfer_megamoe"}
    | {"mori", "pplx"}
)


def _spreads(words: Reading) -> str | None:
    found = words.value("--moe-a2a-backend")
    return found if found in SPREADING else None


def _size(words: Reading, field: int, *flags: str) -> int | None:
    """The flag's number, else the field; None for a flag that gives no number."""
    found = words.value(*flags)
    if found is None:
        return field
    return int(found) if found.isascii() and found.isdigit() and 0 < len(found) < 10 else None


def _product(*sizes: int | None) -> int | None:
    whole = 1
    for size in sizes:
        if size is None:
            return None
        whole *= size
    return whole


def unplaced(span: Span) -> str | None:
    """Why ranks of the engine would run nowhere, or it would not start; None where all is well, or not known.

    SGLang 0.5.23: arg_groups/validation_hook.py:179 and 199, entrypoints/engine.py:2063 to 2074, which takes whole
    stages or equal parts of one. vLLM 0.32: engine/arg_utils.py:2365, config/parallel.py:823.
    """
    nodes, tp, pp, copies = span.nodes, span.tp, span.pp, span.copies
    if nodes is None or tp is None or pp is None or copies is None or nodes == 1:
        return None
    if span.engine == "sglang":
        if copies > 1:
            return f"{copies} replicas behind one door (--dp-size) do not go over {nodes} nodes; attention DP does"
        stages, shared = max(pp // nodes, 1), max(nodes // pp, 1)
        if nodes * stages * (tp // shared) != tp * pp:
            return f"TP {tp} × PP {pp} does not divide over {nodes} nodes"
        return None
    if span.local and not span.part and len(span.local) != nodes:
        return f"dp_local says {len(span.local)} nodes of {nodes}"
    if span.local or span.part or copies % nodes == 0:
        return None
    if nodes % copies or (tp * pp * copies) % nodes:
        return f"DP {copies} × TP {tp} × PP {pp} does not divide over {nodes} nodes"
    return None


def unspread(span: Span) -> str | None:
    """Why the experts would not be spread as said; None where they are.

    SGLang 0.5.23: runtime_context.py:131 and 154 divide TP by MoE DP and EP; arg_groups/parallel_hook.py:172 to 182.
    vLLM 0.32: fused_moe/config.py:1221, a switch that takes all ranks of a stage.
    """
    if span.ep is None or span.ep == 1 or span.spreads or span.tp is None:
        return None
    if span.engine == "vllm":
        width = _product(span.tp, span.copies)
        return f"ep {span.ep}, but vLLM spreads experts over all {width} ranks" if span.ep != width else None
    if span.moe_dp is None:
        return None
    beside = f" and MoE DP {span.moe_dp}" if span.moe_dp > 1 else ""
    whole = span.ep * span.moe_dp
    if span.tp % whole or (span.moe_dp > 1 and whole != span.tp):
        return f"EP {span.ep}{beside} does not divide TP {span.tp}"
    return None


def span_faults(loaded: LoadedFleet, pool: Pool) -> Iterator[FleetFileError]:
    """PD0038: more ranks on a host than accelerators that the pool lists."""
    span = span_of(loaded, pool)
    guessed = bool(pool.urls) and "hosts" not in pool.model_fields_set
    if not pool.devices or span.per_node is None or not pool.members or (guessed and pool.nodes > 1):
        return
    words = read_words(load(span.engine), pool.args)
    if span.engine == "sglang":
        base, step = _size(words, 0, "--base-gpu-id"), _size(words, 1, "--gpu-id-step")
        needed = None if base is None or step is None else base + (span.per_node - 1) * step + 1
    else:
        needed = span.per_node
    hosts = [host for host, _ in pool.places(0)]
    together = max(hosts.count(host) for host in hosts)
    if needed is not None and needed * together > len(pool.devices):
        key = f"{pool.key}.devices"
        on = "each node" if together == 1 and pool.nodes > 1 else "one host"
        message = f"{key}: {len(pool.devices)} accelerators, but {needed * together} ranks on {on}"
        hint = "list as many, or lower the sizes: attn_tp × dp × cp × pp ranks over `nodes`"
        yield FleetFileError(message, where=loaded.where(key), code="PD0038", hint=hint)
