#!/bin/sh
# Makes the virtual environment of the Makefile: system libraries, a CPU torch first, then the three packages.
set -eu
PYTHON=${PYTHON:-python3} VENV=${VENV:-.venv}

"$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
  echo "setup: pdctl needs Python 3.11 or newer; $PYTHON is $("$PYTHON" -V 2>&1)" >&2
  echo "  name another one: make setup PYTHON=python3.11" >&2
  exit 1
}

# Libraries that Mooncake's engine links and no wheel carries.
need=
for pair in libibverbs.so.1:libibverbs1 libnuma.so.1:libnuma1 libcurl.so.4:libcurl4; do
  "$PYTHON" -c "import ctypes; ctypes.CDLL('${pair%%:*}')" 2>/dev/null || need="$need ${pair##*:}"
done
if [ -n "$need" ]; then
  if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
    echo "setup: installing$need" >&2
    log=$(mktemp)
    export DEBIAN_FRONTEND=noninteractive
    # shellcheck disable=SC2086
    apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends $need >"$log" 2>&1 ||
      { apt-get update >>"$log" 2>&1 && apt-get -o DPkg::Lock::Timeout=120 install -y --no-install-recommends $need >>"$log" 2>&1; } ||
      { tail -5 "$log" >&2; echo "setup: could not install$need" >&2; exit 1; }
    rm -f "$log"
  else
    echo "setup: Mooncake needs system libraries that are missing; install them and run this again:" >&2
    echo "  sudo apt-get install$need" >&2
    exit 1
  fi
fi

[ -x "$VENV/bin/python" ] || "$PYTHON" -m venv "$VENV"
pip() { "$VENV/bin/python" -m pip --no-input -q "$@"; }
echo "setup: installing into $VENV (a few minutes when nothing is cached)" >&2
pip install --upgrade 'pip>=25.1'
# First and alone, so that nothing after it chooses a CUDA build; the one without CUDA wherever pip can find it.
pip install 'torch==2.13.0+cpu' 2>/dev/null || pip install 'torch==2.13.0'
pip install -e './transfer[cpu,nixl]' -e ./topology -e '.[transfer-cpu,nixl,engine,router,vllm]' --group dev
