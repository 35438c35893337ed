"""What pdctl remembers of a fleet, under `$XDG_STATE_HOME/pdctl/<fleet>/`; plain JSON for anyone who debugs.

fleet.json          the phase reached, the units and their ports
lock                held by the `up` or `down` that is at work; the kernel drops it if that dies
secret              what the fleet's engines sign their transfers with, from the first `up` to `down`; mode 0600
control             the key of the router's control API, as long; mode 0600
units/<unit>/       the guard's record (state.json) and the unit's log
"""

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from msgspec import Struct

from pdctl.errors import GateError, PdctlError
from pdctl.launch import private, secret
from pdctl.launch.record import StateError, UnwritableError, read, write

UP, DOWN = "up", "down"
SCHEMA = "pdctl.state/v1"
ROUTER = "router"
"""Name and role of the router's unit."""


class UnreadableError(PdctlError):
    """Which fleets there are cannot be known."""

    code = "PD0042"


class UnitEntry(Struct, frozen=True):
    """A unit of the fleet as it was planned."""

    name: str
    role: str
    host: str
    ports: dict[str, int]
    ready_path: str = "/health"
    key_env: str | None = None
    """The environment variable with the key that it asks for."""
    keys: dict[str, str] = {}
    """What each of its ports asks for, by purpose: api_key, control_key, secret."""
    engine: str = ""
    """The engine's family, or the router's kind; empty in records of earlier versions."""
    core: str = "engine"
    """Who was to carry its state: engine, pdctl, auto."""

    @property
    def url(self) -> str:
        """The root of its HTTP endpoints."""
        return f"http://{self.host}:{self.ports['http']}"


class PhaseEntry(Struct, frozen=True):
    """How a phase of the last `up` went: done, doubtful, skipped or failed."""

    name: str
    outcome: str
    seconds: float
    note: str | None = None


class FleetState(Struct, frozen=True, kw_only=True):
    """The fleet as the last command left it. `phase` is `up`, `down`, or the phase that `up` is in or stopped at."""

    schema: str = SCHEMA
    fleet: str
    file: str
    digest: str
    pdctl: str
    phase: str
    since: float
    url: str | None = None
    units: tuple[UnitEntry, ...] = ()
    phases: tuple[PhaseEntry, ...] = ()
    converging: bool = False
    """The fleet was up when this `up` began: what serves is left alone when it fails."""


class FleetFolder:
    """The folder of one fleet."""

    def __init__(self, name: str, root: Path | None = None) -> None:
        self.name = name
        self.path = (root or state_root()) / name

    @property
    def _folders(self) -> tuple[Path, Path]:
        return self.path.parent, self.path

    @property
    def units(self) -> Path:
        """Where the units' folders lie."""
        return self.path / "units"

    def read(self) -> FleetState | None:
        """The fleet's state, or None where it was never up.

        Raises StateError (PD3005) for a damaged file, GateError (PD3014) for a folder that others may write.
        """
        private.check(*self._folders)
        try:
            state = read(self.path / "fleet.json", FleetState)
            if state is not None:
                _check(state, self.path / "fleet.json")
            return state
        except StateError as error:
            error.hint = f"`pdctl down {self.name}` ends what it may have described, and clears it"
            raise

    def write(self, state: FleetState) -> None:
        """Replace the fleet's state. Raises UnwritableError (PD3016) where it cannot be kept."""
        try:
            write(self.path / "fleet.json", state)
        except OSError as error:
            raise UnwritableError(self.path, error) from error

    def secret(self) -> str:
        """The secret that the fleet's engines share, made on first use. Raises UnwritableError (PD3016)."""
        try:
            return secret.kept(self.path / "secret")
        except OSError as error:
            raise UnwritableError(self.path, error) from error

    def known_secret(self) -> str:
        """The same without making one: a stand-in where there is none yet."""
        return secret.read(self.path / "secret") or "…"

    def known_control_key(self) -> str:
        """The same without making one."""
        return secret.read(self.path / "control") or "…"

    def control_key(self) -> str:
        """What the router's control API takes, made on first use. Raises UnwritableError (PD3016)."""
        try:
            return secret.kept(self.path / "control")
        except OSError as error:
            raise UnwritableError(self.path, error) from error

    def forget_secret(self) -> None:
        """The units are down: the next ones get others. Raises UnwritableError (PD3016)."""
        try:
            secret.forget(self.path / "secret")
            secret.forget(self.path / "control")
        except OSError as error:
            raise UnwritableError(self.path, error) from error

    def is_locked(self) -> bool:
        """Whether an `up` or `down` is at work on the fleet."""
        try:
            descriptor = os.open(self.path / "lock", os.O_RDWR)
        except OSError:
            return False
        try:
            return not _try_lock(descriptor)
        finally:
            os.close(descriptor)

    @contextmanager
    def lock(self, command: str) -> Iterator[None]:
        """Hold the fleet for `command`.

        Raises GateError: PD3004 if another holds it, PD3014 if others may write there; UnwritableError (PD3016).
        """
        try:
            private.make(*self._folders)
            descriptor = _open_lock(self.path)
        except OSError as error:
            raise UnwritableError(self.path, error) from error
        try:
            if not _try_lock(descriptor):
                holder = _note(descriptor) or "another command"
                hint = "wait for it, or interrupt it; an interrupted `up` cleans up after itself"
                raise GateError(f"{self.name}: {holder} is at work on this fleet", code="PD3004", hint=hint)
            with suppress(OSError):  # a note for whoever waits; `down` must work on a full disk, too
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"pdctl {command} (pid {os.getpid()})\n".encode(), 0)
            yield
        finally:
            os.close(descriptor)


def state_root() -> Path:
    """`$XDG_STATE_HOME/pdctl`; a relative value is ignored, as the XDG specification says.

    Raises UnreadableError (PD0042) for a user who has no home folder, as in some containers.
    """
    given = Path(os.environ.get("XDG_STATE_HOME", ""))
    if given.is_absolute():
        return given / "pdctl"
    try:
        return Path.home() / ".local/state/pdctl"
    except RuntimeError as error:
        raise UnreadableError("this user has no home folder", hint="set HOME, or XDG_STATE_HOME") from error


def known_fleets(root: Path | None = None) -> tuple[str, ...]:
    """The fleets that have state here. Raises UnreadableError (PD0042) where that cannot be known."""
    root = root or state_root()
    try:
        return tuple(sorted(entry.name for entry in root.iterdir() if entry.is_symlink() or entry.is_dir()))
    except FileNotFoundError:
        return ()
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        hint = "it must be a folder that you may search; XDG_STATE_HOME names another place"
        raise UnreadableError(f"{root}: cannot look for fleets here: {reason}", hint=hint) from error


def _check(state: FleetState, path: Path) -> None:
    """Raises StateError (PD3005) for a record that can be read and not be relied on."""
    if state.schema != SCHEMA:
        raise StateError(f"{path}: another pdctl wrote it: its schema is {state.schema!r}, this one reads {SCHEMA}")
    for unit in state.units:
        if "http" not in unit.ports:
            raise StateError(f"{path}: the state file is damaged: {unit.name} has no port")


def _open_lock(folder: Path) -> int:
    """The lock's file; where the disk takes no file its folder, for `down` must work there, too."""
    for path, flags in ((folder / "lock", os.O_RDWR | os.O_CREAT), (folder / "lock", os.O_RDONLY)):
        with suppress(OSError):
            return os.open(path, flags, 0o600)
    return os.open(folder, os.O_RDONLY)


def _note(descriptor: int) -> str:
    with suppress(OSError):
        return os.pread(descriptor, 100, 0).decode(errors="replace").strip()
    return ""


def _try_lock(descriptor: int) -> bool:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
