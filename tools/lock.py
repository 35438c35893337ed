"""Write requirements.lock: what the default install takes from the package index, every file by its hash.

The default install: the three packages, Mooncake for hosts without CUDA, and a router. `pip-compile` resolves it, in
an environment of its own under build/. `--check` resolves nothing: it says whether the lock holds every requirement.
"""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

from pdctl.python import environment, module

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements.lock"
TOOL = ROOT / "build" / "tools" / "lock"
PROJECTS = {"": ("router",), "transfer": ("cpu",), "topology": ()}
"""Folders of the packages, and the extras of each that the default install takes."""
HEAD = """\
# The default install, for Linux on x86-64 and Python 3.11. `make lock` writes it; then:
#   pip install --require-hashes -r requirements.lock && pip install --no-deps ./transfer ./topology .
"""


def wanted() -> list[str]:
    """The requirements of the three packages that are not one another."""
    found: set[str] = set()
    for folder, extras in PROJECTS.items():
        project = tomllib.loads((ROOT / folder / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        found.update(project["dependencies"])
        for extra in extras:
            found.update(project["optional-dependencies"][extra])
    return sorted(one for one in found if not one.startswith("pdctl-"))


def missing(lock: str) -> list[str]:
    """Requirements whose package the lock does not pin."""
    pinned = set(re.findall(r"^([a-z0-9.-]+)==", lock, re.MULTILINE))
    return [one for one in wanted() if re.split(r"[<>=!~ ;\[]", one)[0].lower().replace("_", "-") not in pinned]


def compile_lock() -> None:
    """Resolve and write the lock. Raises CalledProcessError."""
    python = TOOL / "bin" / "python"
    if not python.exists():
        _run(*module(sys.executable, "venv", str(TOOL)))
        _run(*module(str(python), "pip", "install", "--quiet", "pip-tools>=7.4,<8"))
    source = TOOL / "requirements.in"
    source.write_text("\n".join(wanted()) + "\n", encoding="utf-8")
    target = TOOL / "requirements.txt"
    quiet = ("--no-header", "--no-annotate", "--no-emit-index-url", "--no-emit-find-links", "--no-emit-trusted-host")
    words = (
        "compile",
        "--quiet",
        "--strip-extras",
        "--generate-hashes",
        "--upgrade",
        *quiet,
        "--output-file",
        str(target),
    )
    _run(*module(str(python), "piptools", *words, str(source)))
    pins = re.sub(r"^--.*\n", "", target.read_text(encoding="utf-8"), flags=re.MULTILINE)
    LOCK.write_text(HEAD + pins.lstrip(), encoding="utf-8")


def _run(*command: str) -> None:
    subprocess.run(command, check=True, env=environment(os.environ))


if __name__ == "__main__":
    if "--check" in sys.argv:
        sys.exit("\n".join(f"requirements.lock has no {one}: run make lock" for one in missing(LOCK.read_text())))
    compile_lock()
