#!/usr/bin/env bash
# Lint, types, walls, and the templates, styles and scripts of pages.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh
ensure_venv
ruff check .
ruff format --check .
mypy
lint-imports
biome ci --colors=off --error-on-warnings
djlint ms_recover --lint --quiet
