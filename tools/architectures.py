"""Write `pdctl/derive/architectures.json`: the architectures that each engine has a class for.

Read from the sources in the engines' environments (`tools/engine_envs.py`); nothing of them is imported.
"""

import ast
import json
import re
import sys
from pathlib import Path

from engine_envs import ENVIRONMENTS, python_of

TARGET = Path(__file__).resolve().parent.parent / "pdctl" / "derive" / "architectures.json"


def site(name: str) -> Path:
    """The site-packages of an engine's environment."""
    python = python_of(ENVIRONMENTS[name].folder())
    if python is None:
        raise SystemExit(f"{name} is not built: python tools/engine_envs.py {name}")
    return next(python.parent.parent.glob("lib/python3*/site-packages"))


def sglang() -> set[str]:
    """The classes that model files offer as `EntryClass`."""
    found: set[str] = set()
    for path in (site("sglang") / "sglang" / "srt" / "models").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.Assign) and any(ast.unparse(target) == "EntryClass" for target in node.targets):
                found |= {one.id for one in ast.walk(node.value) if isinstance(one, ast.Name)}
    return found


def vllm() -> set[str]:
    """The keys of the tables in its registry."""
    text = (site("vllm") / "vllm" / "model_executor" / "models" / "registry.py").read_text(encoding="utf-8")
    return set(re.findall(r'^    "(\w+)": \(', text, re.MULTILINE))


def main() -> int:
    """0; the file is written anew."""
    tables = {"sglang": sorted(sglang()), "vllm": sorted(vllm())}
    TARGET.write_text(json.dumps(tables, indent=0) + "\n", encoding="utf-8")
    print({name: len(found) for name, found in tables.items()})
    return 0


if __name__ == "__main__":
    sys.exit(main())
