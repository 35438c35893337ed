#!/bin/sh
# The real engines: build their environments (cached by lock hash), then run the tests that need them.
# Usage: tests/engines/run.sh [pytest arguments, a file among them]. All of it is about 20 minutes on two cores once the
# environments are built.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=.venv/bin/python
"$PYTHON" tools/engine_envs.py sglang vllm
[ $# -gt 0 ] || set -- tests/engines tests/oracle
exec nice -n 5 "$PYTHON" -m pytest -m engines -p no:xdist --timeout=900 "$@"
