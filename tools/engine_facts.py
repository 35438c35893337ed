"""Write `pdctl/versions/releases.json` from wheels of engines: `python tools/engine_facts.py WHEEL…`.

What pdctl's rules rest on, read out of each release's sources: nothing is installed, imported or run. Wheels come from
`pip download --no-deps sglang==0.5.22`. `--against` writes nothing and says which facts the wheels change, and which
rules and tables rest on those: what somebody should look at before the known range is widened.
"""

import argparse
import ast
import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from zipfile import ZipFile

RELEASES = Path(__file__).resolve().parent.parent / "pdctl" / "versions" / "releases.json"

Taken = Callable[[Sequence[ast.Module]], Any]


@dataclass(frozen=True)
class Fact:
    """One thing that rules rest on: the files it stands in (a pattern), how it is taken, and who relies on it."""

    name: str
    files: str
    take: Taken
    rules: tuple[str, ...]


def functions(pattern: str) -> Taken:
    """Names of functions and methods, sorted."""
    return lambda trees: sorted({f.name for f in _functions(trees) if re.fullmatch(pattern, f.name)})


def body(name: str) -> Taken:
    """A digest of a function as it is computed with, without comments, texts that explain, and lines; None: absent."""

    def take(trees: Sequence[ast.Module]) -> str | None:
        found = [ast.dump(_bare(function)) for function in _functions(trees) if function.name == name]
        return hashlib.sha256("\n".join(found).encode()).hexdigest()[:16] if found else None

    return take


def texts(name: str) -> Taken:
    """The words, texts without a blank, in a function or in the value of an assignment, sorted."""

    def take(trees: Sequence[ast.Module]) -> list[str]:
        nodes = [*(f for f in _functions(trees) if f.name == name), *_assigned(trees, name)]
        return sorted({text for node in nodes for text in _texts(node) if " " not in text})

    return take


def keys(*names: str) -> Taken:
    """Keys of the dictionaries that functions of these names write out, sorted."""

    def take(trees: Sequence[ast.Module]) -> list[str]:
        inside = [node for f in _functions(trees) if f.name in names for node in ast.walk(f)]
        written = [key for node in inside if isinstance(node, ast.Dict) for key in node.keys]
        return sorted({key.value for key in written if isinstance(key, ast.Constant) and isinstance(key.value, str)})

    return take


def refused(pattern: str) -> Taken:
    """What is said where something is raised or asserted, in words that match, sorted; blanks for what is filled in."""

    def take(trees: Sequence[ast.Module]) -> list[str]:
        said = {_said(node) for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Raise | ast.Assert)}
        return sorted(text for text in said if re.search(pattern, text))

    return take


def registered(function: str) -> Taken:
    """First arguments of the calls of a function, in their order."""

    def take(trees: Sequence[ast.Module]) -> list[str]:
        calls = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.Call)]
        named = [call for call in calls if isinstance(call.func, ast.Attribute) and call.func.attr == function]
        firsts = [call.args[0] for call in named if call.args]
        return [first.value for first in firsts if isinstance(first, ast.Constant) and isinstance(first.value, str)]

    return take


def subclasses(base: str) -> Taken:
    """Names of classes that name this one among their bases, sorted."""

    def take(trees: Sequence[ast.Module]) -> list[str]:
        classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
        return sorted(node.name for node in classes if any(getattr(b, "id", None) == base for b in node.bases))

    return take


_PD = "sglang/srt/disaggregation"
_KV = "vllm/distributed/kv_transfer/kv_connector"
_NIXL = rf"{_KV}/v1/nixl(_connector\.py|/.*\.py)"

FACTS: dict[str, tuple[Fact, ...]] = {
    "sglang": (
        *(
            Fact(f"{backend}.state", rf"{_PD}/{backend}/conn\.py", functions(r"_?send_\w*state\w*"), rules)
            for backend in ("mooncake", "nixl", "mori")
            for rules in [("PD1005", "PD1047", "rules/abilities.py", "rules/releases.py")]
        ),
        Fact("handshake", rf"{_PD}/common/conn\.py", body("_resolve_rank_mapping"), ("PD1006", "rules/pipeline.py")),
        Fact(
            "handshake.refuses",
            rf"{_PD}/common/conn\.py",
            body("try_ensure_parallel_info"),
            ("PD1001", "PD1002", "PD1006"),
        ),
        Fact(
            "dcp.refuses",
            rf"{_PD}/common/conn\.py|sglang/srt/(server_args|arg_groups/.*|distributed/parallel_state)\.py",
            refused(r"PD (decode )?DCP|DSA DCP|decode_context_parallel_size .* divisible|divisible .*decode_context"),
            ("PD1006", "rules/sglang_refusals.py"),
        ),
        Fact(
            "sliding",
            r"sglang/srt/configs/model_config\.py",
            texts("is_hybrid_swa_model"),
            ("derive/sglang/facts.py SPLITS_SLIDING",),
        ),
        Fact(
            "state_types",
            rf"{_PD}/(base/conn|prefill|decode|utils|common/.*)\.py",
            texts("StateType"),
            ("rules/abilities.py",),
        ),
        Fact(
            "backends",
            r"sglang/srt/(server_args|arg_groups/.*)\.py",
            texts("DISAGG_TRANSFER_BACKEND_CHOICES"),
            ("transfer.backend",),
        ),
    ),
    "vllm": (
        Fact("connectors", rf"{_KV}/factory\.py", registered("register_connector"), ("derive/connectors.py KNOWN",)),
        Fact("hybrid", rf"{_KV}/v1/.*\.py", subclasses("SupportsHMA"), ("derive/connectors.py KNOWN, hybrid",)),
        Fact("nixl.hash", _NIXL, body("compute_nixl_compatibility_hash"), ("PD1014", "PD1015", "docs/vllm.md")),
        Fact(
            "nixl.hash.factors",
            _NIXL,
            keys("compute_nixl_compatibility_hash", "_get_speculative_compatibility_factors"),
            ("rules/contracts.py",),
        ),
        Fact(
            "nixl.refuses",
            rf"{_NIXL}|vllm/config/(vllm|parallel|model)\.py",
            refused(r"^(Nixl|NIXL (does|KV)|DCP sizes|DCP is not|Hybrid MLA|PD with|Replicated PCP|Attention-HMA)"),
            ("PD1006", "rules/vllm_refusals.py"),
        ),
        Fact("mori.refuses", rf"{_KV}/v1/moriio/.*\.py", refused("heterogeneous TP"), ("rules/vllm_refusals.py",)),
        Fact("nixl.ratio", rf"{_NIXL}|{_KV}/utils\.py", body("tp_ratio"), ("PD1005",)),
        Fact("nixl.validates", _NIXL, body("_validate_remote_agent_handshake"), ("PD1005", "PD1006", "PD1020")),
        Fact("layouts", rf"{_KV}/utils\.py", body("get_kv_connector_cache_layout"), ("derive/vllm/facts.py WANT_HND",)),
        Fact("multi", rf"{_KV}/v1/multi_connector\.py", body("get_required_kvcache_layout"), ("derive/connectors.py",)),
    ),
}


def read(wheel: Path) -> tuple[str, str, dict[str, Any]]:
    """Engine, version and facts of one wheel; a fact whose files are not there is None."""
    name, version = wheel.name.split("-")[:2]
    engine = name.partition("_")[0]
    facts: dict[str, Any] = {}
    with ZipFile(wheel) as archive:
        names = sorted(archive.namelist())
        for fact in FACTS[engine]:
            chosen = [name for name in names if re.fullmatch(fact.files, name)]
            trees = [ast.parse(archive.read(name)) for name in chosen]
            facts[fact.name] = fact.take(trees) if trees else None
    return engine, version.partition("+")[0], facts


def gathered(wheels: Iterable[Path]) -> dict[str, Any]:
    """For each engine the versions read, and for each fact its value at the first of them and where it changed."""
    found: dict[str, Any] = {}
    for engine, version, facts in sorted((read(wheel) for wheel in wheels), key=lambda one: (one[0], order(one[1]))):
        part = found.setdefault(engine, {"read": [], "facts": {}})
        part["read"].append(version)
        for name, value in facts.items():
            seen = part["facts"].setdefault(name, {})
            if not seen or list(seen.values())[-1] != value:
                seen[version] = value
    return found


def touched(known: dict[str, Any], wheel: Path) -> Iterator[str]:
    """A line a fact of the wheel that is not what the newest release read before it had."""
    engine, version, facts = read(wheel)
    before = known.get(engine, {}).get("facts", {})
    for fact in FACTS[engine]:
        older = [value for at, value in before.get(fact.name, {}).items() if order(at) < order(version)]
        if older and older[-1] != facts[fact.name]:
            yield f"{engine} {version}: {fact.name} is another; look at {', '.join(fact.rules)}"


def order(version: str) -> list[int]:
    """`0.5.16.post1` → [0, 5, 16, 1]."""
    return [int(part) for part in re.findall(r"\d+", version)]


def text_of(found: dict[str, Any]) -> str:
    """JSON, a line a value."""
    engines = []
    for engine, part in found.items():
        facts = []
        for name, seen in sorted(part["facts"].items()):
            values = ",\n".join(f"    {json.dumps(at)}: {json.dumps(value)}" for at, value in seen.items())
            facts.append(f"   {json.dumps(name)}: {{\n{values}\n   }}")
        body = ",\n".join(facts)
        engines.append(
            f' {json.dumps(engine)}: {{\n  "read": {json.dumps(part["read"])},\n  "facts": {{\n{body}\n  }}\n }}'
        )
    return "{\n" + ",\n".join(engines) + "\n}\n"


def main(argv: list[str]) -> int:
    """0; with `--against` 1 where the wheels touch something."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("wheels", nargs="+", type=Path)
    parser.add_argument("--against", action="store_true", help="only say what these wheels change")
    options = parser.parse_args(argv)
    if options.against:
        lines = [line for wheel in options.wheels for line in touched(json.loads(RELEASES.read_text()), wheel)]
        print("\n".join(lines) or "nothing that pdctl rests on is another")
        return int(bool(lines))
    RELEASES.write_text(text_of(gathered(options.wheels)), encoding="utf-8")
    return 0


def _functions(trees: Iterable[ast.Module]) -> list[ast.FunctionDef]:
    return [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]


def _said(node: ast.Raise | ast.Assert) -> str:
    """The first sentence or so of what an exception says."""
    source = node.msg if isinstance(node, ast.Assert) else node.exc
    texts = [c.value for c in ast.walk(source) if isinstance(c, ast.Constant)] if source is not None else []
    return " ".join(" ".join(text for text in texts if isinstance(text, str)).split())[:100]


def _assigned(trees: Iterable[ast.Module], name: str) -> Iterator[ast.AST]:
    """Values given to a name, and classes of that name."""
    for tree in trees:
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name == name:
                yield node
            if isinstance(node, ast.Assign) and any(getattr(target, "id", None) == name for target in node.targets):
                yield node.value


def _texts(node: ast.AST) -> Iterator[str]:
    return (c.value for c in ast.walk(node) if isinstance(c, ast.Constant) and isinstance(c.value, str))


def _bare(function: ast.FunctionDef) -> ast.FunctionDef:
    """Without its docstring."""
    first = function.body[0]
    if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
        function.body = function.body[1:] or [ast.Pass()]
    return function


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
