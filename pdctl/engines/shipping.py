"""Carrying the transfer core into other people's environments: a wheel, unpacked into a folder beside them.

The core is installed nowhere: its folder goes on the engine's PYTHONPATH, so the environment stays as its owner built
it, and removing the folder removes the core. The folder is named by the digest of its content.
"""

import base64
import csv
import hashlib
import io
import os
import shutil
import subprocess
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import Final

from pdctl.errors import GateError
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


def digest_of(files: Mapping[str, bytes]) -> str:
    """One digest over paths and contents, in order: equal for equal cores, wherever they lie."""
    total = hashlib.sha256()
    for path, data in sorted(files.items()):
        total.update(f"{path}\0{hashlib.sha256(data).hexdigest()}\n".encode())
    return total.hexdigest()


def core_folder(cache: Path | None = None) -> Path:
    """Where the core that this pdctl carries lies on a host, shipped or not yet."""
    base = cache or Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser()
    return base / "pdctl" / "core" / f"{__version__}-{digest_of(contents())[:16]}"


def wheel() -> bytes:
    """The wheel itself, the same bytes every time."""
    files = contents()
    record = io.StringIO()
    rows = csv.writer(record, lineterminator="\n")
    for path, data in files.items():
        value = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        rows.writerow((path, f"sha256={value}", len(data)))
    info = f"{PACKAGE}-{__version__}.dist-info/RECORD"
    rows.writerow((info, "", ""))
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path, data in {**files, info: record.getvalue().encode()}.items():
            archive.writestr(zipfile.ZipInfo(path, _EPOCH), data)
    return target.getvalue()


def install(cache: Path | None = None) -> Path:
    """Unpack the wheel into its folder, in one rename; a complete folder is left as it is."""
    folder = core_folder(cache)
    if folder.is_dir():
        return folder
    folder.parent.mkdir(parents=True, exist_ok=True)
    staging = Path(tempfile.mkdtemp(prefix=".core-", dir=folder.parent))
    staging.chmod(0o755)
    try:
        with zipfile.ZipFile(io.BytesIO(wheel())) as archive:
            archive.extractall(staging)
        try:
            staging.rename(folder)
        except OSError:  # another process was first, with the same content
            if not folder.is_dir():
                raise
    finally:
        shutil.rmtree(staging, ignore_errors=True)
    return folder


#: Run by the engine's own interpreter: what it would import, and what it would find as a plugin.
_PROBE: Final = """\
import hashlib, importlib.metadata, importlib.util, pathlib, sys
spec = importlib.util.find_spec("pdctl_transfer")
root = pathlib.Path(spec.origin).parent.parent if spec and spec.origin else None
if root is None:
    sys.exit("pdctl_transfer cannot be imported")
names = [p.relative_to(root).as_posix() for p in sorted((root / "pdctl_transfer").rglob("*"))
         if p.is_file() and p.suffix in (".py", ".typed", ".json")]
info = [f"{d}/{n}" for d in (sys.argv[1],) for n in ("METADATA", "WHEEL", "entry_points.txt")]
total = hashlib.sha256()
for name in sorted(names + info):
    total.update(f"{name}\\0{hashlib.sha256((root / name).read_bytes()).hexdigest()}\\n".encode())
points = importlib.metadata.entry_points(group=sys.argv[2])
if "pdctl" not in points.names:
    sys.exit(f"no plugin of the name pdctl in {sys.argv[2]}")
for need in ("numpy", "msgspec"):
    if importlib.util.find_spec(need) is None:
        sys.exit(f"the engine's environment has no {need}, which the transfer core needs")
print(total.hexdigest())
"""


def verify(python: str, folder: Path, group: str) -> str:
    """The digest of the core that this interpreter would load. Raises GateError (PD3113) unless it is ours."""
    expected = digest_of(contents())
    info = f"{PACKAGE}-{__version__}.dist-info"
    try:
        done = subprocess.run(
            code(python, _PROBE, info, group),
            env=environment(
                {"PATH": os.environ.get("PATH", ""), "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
            ),
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
    if found != expected:
        raise _mismatch(python, f"it would load sha256:{found[:16]}, not sha256:{expected[:16]}, from {folder}")
    return found


def _mismatch(python: str, reason: str) -> GateError:
    hint = "remove the folder and run `pdctl up` again; a pdctl_transfer on the engine's own PYTHONPATH comes first"
    return GateError(f"{python}: {reason}", code="PD3113", hint=hint)
