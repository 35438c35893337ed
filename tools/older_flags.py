"""Write `older.json` and `renamed.json` in `pdctl/flags/tables` from wheels of other versions: `older_flags.py WHEEL…`.

Which flags that the tables do not have other versions of the engines had, and which of them those versions themselves
call old spellings of one that the table has. Nothing is installed and nothing is run: the names stand as texts in the
sources, and as fields of vLLM's front-end classes. Older and newer versions both count. An engine without a wheel here
is left as it is.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
TABLES = ROOT / "pdctl" / "flags" / "tables"
sys.path.insert(0, str(ROOT))

from pdctl.flags import load  # noqa: E402

SOURCES = re.compile(
    r"sglang/srt/(server_args\.py|arg_groups/.*\.py)|vllm/engine/arg_utils\.py|vllm/entrypoints/.*cli_args\.py"
)
FLAG = re.compile(r"--[a-z][a-z0-9-]+")


def names(source: str) -> Iterator[str]:
    """Every text that is a flag, and a flag for each annotated field of a class whose name ends in FrontendArgs."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and FLAG.fullmatch(node.value):
            yield node.value
        if isinstance(node, ast.ClassDef) and node.name.endswith(("FrontendArgs", "ServerArgs")):
            for field in node.body:
                target = field.target if isinstance(field, ast.AnnAssign) else None
                if isinstance(target, ast.Name) and not target.id.startswith("_"):
                    yield "--" + target.id.replace("_", "-")


def aliases(source: str) -> Iterator[tuple[str, str]]:
    """Old spelling and new one, where a parser's action for deprecated flags names both."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not node.args or not isinstance(node.args[0], ast.Constant):
            continue
        named = {one.arg: one.value for one in node.keywords}
        old, new = node.args[0].value, named.get("new_flag")
        if isinstance(new, ast.Constant) and FLAG.fullmatch(str(old)) and FLAG.fullmatch(str(new.value)):
            yield str(old), str(new.value)


def main(wheels: list[str]) -> int:
    """0; what the files say of an engine is written anew from its wheels alone."""
    older, renamed = (json.loads((TABLES / name).read_text()) for name in ("older.json", "renamed.json"))
    wheels.sort(key=lambda name: [int(part) for part in Path(name).name.split("-")[1].split(".")[:3]])
    programs = {Path(wheel).name.split("-")[0].partition("_")[0] for wheel in wheels}
    for program in programs:
        older[program], renamed[program] = {}, {}
    for wheel in wheels:
        program, version = Path(wheel).name.split("-")[:2]
        program = program.partition("_")[0]
        with ZipFile(wheel) as archive:
            texts = [archive.read(name).decode() for name in archive.namelist() if SOURCES.fullmatch(name)]
        known = load(program).by_name
        for name in sorted({name for text in texts for name in names(text)} - known.keys()):
            seen = older[program].setdefault(name, [])
            seen[:] = [*seen[:1], version]
        renamed[program] |= {
            old: new for text in texts for old, new in aliases(text) if new in known and old not in known
        }
    (TABLES / "older.json").write_text(text_of(older), encoding="utf-8")
    (TABLES / "renamed.json").write_text(text_of(renamed), encoding="utf-8")
    return 0


def text_of(found: Mapping[str, Mapping[str, Any]]) -> str:
    """JSON, a line a flag."""
    programs = []
    for program, flags in found.items():
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(seen)}" for name, seen in sorted(flags.items()))
        programs.append(f"{json.dumps(program)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(programs) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
