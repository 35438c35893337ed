"""PD1005, PD1023: across unequal attention TP, each kind of state must be one that the backend can reshape.

Equal TP is not demanded where unequal works: GQA KV reshapes everywhere, while the same model's replicated state may
need mooncake. A refusal is an error, be it only of an older release; what nobody has established is a warning.
"""

from collections.abc import Iterator

from pdctl_transfer.layout.algebra import is_placeholder
from pdctl_transfer.layout.manifest import Component, Entry, Manifest, Sharding
from pdctl_transfer.rules.abilities import UNLIKE_MLA, ability
from pdctl_transfer.rules.outcome import Outcome, Severity
from pdctl_transfer.rules.pair import Pair, components, listed
from pdctl_transfer.rules.releases import RESHAPED, brought_by

_BEFORE = "refused before"


def check_unequal_tp(pair: Pair) -> Iterator[Outcome]:
    """One finding for what is refused, one for what is not established; a note where nothing worse is to be said."""
    if not pair.unequal_tp:
        yield pair.held("unequal_tp", f"attention TP {pair.tp[0]} on both sides")
        return
    if len(pair.engines) > 1:
        yield pair.skipped("unequal_tp", "two engines share no protocol (PD1014)")
        return
    if pair.outside:
        yield pair.skipped("unequal_tp", f"attention TP {pair.tp[0]} → {pair.tp[1]}: {pair.outside}", needed=True)
        return
    states = _states(pair)
    if pair.by_core:
        kinds = listed(sorted({kind for kind, _ in states}))
        yield pair.held("unequal_tp", f"{kinds}: attention TP {pair.tp[0]} → {pair.tp[1]}, cut by the transfer core")
        return
    verdicts: dict[str, list[str]] = {}
    for (kind, sharding), nhd in states.items():
        verdicts.setdefault(_judge(pair, kind, sharding, nhd), []).append(_name(kind, sharding, states))
    too_old = sorted(verdict for verdict in verdicts if verdict.startswith(_BEFORE))
    levels: tuple[tuple[str, str, Severity], ...] = (
        ("refused", "PD1005", "error"),
        *((verdict, "PD1005", "error") for verdict in too_old),
        ("not established", "PD1005", "warning"),
        ("dims", "PD1023", "info"),
    )
    for verdict, code, severity in levels:
        if verdict in verdicts and not (verdict == "dims" and "refused" in verdicts):
            yield _finding(pair, code, severity, verdict, sorted(verdicts[verdict]))
    if not verdicts.keys() - {"yes", "dims"}:
        kinds = listed(sorted({kind for kind, _ in states}))
        yield pair.held("unequal_tp", f"{kinds}: attention TP {pair.tp[0]} → {pair.tp[1]} on {pair.backend}")


def is_mla(pair: Pair) -> bool:
    """Whether all KV of both sides is replicated, as MLA's latents are."""
    kv = [entry for part in components(pair.prefill, pair.decode) if part.kind == "kv" for entry in _real(part)]
    return bool(kv) and all(entry.sharding == "replicated" for entry in kv)


def replicated_above(pair: Pair) -> bool:
    """Whether prefill's TP is above decode's and above its KV heads, which then lie on several ranks each.

    Recurrent models are let through by the engine, and MLA's KV is no question of heads.
    """
    (prefill, decode), heads = pair.tp, kv_heads(pair.prefill, "kv")
    recurrent = any(part.kind == "mamba" and part.entries for part in components(pair.prefill))
    return prefill > decode and prefill > heads > 0 and not recurrent


def kv_heads(manifest: Manifest, kind: str) -> int:
    """All heads of the widest split entry of this kind; 0 where there is none, as with MLA."""
    entries = [entry for part in components(manifest) if part.kind == kind for entry in _real(part)]
    split = (entry for entry in entries if entry.sharding == "split")
    return max((sum(group.heads for group in entry.groups) for entry in split), default=0)


def _states(pair: Pair) -> dict[tuple[str, Sharding], bool]:
    """Kinds of state that both sides hold, by sharding, and whether each page of it is in NHD order."""
    found: dict[tuple[str, Sharding], bool] = {}
    shared = _kinds(pair.prefill) & _kinds(pair.decode)
    for component in components(pair.prefill, pair.decode):
        for entry in _real(component) if component.kind in shared else ():
            key = component.kind, entry.sharding
            found[key] = found.get(key, True) and entry.outer in (pair.prefill.page_size, pair.decode.page_size)
    return found


def _kinds(manifest: Manifest) -> set[str]:
    return {part.kind for part in components(manifest) if part.entries}


def _real(component: Component) -> Iterator[Entry]:
    return (entry for entry in component.entries if not is_placeholder(entry))


def _judge(pair: Pair, kind: str, sharding: Sharding, nhd: bool) -> str:
    verdicts = {ability(engine, pair.backend, kind, sharding, is_mla(pair)) for engine in pair.engines}
    if "nhd, one stage" in verdicts:
        verdicts = {"yes" if nhd and len(pair.prefill.stages) == 1 else "refused"}
    if "own heads, as kv" in verdicts and kv_heads(pair.prefill, kind) != kv_heads(pair.prefill, "kv"):
        return "not established"
    if verdicts & {"own heads", "own heads, as kv"}:
        return "refused" if replicated_above(pair) else "yes"
    for worst in ("refused", "not established", "dims"):
        if worst in verdicts:
            return worst if worst != "dims" else _brought(pair, kind, sharding) or worst
    return _brought(pair, kind, sharding) or "yes"


def _brought(pair: Pair, kind: str, sharding: Sharding) -> str | None:
    """`refused before 0.5.22`, where the release of one side cannot yet do what the tables say."""
    if pair.engines != {"sglang"} or (sharding == "replicated" and kind not in UNLIKE_MLA and is_mla(pair)):
        return None
    since = brought_by(RESHAPED, kind, pair.backend, *pair.versions)
    return f"{_BEFORE} {since}" if since else None


def _name(kind: str, sharding: Sharding, states: dict[tuple[str, Sharding], bool]) -> str:
    """The kind; with its sharding only where the kind has both."""
    both = (kind, "split") in states and (kind, "replicated") in states
    return f"{kind} ({sharding})" if both else kind


def _finding(pair: Pair, code: str, severity: Severity, verdict: str, states: list[str]) -> Outcome:
    engine = " and ".join(sorted(pair.engines))
    words = f"{listed(states)} {'is' if len(states) == 1 else 'are'} {verdict}"
    release = ["engine_version"] if verdict.startswith(_BEFORE) else []
    evidence = [*pair.evidence("attn_tp", *release), *pair.backend_evidence()]
    if verdict == "refused" and "vllm" in pair.engines:
        heads = kv_heads(pair.prefill, "kv")
        evidence.append(
            pair.prefill_side.said(f"{heads} KV heads, each on {pair.tp[0] // heads} of {pair.tp[0]} ranks")
        )
    return pair.finding(
        code,
        evidence,
        severity,
        prefill_tp=pair.tp[0],
        decode_tp=pair.tp[1],
        engine=engine,
        backend=pair.backend,
        states=listed(states) if code == "PD1023" else words,
    )
