"""`python -m pdctl` and the `pdctl` script."""

import sys


def main() -> int:
    """Entry point of the script: the exit status of the command that was run."""
    from pdctl.cli.app import main as run

    return run(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
