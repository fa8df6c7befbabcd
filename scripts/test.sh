#!/usr/bin/env bash
# All tests. Arguments go to pytest: scripts/test.sh -m "not mindspore and not packaging" runs the quick ones.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh
ensure_venv
exec python -m pytest "$@"
