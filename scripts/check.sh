#!/usr/bin/env bash
# Lint, types and walls.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh
ensure_venv
ruff check .
ruff format --check .
mypy
lint-imports
