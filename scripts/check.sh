#!/usr/bin/env bash
# Lint, types, walls, the templates, styles and scripts of pages, the citation, and the files of the service that hosts the project.
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
check-jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/*.yml
check-jsonschema --quiet --builtin-schema vendor.citation-file-format --default-filetype yaml CITATION.cff
check-jsonschema --quiet --builtin-schema vendor.dependabot .github/dependabot.yml
check-jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/bug.yml .github/ISSUE_TEMPLATE/feature.yml
check-jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
