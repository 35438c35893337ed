"""Write `pdctl/flags/tables/older.json` from wheels of other versions: `python tools/older_flags.py WHEEL…`.

Which flags that the tables do not have other versions of the engines had. Nothing is installed and nothing is run: the
names stand as texts in the sources, and as fields of vLLM's front-end classes. Older and newer versions both count.
"""

import ast
import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from zipfile import ZipFile

ROOT = Path(__file__).resolve().parent.parent
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


def main(wheels: list[str]) -> int:
    """0; the file is written anew from these wheels alone."""
    found: dict[str, dict[str, list[str]]] = {"sglang": {}, "vllm": {}}
    wheels.sort(key=lambda name: [int(part) for part in Path(name).name.split("-")[1].split(".")[:3]])
    for wheel in wheels:
        program, version = Path(wheel).name.split("-")[:2]
        program = program.partition("_")[0]
        with ZipFile(wheel) as archive:
            texts = [archive.read(name).decode() for name in archive.namelist() if SOURCES.fullmatch(name)]
        for name in sorted({name for text in texts for name in names(text)}):
            if name not in load(program).by_name:
                seen = found[program].setdefault(name, [])
                seen[:] = [*seen[:1], version]
    (ROOT / "pdctl" / "flags" / "tables" / "older.json").write_text(text_of(found), encoding="utf-8")
    return 0


def text_of(found: dict[str, dict[str, list[str]]]) -> str:
    """JSON, a line a flag."""
    programs = []
    for program, flags in found.items():
        lines = ",\n".join(f" {json.dumps(name)}: {json.dumps(seen)}" for name, seen in sorted(flags.items()))
        programs.append(f"{json.dumps(program)}: {{\n{lines}\n}}")
    return "{\n" + ",\n".join(programs) + "\n}\n"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
