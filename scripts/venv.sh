# Sourced by the other scripts. Needs only bash and a Python.
#   ensure_venv          makes .venv with MindSpore and the development tools that setup.cfg declares; Python 3.10 to 3.12
#   ensure_venv quick    takes .venv where it is current, else makes .venv-quick without MindSpore; Python 3.10 or newer
# A folder that is current is used again.

ROOT=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)

find_python() {
  local newest=$1 candidate
  for candidate in python3 python3.13 python3.12 python3.11 python3.10; do
    if "$candidate" -c "import sys, venv; sys.exit(not (3, 10) <= sys.version_info[:2] <= (3, $newest))" 2>/dev/null; then
      command -v "$candidate"
      return
    fi
  done
  return 1
}

# The state that a folder made by this Python has to have been made in.
stamp_of() {
  { "$1" --version; echo "$ROOT"; cat "$ROOT/setup.cfg" "$ROOT/pyproject.toml"; } | cksum
}

is_current() {
  [ -n "$2" ] && [ "$(cat "$1/.current" 2>/dev/null)" = "$(stamp_of "$2")" ]
}

ensure_venv() {
  local python extras=mindspore,dev holds="MindSpore and the development tools (some minutes the first time)"
  VENV=$ROOT/.venv
  python=$(find_python 12) || true
  if [ "${1:-}" = quick ] && ! is_current "$VENV" "$python"; then
    VENV=$ROOT/.venv-quick extras=dev holds="the development tools"
    python=$(find_python 99) || true
  fi
  if [ -z "$python" ]; then
    echo "no python3 from 3.10 to 3.12 on PATH; MindSpore has wheels for these, and test.sh --quick takes newer ones" >&2
    return 1
  fi
  if ! is_current "$VENV" "$python"; then
    echo "Making $VENV with $holds" >&2
    rm -f "$VENV/.current"
    if ! "$VENV/bin/python" -c 'import pip' 2>/dev/null || [ "$("$VENV/bin/python" --version)" != "$("$python" --version)" ]; then
      "$python" -m venv --clear "$VENV" || return 1
    fi
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --upgrade pip setuptools wheel || return 1
    "$VENV/bin/python" -m pip install --quiet --disable-pip-version-check --editable "$ROOT[$extras]" || return 1
    stamp_of "$python" > "$VENV/.current"
  fi
  export PATH="$VENV/bin:$PATH"
}
