#!/bin/sh
# Installs what requirements.lock pins and the three packages into an environment of its own, and writes what that holds
# to build/sbom.json (CycloneDX). The tool that writes it lives in another environment, so that it is not in the list.
set -eu
BASE=.venv/bin/python WORK=build/sbom
rm -rf "$WORK/env"
mkdir -p "$WORK"
[ -x "$WORK/tool/bin/cyclonedx-py" ] || {
  "$BASE" -P -m venv "$WORK/tool"
  "$WORK/tool/bin/python" -P -m pip --no-input -q install 'cyclonedx-bom>=7,<8'
}
"$BASE" -P -m venv "$WORK/env"
"$WORK/env/bin/python" -P -m pip --no-input -q install --require-hashes -r requirements.lock
"$WORK/env/bin/python" -P -m pip --no-input -q install --no-deps ./transfer ./topology .
"$WORK/env/bin/python" -P -m pip --no-input -q uninstall -y pip setuptools
"$WORK/tool/bin/cyclonedx-py" environment --output-reproducible --pyproject pyproject.toml -o build/sbom.json "$WORK/env"
echo "build/sbom.json: $(grep -c '"purl"' build/sbom.json) components" >&2
