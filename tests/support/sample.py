"""The sample, started through its scripts."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step

REPOSITORY = Path(__file__).parents[2]
SAMPLE = REPOSITORY / "sample_code" / "distribute_training_transformer"
SIZES = [
    *("--batch_size", "16", "--hidden_size", "32", "--ffn_size", "64", "--heads", "4", "--vocab_size", "128"),
    *("--epochs", "3", "--save_steps", "5"),
]
DONE = 24
LIMIT = 400


def run(command, cwd, limit=LIMIT, **environment):
    """Run a command with a time limit that no child outlives; return exit code and output."""
    process = subprocess.Popen(
        [str(part) for part in command],
        cwd=cwd,
        env={**os.environ, "PYTHON": sys.executable, "PYTHONPATH": str(REPOSITORY), **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        output, _ = process.communicate(timeout=limit)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait(timeout=10)
    return process.returncode, output


def make_pairs(folder):
    path = folder / "pairs.txt"
    code, output = run([sys.executable, SAMPLE / "make_dataset.py", path, "--lines", 128, "--words", 100], folder)
    assert code == 0, output
    return path


def script(name, pairs, output, *options, ranks=4, mp=2):
    """Run one of the scripts to its end; return exit code and output.

    Once more from where it began when a rank crashed in MindSpore, which may happen while its threads end.
    """
    command = ["bash", REPOSITORY / "scripts" / f"run_parallel_{name}_ckpt.sh", pairs, *SIZES, *options]
    environment = {"RANK_SIZE": str(ranks), "MP": str(mp), "OUTPUT_DIR": str(output), "TRAIN_TIMEOUT": str(LIMIT - 30)}
    before = output.with_name(f"{output.name}-before")
    if output.exists():
        shutil.copytree(output, before)
    code, text = run(command, output.parent, **environment)
    if code == 128 + signal.SIGSEGV:
        shutil.rmtree(output)
        if before.exists():
            shutil.copytree(before, output)
        code, text = run(command, output.parent, **environment)
    if before.exists():
        shutil.rmtree(before)
    return code, text


def losses(output, rank):
    """Losses of the last process of a rank, to the last bit."""
    lines = (output / f"ckpt_dir{rank}" / f"loss{rank}.jsonl").read_text().splitlines()
    records = [json.loads(line) for line in lines]
    return {
        Step(record["epoch"], record["step"]): record["loss"]
        for record in records
        if record["process"] == records[-1]["process"]
    }


def slices(output, rank, form="ckpt"):
    return {path.name: path.read_bytes() for path in (output / f"ckpt_dir{rank}").glob(f"*-*.{form}")}


def manifests(output, rank, form="ckpt"):
    found = [read_manifest(path) for path in (output / f"ckpt_dir{rank}").glob(f"*.{form}{MANIFEST_SUFFIX}")]
    return {manifest.file: manifest for manifest in found}


def flip(path):
    """Change one bit of the contents; size and time of modification stay."""
    status, data = path.stat(), bytearray(path.read_bytes())
    data[-3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def save_and_kill(pairs, output, rank, steps, *options, ranks, mp):
    """Start the training, kill a rank when it has done some steps; return exit code and output of the script."""
    command = ["bash", REPOSITORY / "scripts" / "run_parallel_save_ckpt.sh", pairs, *SIZES, *options]
    environment = {"RANK_SIZE": str(ranks), "MP": str(mp), "OUTPUT_DIR": str(output), "PYTHON": sys.executable}
    launcher = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        log = output / f"ckpt_dir{rank}" / f"loss{rank}.jsonl"
        deadline = time.monotonic() + LIMIT
        while not log.exists() or log.read_text().count("\n") < steps:
            assert launcher.poll() is None, launcher.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.01)
        lines = (output / "workers.pid").read_text().splitlines()
        os.kill(dict(tuple(map(int, line.split())) for line in lines)[rank], signal.SIGKILL)
        text, _ = launcher.communicate(timeout=60)
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait(timeout=10)
    return launcher.returncode, text
