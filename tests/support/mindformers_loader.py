"""MindFormers in an environment of its own, and what the trees that its own code wrote hold."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import re
import subprocess
import sys
import sysconfig
import threading
import venv
from pathlib import Path
from typing import Any

import pytest
import safetensors.numpy

from tests.support.iteration_trees import unpack
from tests.support.mindformers import truth

ROOT = Path(__file__).resolve().parents[2]
NO_INDEX = re.compile(r"after connection broken by|NewConnectionError|Name or service not known|ConnectTimeoutError")
NEEDED = [
    "deprecated",
    "wrapt",
    "regex",
    "requests",
    "certifi",
    "charset-normalizer",
    "idna",
    "pyyaml",
    "urllib3",
    "tokenizers",
]
"""Third-party packages that the loader's modules import; MindFormers as a whole requires thirty more."""

SCALARS = {"epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "scale_sense"}
"""Values in slices that are no part of the model."""


class MindFormers:
    """A release of MindFormers over the MindSpore of this environment, and a process that answers for its loader."""

    def __init__(self, home: Path, version: str) -> None:
        self.version = version
        self._output = home / "output"
        environment = home / "venv"
        venv.create(environment, with_pip=False)
        python = environment / "bin" / "python"
        pip = [sys.executable, "-m", "pip", "--python", python, "--disable-pip-version-check", "install", "--quiet"]
        command = [*pip, "--retries", "1", "--no-deps", f"mindformers=={version}", *NEEDED]
        installed = subprocess.run(command, capture_output=True, text=True, timeout=200, check=False)
        if installed.returncode and NO_INDEX.search(installed.stdout + installed.stderr):
            pytest.skip("pip reaches no package index")
        assert installed.returncode == 0, installed.stderr
        (site,) = environment.glob("lib/python*/site-packages")
        (site / "running.pth").write_text(sysconfig.get_paths()["purelib"] + "\n")  # MindSpore itself takes gigabytes
        self._log = (home / "log").open("w")
        self._child = subprocess.Popen(
            [python, ROOT / "tests" / "support" / "mindformers_child_process.py"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            text=True,
            cwd=home,
            env={**os.environ, "GLOG_v": "3", "PYTHONDONTWRITEBYTECODE": "1"},
        )
        self._answers: queue.Queue[str] = queue.Queue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        ready = self._answers.get(timeout=120)
        assert ready == "ready\n", (home / "log").read_text()[-2000:]

    def resume_new(self, root: Path, ranks: int, target: Path | None = None) -> Any:
        """Resume all ranks from a tree of weights 2.0, or return the error; of the job of a `target` metadata.json."""
        return self._ask(format="new", root=str(root), ranks=ranks, target=str(target) if target else None)

    def resume_legacy(self, checkpoints: Path, ranks: int, form: str) -> Any:
        """Resume all ranks from the directory that holds the ``rank_N`` of a legacy tree, or return the error."""
        return self._ask(format="legacy", root=str(checkpoints), ranks=ranks, form=form)

    def close(self) -> None:
        self._child.stdin.close()
        try:
            self._child.wait(30)
        finally:
            self._child.kill()
            self._child.wait(30)
            self._reader.join(30)
            self._child.stdout.close()
            self._log.close()

    def _ask(self, **request: Any) -> Any:
        self._child.stdin.write(json.dumps({**request, "output": str(self._output)}) + "\n")
        self._child.stdin.flush()
        answer = self._answers.get(timeout=120)
        assert answer, f"the process ended with {self._child.wait(30)}"
        return json.loads(answer)

    def _read(self) -> None:
        for line in self._child.stdout:
            self._answers.put(line)
        self._answers.put("")


def copy_tree(name: str, target: Path, version: str) -> Path:
    """Write a tree that MindFormers wrote, as `version` would have written it."""
    unpack(name, target)
    if version == "2.0.0":  # knows no consumed_samples, and refuses keys that it does not know
        for path in target.rglob("common.json"):
            common = json.loads(path.read_text())
            del common["consumed_samples"]
            path.write_text(json.dumps(common, indent=4))
    return target


def true_contents(name: str, step: int, scratch: Path) -> dict[str, dict[str, str]]:
    """Return the SHA-256 of each parameter's contents on each rank, from the files as MindFormers wrote them."""
    whole = unpack(name, scratch / f"{name}-whole") / f"iteration_{step:08d}"
    contents: dict[str, dict[str, str]] = {}
    for file, facts in truth(name)["files"].items():
        contents.setdefault(str(facts["rank"]), {}).update(digests(whole / file))
    return contents


def digests(path: Path) -> dict[str, str]:
    """Return the SHA-256 of each parameter's contents in a file, without the scalars."""
    values = safetensors.numpy.load_file(path).items()
    return {name: hashlib.sha256(value.tobytes()).hexdigest() for name, value in values if name not in SCALARS}


def tensors(answer: Any) -> dict[str, dict[str, str]]:
    """Return the digest of each parameter that each rank loaded, without the scalars."""
    assert "error" not in answer, answer["error"]
    loaded = answer["tensors"].items()
    return {rank: {name: value for name, value in own.items() if name not in SCALARS} for rank, own in loaded}
