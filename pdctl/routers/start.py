"""`python -m pdctl.routers.start MODULE ARGS…`: a router whose keys no command line shows.

The routers take keys as flags only, and everybody on a host can read a command line. So they come in the environment,
which nobody else can read, and become flags within the process.
"""

import os
import sys
from typing import Final

API_KEY: Final = "PDCTL_API_KEY"
"""What clients must send, and what the router sends to engines."""
CONTROL_KEY: Final = "PDCTL_CONTROL_KEY"
"""What the calls that change the list of workers must send."""


def keyed(words: list[str], environ: dict[str, str]) -> list[str]:
    """The words with the keys of the environment as flags behind them."""
    api, control = environ.get(API_KEY), environ.get(CONTROL_KEY)
    flags = ["--api-key", api] if api else []
    return [*words, *flags, *(["--control-plane-api-keys", f"pdctl:pdctl:admin:{control}"] if control else [])]


def main() -> None:
    """Become the router."""
    import runpy

    module, words = sys.argv[1], keyed(sys.argv[2:], dict(os.environ))
    for name in (API_KEY, CONTROL_KEY):
        os.environ.pop(name, None)
    sys.argv = [module, *words]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
