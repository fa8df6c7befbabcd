#!/usr/bin/env bash
# Build the source distribution and the wheel into dist/, check what an index would show, and try the wheel in a new environment.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
made=$(mktemp -d)
trap 'rm -rf "$made"' EXIT
python3 -m venv "$made/tools"
"$made/tools/bin/pip" install --quiet --disable-pip-version-check "build>=1.2" "twine>=5.1"
rm -rf dist
"$made/tools/bin/python" -m build --outdir dist .
"$made/tools/bin/twine" check --strict dist/*
python3 -m venv "$made/user"
"$made/user/bin/pip" install --quiet --disable-pip-version-check dist/*.whl
(cd "$made" && user/bin/recover-ckpt --version && user/bin/recover-ckpt --help > help.txt)
ls -l dist
