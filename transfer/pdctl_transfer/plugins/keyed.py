"""`python -m pdctl_transfer.plugins.keyed MODULE ARGS…`: an engine whose API key no command line shows.

SGLang takes its key as a flag only, and everybody on a host can read a command line. So the key comes in the
environment, which nobody else can read, and becomes a flag within the process.
"""

import os
import runpy
import sys
from typing import Final

VARIABLE: Final = "PDCTL_API_KEY"


def main() -> None:
    """Become the engine."""
    module, *words = sys.argv[1:]
    key = os.environ.pop(VARIABLE, None)
    sys.argv = [module, *words, *(["--api-key", key] if key else [])]
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
