"""Errors of the transfer core.

TransferError                   code, message, cause
├── ManifestError               a manifest that cannot be used: source, path, reason
├── PlanError                   two layouts for which no plan exists
├── BindError                   regions or index lists that do not fit the plan
├── FabricError                 a fabric that cannot start, register, connect or write
└── SessionError                a request that ended without success: code, side
"""


class TransferError(Exception):
    """Base of every error that the transfer core raises on purpose."""

    code: str = "PD4000"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        if code is not None:
            self.code = code


class ManifestError(TransferError):
    """A document that is not a usable manifest: which source, where in it, and why."""

    code = "PD0021"

    def __init__(self, source: str, path: str, reason: str, *, code: str | None = None) -> None:
        super().__init__(f"{source}: {path or '$'}: {reason}", code=code)
        self.source = source
        self.path = path
        self.reason = reason


class PlanError(TransferError):
    """No plan exists for these two layouts."""

    code = "PD1004"


class BindError(TransferError):
    """Regions or index lists that do not fit the plan they are bound to."""

    code = "PD1031"


class FabricError(TransferError):
    """A fabric that cannot start, register, connect or write."""

    code = "PD4010"


class SessionError(TransferError):
    """A request that ended without success. `side` is the side that is to blame."""

    code = "PD4000"

    def __init__(self, message: str, *, code: str, side: str) -> None:
        super().__init__(message, code=code)
        self.side = side
