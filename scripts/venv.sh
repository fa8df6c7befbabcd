# Sourced by the other scripts: ensure_venv makes .venv with what setup.cfg declares, or reuses it when it is current.
# Needs only bash and a Python that MindSpore has wheels for (3.10 to 3.12).

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
VENV=$ROOT/.venv

find_python() {
  local candidate
  for candidate in python3 python3.12 python3.11 python3.10; do
    if "$candidate" -c 'import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] < (3, 13))' 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  echo "no python3 from 3.10 to 3.12 on PATH; MindSpore has wheels for these" >&2
  return 1
}

ensure_venv() {
  local python stamp
  python=$(find_python) || return 1
  stamp=$({ "$python" --version; echo "$ROOT"; cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml"; } | cksum)
  if [ "$(cat "$VENV/.current" 2>/dev/null)" != "$stamp" ]; then
    echo "Making $VENV with MindSpore and the development tools (some minutes the first time)" >&2
    rm -f "$VENV/.current"
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null || [ "$("$VENV/bin/python" --version)" != "$("$python" --version)" ]; then
      "$python" -m venv --clear "$VENV" || return 1
    fi
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools wheel || return 1
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$ROOT[mindspore,dev]" || return 1
    echo "$stamp" > "$VENV/.current"
  fi
  export PATH="$VENV/bin:$PATH"
}
