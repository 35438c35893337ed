"""`python -m pdctl` and the `pdctl` script."""

import sys

INTERRUPTED = 130


def main() -> int:
    """Entry point of the script: the exit status of the command that was run."""
    try:
        from pdctl.cli.streams import settle

        settle()
        from pdctl.cli.app import main as run

        return run(sys.argv[1:])
    except KeyboardInterrupt:  # while it imports, too
        return INTERRUPTED


if __name__ == "__main__":
    sys.exit(main())
