"""Build the environments of the real engines: `python tools/engine_envs.py sglang vllm`.

Each engine gets a virtual environment of its own under `$XDG_CACHE_HOME/pdctl/envs`, named by the hash of everything
that goes into it: the lock file (every distribution pinned, installed without dependency resolution) and the CPU shims
laid over site-packages. A built one is reused as it is; `envs/sglang` and `envs/vllm` are links to the current ones.
Prints `NAME PYTHON` a line; `--print-python` only asks for one that exists, and builds nothing.
"""

import argparse
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pdctl.python import code, module

TESTS = Path(__file__).resolve().parent.parent / "tests" / "engines"
COMPLETE = ".complete"


@dataclass(frozen=True)
class Environment:
    """What goes into one engine's environment."""

    name: str
    probe: str
    """Run in the built environment; a non-zero exit means it is not usable."""

    @property
    def lock(self) -> Path:
        return TESTS / "locks" / f"{self.name}.txt"

    @property
    def overlay(self) -> Path:
        return TESTS / "shims" / self.name

    def digest(self) -> str:
        parts = hashlib.sha256(f"python {sys.version_info.major}.{sys.version_info.minor}\n".encode())
        parts.update(self.lock.read_bytes())
        for file in self.overlay_files():
            parts.update(f"\n{file.relative_to(self.overlay)}\n".encode() + file.read_bytes())
        return parts.hexdigest()[:16]

    def overlay_files(self) -> list[Path]:
        return sorted(f for f in self.overlay.rglob("*") if f.is_file() and "__pycache__" not in f.parts)

    def folder(self) -> Path:
        return envs() / f"{self.name}-{self.digest()}"


ENVIRONMENTS = {
    "sglang": Environment("sglang", "import sglang.srt.server_args, sglang_router, smg, mooncake.engine, nixl._api"),
    "vllm": Environment("vllm", "import vllm, vllm_router, mooncake.engine, nixl._api; vllm.EngineArgs"),
}


def envs() -> Path:
    """Where environments are kept."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "pdctl" / "envs"


def python_of(folder: Path) -> Path | None:
    """The interpreter of a complete environment, else None."""
    return folder / "bin" / "python" if (folder / COMPLETE).is_file() else None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Only one process builds an environment; the others wait and find it built."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def build(environment: Environment) -> Path:
    """Build the environment unless it is complete; returns its interpreter. Raises CalledProcessError."""
    folder = environment.folder()
    with locked(envs() / f".{environment.name}.lock"):
        python = python_of(folder)
        if python is None:
            shutil.rmtree(folder, ignore_errors=True)
            python = folder / "bin" / "python"
            note(f"building {folder.name} (a few minutes, some GB)")
            run(*module(sys.executable, "venv", str(folder)))
            run(*module(str(python), "pip", "install", "--quiet", "--no-deps", "-r", str(environment.lock)))
            lay_over(environment, python)
            run(*code(str(python), environment.probe), env=os.environ | {"SGLANG_USE_CPU_ENGINE": "1"})
            (folder / COMPLETE).touch()
        link(folder, envs() / environment.name)
    return python


def lay_over(environment: Environment, python: Path) -> None:
    """Copy the shims into site-packages."""
    query = "import sysconfig; print(sysconfig.get_paths()['purelib'])"
    site = Path(subprocess.run(code(str(python), query), check=True, capture_output=True, text=True).stdout.strip())
    for file in environment.overlay_files():
        target = site / file.relative_to(environment.overlay)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)


def link(folder: Path, name: Path) -> None:
    """Point the link at the folder, in one step."""
    staging = name.with_name(f".{name.name}.{os.getpid()}")
    staging.symlink_to(folder.name)
    staging.replace(name)


def run(*command: str, env: dict[str, str] | None = None) -> None:
    """Run a step; its output goes to stderr, so that stdout holds only the answer."""
    subprocess.run(command, check=True, stdout=sys.stderr, env=env)


def note(text: str) -> None:
    """Progress, on stderr."""
    print(text, file=sys.stderr, flush=True)


def main(argv: list[str] | None = None) -> int:
    """Build or find the environments named; 0, or 1 when one cannot be had."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("name", nargs="+", choices=sorted(ENVIRONMENTS))
    parser.add_argument("--print-python", action="store_true", help="only print the interpreters, build nothing")
    options = parser.parse_args(argv)
    for name in options.name:
        environment = ENVIRONMENTS[name]
        if options.print_python:
            python = python_of(environment.folder())
            if python is None:
                note(f"{name}: not built; run: python tools/engine_envs.py {name}")
                return 1
            print(python)
            continue
        try:
            print(name, build(environment), flush=True)
        except subprocess.CalledProcessError as failure:
            note(f"{name}: exit status {failure.returncode} of: {' '.join(failure.cmd)}")
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
