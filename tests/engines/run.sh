#!/bin/sh
# The real engines: build their environments (cached by lock hash), then run the tests that need them.
# Usage: tests/engines/run.sh [full] [pytest arguments, a file among them]. All of it is about 25 minutes on two cores once the
# environments are built; `full` runs the long forms, too.
set -eu
cd "$(dirname "$0")/../.."
PYTHON=.venv/bin/python
WHICH="engines and not full"
if [ "${1:-}" = full ]; then WHICH=engines; shift; fi
"$PYTHON" tools/engine_envs.py sglang vllm
[ $# -gt 0 ] || set -- tests/engines tests/oracle
exec nice -n 5 "$PYTHON" -m pytest -m "$WHICH" -p no:xdist --timeout=900 "$@"
