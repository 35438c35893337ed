"""Carrying the transfer core into other people's environments: one file beside them, on the engine's PYTHONPATH.

The core is installed nowhere, so the environment stays as its owner built it, and removing the file removes the core.
It is the wheel itself, from which Python imports as from a folder. In a folder there could be more than the wheel
holds: byte code that no source stands for, a library beside a module, a `sitecustomize.py`. In one file there is
nothing but its bytes, and one digest says which they are.
"""

import base64
import hashlib
import io
import os
import subprocess
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pdctl.engines.cache import cache_root, private_folder, replace
from pdctl.errors import GateError
from pdctl.files import read_own
from pdctl.python import code, environment
from pdctl_transfer import __version__

PACKAGE: Final = "pdctl_transfer"
ENTRY_POINTS: Final = """\
[sglang.srt.plugins]
pdctl = pdctl_transfer.plugins.sglang:register

[vllm.general_plugins]
pdctl = pdctl_transfer.plugins.vllm:register
"""
_METADATA: Final = f"Metadata-Version: 2.1\nName: pdctl-transfer\nVersion: {__version__}\n"
_WHEEL: Final = "Wheel-Version: 1.0\nGenerator: pdctl\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
_EPOCH: Final = (2020, 1, 1, 0, 0, 0)


@cache
def contents() -> Mapping[str, bytes]:
    """What the wheel holds, by path: the package as this pdctl runs it, and its metadata without RECORD.

    Read once a process, so that one `up` speaks of one core.
    """
    import pdctl_transfer

    root = Path(pdctl_transfer.__file__).parent
    info = f"{PACKAGE}-{__version__}.dist-info"
    files = {f"{PACKAGE}/{path.relative_to(root).as_posix()}": path.read_bytes() for path in _sources(root)}
    extra = {"METADATA": _METADATA, "WHEEL": _WHEEL, "entry_points.txt": ENTRY_POINTS}
    return files | {f"{info}/{name}": text.encode() for name, text in extra.items()}


def _sources(root: Path) -> Iterator[Path]:
    return (p for p in sorted(root.rglob("*")) if p.is_file() and p.suffix in (".py", ".typed", ".json"))


@cache
def wheel() -> bytes:
    """The wheel itself, the same bytes every time: nothing is compressed, no time of day is in it."""
    import csv
    import zipfile

    files = contents()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path, data in files.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((path, f"sha256={value}", len(data)))
    info = f"{PACKAGE}-{__version__}.dist-info/RECORD"
    rows.writerow((info, "", ""))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_STORED) as archive:
        for path, data in {**files, info: record.getvalue().encode()}.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data)
    return target.getvalue()


@cache
def digest() -> str:
    """The SHA-256 of the wheel: equal for equal cores, wherever they lie."""
    return hashlib.sha256(wheel()).hexdigest()


def core_file() -> Path:
    """Where the core that this pdctl carries lies on a host, shipped or not yet."""
    return cache_root() / "core" / f"{PACKAGE}-{__version__}-{digest()[:16]}.whl"


def install() -> Path:
    """Put the core in its place; one that is there is believed only if it is ours and has these very bytes.

    Raises GateError: PD3114 for a folder that others can write in, PD3115 for one that takes no file.
    """
    path = core_file()
    private_folder(path.parent.parent)
    private_folder(path.parent)
    if read_own(path) != wheel():
        replace(path, wheel())
    return path


#: Run by the engine's own interpreter: what it would import, and what it would find as a plugin.
_PROBE: Final = """\
if sys.version_info < (3, 11):
    sys.exit("Python %d.%d: the transfer core needs 3.11 or later" % sys.version_info[:2])
import hashlib, importlib.metadata, importlib.util, pathlib
spec = importlib.util.find_spec("pdctl_transfer")
if spec is None:
    sys.exit("pdctl_transfer cannot be imported")
archive = getattr(spec.loader, "archive", None)
if archive != sys.argv[1]:
    sys.exit(f"it would load another pdctl_transfer: {spec.origin}")
if "pdctl" not in importlib.metadata.entry_points(group=sys.argv[2]).names:
    sys.exit(f"no plugin of the name pdctl in {sys.argv[2]}")
for need in ("numpy", "msgspec"):
    if importlib.util.find_spec(need) is None:
        sys.exit(f"the engine's environment has no {need}, which the transfer core needs")
import pdctl_transfer
print(hashlib.sha256(pathlib.Path(archive).read_bytes()).hexdigest())
"""


def verify(python: str, path: Path, group: str) -> str:
    """The digest of the core that this interpreter would run. Raises GateError (PD3113) unless it is ours."""
    try:
        done = subprocess.run(
            code(python, _PROBE, str(path), group),
            env=environment({"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(path)}),
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as failure:
        raise _mismatch(python, str(failure)) from failure
    if done.returncode:
        raise _mismatch(python, (done.stderr.strip().splitlines() or [f"exit status {done.returncode}"])[-1])
    found = done.stdout.strip()
    if found != digest():
        raise _mismatch(python, f"it would load sha256:{found[:16]}, not sha256:{digest()[:16]}, from {path}")
    return found


def _mismatch(python: str, reason: str) -> GateError:
    hint = "run `pdctl up` again; look for a pdctl_transfer that the engine's environment loads by itself"
    return GateError(f"{python}: {reason}", code="PD3113", hint=hint)
