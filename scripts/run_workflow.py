"""Run the commands of workflows here, as they stand: the steps with `run`, job after job, each in bash as on a runner.

``python scripts/run_workflow.py .github/workflows/checks.yml [--job quick] [--list]``. Steps with `uses` prepare a
runner, and those with `if` are for the service alone; both are named and left out. The first command that fails ends
the run with its exit code.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parents[1]


def commands(workflow: Path, job: str | None) -> Iterator[tuple[str, str | None, str]]:
    """Yield the name of a job, a command or None, and what the step says otherwise."""
    for name, body in yaml.safe_load(workflow.read_text())["jobs"].items():
        if job not in (None, name):
            continue
        for step in body["steps"]:
            if "run" in step and "if" not in step:
                yield name, step["run"], step.get("name", "")
            else:
                yield name, None, step.get("uses") or f"{step['run'].strip()} (if {step['if']})"


def main() -> int:
    """Run the commands; return the exit code of the first one that fails, else 0."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("workflow", type=Path, nargs="+")
    parser.add_argument("--job", help="this one alone; default: all")
    parser.add_argument("--list", action="store_true", help="print the commands and run none")
    options = parser.parse_args()
    for workflow in options.workflow:
        for job, command, text in commands(workflow, options.job):
            print(f"{workflow.name} {job}: {command.strip() if command else f'left out: {text}'}", flush=True)
            if command is None or options.list:
                continue
            code = subprocess.run(["bash", "-eo", "pipefail", "-c", command], check=False, cwd=ROOT).returncode
            if code:
                return code
    return 0


if __name__ == "__main__":
    sys.exit(main())
