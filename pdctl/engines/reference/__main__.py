"""`python -m pdctl.engines.reference`: an engine as a process."""

import os
import sys

# One thread: sums have one order, and engines share their machine with each other.
os.environ.setdefault("OMP_NUM_THREADS", "1")

from pdctl.engines.reference.arguments import parse_arguments
from pdctl.errors import PdctlError
from pdctl_transfer.errors import TransferError


def main() -> int:
    """Run until a signal ends it; returns the exit status of the contract."""
    options = parse_arguments(sys.argv[1:])
    try:
        from pdctl.engines.reference.serve import serve

        serve(options)
    except PdctlError as error:
        return _report(error.code, getattr(error, "where", None), error.message, error.hint, error.exit_code)
    except TransferError as error:
        return _report(error.code, None, error.message, None, 1)
    except ImportError as error:
        hint = "pip install 'pdctl[engine,transfer-cpu]'"
        return _report("PD3043", None, f"the reference engine needs a package that is not installed: {error}", hint, 1)
    return 0


def _report(code: str, where: str | None, message: str, hint: str | None, status: int) -> int:
    lines = [f"error {code} {where + '  ' if where else ''}{message}"]
    if hint:
        lines.append(f"  {hint}")
    sys.stderr.write("\n".join(lines) + "\n")
    return status


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    sys.stderr.flush()
    # NIXL crashes at interpreter exit once an agent existed, so leave without it; everything has been closed in order.
    os._exit(code)
