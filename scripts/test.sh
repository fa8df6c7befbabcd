#!/usr/bin/env bash
# Run the tests: all of them (under 40 minutes on 2 cores), or those that need no MindSpore and start no program (under 4).
# Three processes run files side by side: many tests wait, for disks, time limits and other processes.
#
#   test.sh [--quick] [arguments for pytest]      for example: test.sh --quick tests/unit/planning -x
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
source scripts/venv.sh
source scripts/servers.sh
if [[ " $* " == *" --quick "* ]]; then
  ensure_venv quick
else
  ensure_venv
  ensure_servers
fi
exec python -m pytest --numprocesses 3 --dist loadfile --no-loadscope-reorder "$@"
