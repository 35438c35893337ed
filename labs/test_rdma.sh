#!/bin/sh
# Runs tests/rdma where there are verbs devices: three soft-RoCE ones in a virtual machine, see rdma_lab.sh.
# Debian 12 on amd64, root, and its package archive; nothing of the host's kernel is needed.
#   sh labs/test_rdma.sh [pytest arguments]
set -eu
cd "$(dirname "$0")/.."
python=$PWD/.venv/bin/python

# Debian's pyverbs is an extension for its own Python 3.11: only its folder goes on the path, not all of dist-packages.
# Elsewhere discovery by sysfs is compared with nothing, so the test of it fails and says so.
pyverbs=$PWD/build/pyverbs
mkdir -p "$pyverbs"
ln -sfn /usr/lib/python3/dist-packages/pyverbs "$pyverbs/pyverbs"

export LAB_EXTRA_PKGS="python3-pyverbs"
export LAB_TIMEOUT="${LAB_TIMEOUT:-1200}"
# the guest's root is read-only below a layer in memory: no cache files, temporary files in memory too
export PYTHONPATH="$pyverbs" PYTHONDONTWRITEBYTECODE=1 OMP_NUM_THREADS=1 LAB_ENV="PYTHONPATH PYTHONDONTWRITEBYTECODE OMP_NUM_THREADS CI"
CI="${CI:-}"; export CI
exec bash labs/rdma_lab.sh -- "$python" -m pytest -p no:cacheprovider -m rdma --timeout=400 tests/rdma "$@"
