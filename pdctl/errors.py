"""Errors of pdctl, each with the exit status of the contract.

PdctlError                     exit 1   the tool itself or its surroundings failed
├── InputError                 exit 2   unusable input: file, line, key, found, expected
│   ├── FleetFileError
│   └── ConfigError                     a model config that is not understood: which key
├── GateError                  exit 3   a gate of `up` failed, a fleet is absent or degraded
├── FindingsError              exit 3   the report says which
├── HostError                  exit 1   a host that cannot be reached, or a command that cannot run there: which
├── OutputError                exit 1   standard output cannot be written
└── Interrupted                exit 130
"""


class PdctlError(Exception):
    """Base of every error that pdctl raises on purpose. `code` is a catalog code, `hint` says what to do."""

    exit_code = 1
    code: str = "PD0000"

    def __init__(self, message: str, *, code: str | None = None, hint: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        if code is not None:
            self.code = code


class InputError(PdctlError):
    """Input that cannot be used; `where` is `file:line`, a flag, or a file."""

    exit_code = 2
    code = "PD0001"

    def __init__(
        self, message: str, *, where: str | None = None, code: str | None = None, hint: str | None = None
    ) -> None:
        super().__init__(message, code=code, hint=hint)
        self.where = where


class FleetFileError(InputError):
    """A fleet file that cannot be used; `others` are further faults of the same file, in its order."""

    code = "PD0002"
    others: tuple["FleetFileError", ...] = ()


class ConfigError(InputError):
    """A model config that is not understood; the message names the key."""

    code = "PD0022"


class MalformedConfigError(ConfigError):
    """A config with a value that no engine would take: unusable, where one that is merely unknown is not."""


class UnknownDraftError(ConfigError):
    """A draft model whose config.json is not here: the model's own buffers are known all the same."""


class GateError(PdctlError):
    """A gate of `up` did not open, or the fleet is not what was asked for."""

    exit_code = 3
    code = "PD3000"


class FindingsError(PdctlError):
    """At least one finding that fails the command; the report was printed."""

    exit_code = 3


class HostError(PdctlError):
    """A host that cannot be reached, or where a command cannot be run."""

    code = "PD2201"


class OutputError(PdctlError):
    """Standard output is full, closed, or has lost its reader."""

    code = "PD0040"

    def __init__(self, message: str, *, reader_gone: bool = False) -> None:
        super().__init__(message, hint="what it was to say is lost; give it room, or another place")
        self.reader_gone = reader_gone


class Interrupted(PdctlError):
    """Ctrl-C or a termination signal; everything started was taken down."""

    exit_code = 130
    code = "PD3001"
