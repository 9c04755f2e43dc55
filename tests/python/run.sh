#!/usr/bin/env bash
# run.sh SOURCE BUILD: installs the package into BUILD/site and runs its tests. Without a network and without an environment from
# before, the torch part is left out, then everything (exit 77 = skipped, the last line says why).
set -euo pipefail
source=$1 build=$2
if ! venv=$("$source/tools/python-env" 2>"$build/python-env.log"); then
  if ! venv=$("$source/tools/python-env" --no-torch 2>>"$build/python-env.log"); then
    cat "$build/python-env.log"
    echo "no Python environment could be made (tools/python-env)"
    exit 77
  fi
fi
# The release build has compiled the same sources already.
if command -v ccache >/dev/null; then export CMAKE_CXX_COMPILER_LAUNCHER=ccache; fi
site=$build/site
rm -rf "$site"
"$venv/bin/pip" install --quiet --disable-pip-version-check --no-build-isolation --no-deps --target "$site" \
  --config-settings build-dir="$build/wheel" "$source"
size=$(du -sm "$site" | cut -f1)
if [ "$size" -gt 20 ]; then
  echo "the installed package takes $size MB; the limit is 20"
  exit 1
fi
cd "$build"
PYTHONPATH=$site exec "$venv/bin/python" -m pytest -q -p no:cacheprovider "$source/python/tests"
