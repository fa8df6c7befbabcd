"""Several ranks in processes of their own: the sample, its scripts, and how ranks agree."""

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.model.steps import Step
from tests.support.ports import free_port
from tests.support.sample import (
    DONE,
    LIMIT,
    REPOSITORY,
    SAMPLE,
    SIZES,
    flip,
    losses,
    make_pairs,
    manifests,
    run,
    script,
    slices,
)

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")


@pytest.fixture(scope="module")
def pairs(tmp_path_factory):
    return make_pairs(tmp_path_factory.mktemp("data"))


@pytest.fixture(scope="module")
def whole(tmp_path_factory, pairs):
    """Four ranks, model parallel 2 x data parallel 2, never interrupted."""
    output = tmp_path_factory.mktemp("whole") / "run"
    code, text = script("save", pairs, output)
    assert code == 0, text
    return output


def test_ranks_of_a_group_save_the_same_bytes(whole):
    saved = [slices(whole, rank) for rank in range(4)]
    assert set(saved[0]) == {f"test-{step}.ckpt" for step in ("2_2", "2_7", "3_4", "3_8")}  # the newest four of five
    assert saved[0] == saved[2]
    assert saved[1] == saved[3]
    assert all(saved[0][name] != saved[1][name] for name in saved[0])
    for rank in range(4):
        group = read_group_info(str(whole / f"ckpt_dir{rank}" / "group_info.pb")).restore_ranks
        assert group == (rank % 2, rank % 2 + 2)
    assert all(losses(whole, rank) == losses(whole, 0) for rank in range(4))
    assert len(losses(whole, 0)) == DONE


def test_every_slice_is_committed_by_a_manifest_of_one_run(whole):
    for rank in range(4):
        found = manifests(whole, rank)
        assert found.keys() == slices(whole, rank).keys()
        assert {(entry.rank, entry.world_size, entry.group) for entry in found.values()} == {
            (rank, 4, (rank % 2, rank % 2 + 2))
        }
        assert "training stood still for" in (whole / f"ckpt_dir{rank}" / f"train.log{rank}").read_text()
    run_ids = {entry.run_id for rank in range(4) for entry in manifests(whole, rank).values()}
    assert len(run_ids) == 1
    assert re.fullmatch(r"\d{8}T\d{6}Z-[0-9a-f]{12}", run_ids.pop())
    assert {(check.status, check.evidence) for check in api.verify(api.scan(whole)).checks} == {("sound", "manifest")}


@pytest.mark.parametrize("lost", range(4))
def test_a_lost_rank_is_recovered_byte_for_byte(whole, tmp_path, lost):
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    shutil.rmtree(tmp_path / f"ckpt_dir{lost}")
    plan = api.plan(api.scan(tmp_path))
    assert api.apply(plan).exit_code == 0
    assert slices(tmp_path, lost) == {"test-3_8.ckpt": slices(whole, lost)["test-3_8.ckpt"]}
    group = read_group_info(str(tmp_path / f"ckpt_dir{lost}" / "group_info.pb"))
    assert lost in group.restore_ranks


def test_all_ranks_resume_behind_the_same_step_to_the_last_bit(whole, tmp_path, pairs):
    """Rank 1 lost everything, rank 2 its two newest slices: step 2_7 is the newest that all can be brought to.

    Rank 0's slice of that step is damaged in a way that only its manifest shows.
    """
    output = tmp_path / "run"
    shutil.copytree(whole, output)
    shutil.rmtree(output / "ckpt_dir1")
    for rank in (0, 2):
        for step in ("3_4", "3_8"):
            (output / f"ckpt_dir{rank}" / f"test-{step}.ckpt").unlink()
    flip(output / "ckpt_dir0" / "test-2_7.ckpt")
    code, text = script("recover", pairs, output, "--async_save")
    assert code == 0, text
    assert "resumed from step 2_7" in text
    for rank in range(4):
        expected = {step: loss for step, loss in losses(whole, rank).items() if step > Step(2, 7)}
        assert losses(output, rank) == expected
        assert slices(output, rank)["test_1-3_8.ckpt"] == slices(whole, rank)["test-3_8.ckpt"]
    assert "copied from rank 3" in (output / "ckpt_dir1" / "train.log1").read_text()
    assert "copied from rank 2" in (output / "ckpt_dir0" / "train.log0").read_text()
    for rank in (0, 1):
        assert slices(output, rank)["test-2_7.ckpt"] == slices(whole, rank)["test-2_7.ckpt"]
    log = (output / "ckpt_dir3" / "train.log3").read_text()
    assert "renamed to test-3_4.ckpt.superseded, test-3_8.ckpt.superseded" in log
    resumed = {manifests(output, rank)["test_1-3_8.ckpt"] for rank in range(4)}
    assert {entry.cumulative_step for entry in resumed} == {DONE}
    assert len({entry.run_id for entry in resumed}) == 1
    assert manifests(whole, 0)["test-3_8.ckpt"].run_id not in {entry.run_id for entry in resumed}
    code, text = script("recover", pairs, output)
    assert code == 0, text
    assert "at step 3_8 all 3 epochs were done" in text


def test_when_both_members_of_a_group_are_lost_no_rank_trains(whole, tmp_path, pairs):
    output = tmp_path / "run"
    shutil.copytree(whole, output)
    shutil.rmtree(output / "ckpt_dir1")
    shutil.rmtree(output / "ckpt_dir3")
    code, text = script("recover", pairs, output)
    assert code == 4, text
    assert "rank(s) 1, 3: none" in text
    for rank in (0, 2):
        assert slices(output, rank) == slices(whole, rank)


def alive(process):
    """Return whether a process runs; one that is dead but not waited for does not."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize(("stop", "expected"), [("kill a rank", 137), ("interrupt the script", 130)])
def test_when_one_is_killed_all_are_stopped(tmp_path, pairs, stop, expected):
    output = tmp_path / "run"
    command = ["bash", REPOSITORY / "scripts" / "run_parallel_save_ckpt.sh", pairs, *SIZES, "--epochs", "100000"]
    environment = {"RANK_SIZE": "2", "MP": "2", "OUTPUT_DIR": str(output), "PYTHON": sys.executable}
    launcher = subprocess.Popen(
        [str(part) for part in command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )
    try:
        log = output / "ckpt_dir1" / "loss1.jsonl"
        deadline = time.monotonic() + LIMIT
        while not (log.exists() and log.stat().st_size):
            assert launcher.poll() is None, launcher.communicate()[0]
            assert time.monotonic() < deadline
            time.sleep(0.1)
        lines = (output / "workers.pid").read_text().splitlines()
        workers = dict(tuple(map(int, line.split())) for line in lines)
        assert sorted(workers) == [0, 1]
        if stop == "kill a rank":
            os.kill(workers[1], signal.SIGKILL)
        else:
            launcher.send_signal(signal.SIGINT)
        text, _ = launcher.communicate(timeout=60)
    finally:
        if launcher.poll() is None:
            os.killpg(launcher.pid, signal.SIGKILL)
            launcher.wait(timeout=10)
    assert launcher.returncode == expected, text
    assert not any(alive(process) for process in workers.values())
    assert not (output / "workers.pid").exists()
    if stop == "kill a rank":
        assert "rank 1 failed with exit code 137" in text
        assert "loss is" in text


SAVE, RECOVER = "parallel_save_ckpt_train.py", "parallel_recover_train.py"


@pytest.mark.parametrize(
    ("program", "options", "said"),
    [
        (SAVE, ["--pipeline_stage", "2"], "--pipeline_stage above 1 .* Ascend only"),
        (SAVE, ["--mp", "3"], "cannot be divided"),
        (SAVE, ["--heads", "5"], "cannot be divided"),
        (SAVE, ["--file_path", "/nowhere"], "is not a file"),
        (RECOVER, ["--heads", "5"], "cannot be divided"),
    ],
)
def test_what_cannot_be_is_said_with_exit_code_2(program, options, said, pairs, tmp_path):
    command = [sys.executable, SAMPLE / program, "--file_path", pairs, "--device_target", "CPU", "--mp", "2", *options]
    code, text = run(command, tmp_path, RANK_SIZE="2")
    assert code == 2, text
    assert re.search(said, text), text
    assert list(tmp_path.iterdir()) == []


RANKS_TALK = """
import sys
from secrets import token_bytes
import mindspore as ms
from mindspore.communication import init
from ms_recover.errors import MsRecoverError, UnrecoverableError
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.training.deciding.agreement import agree, find_common_step
from ms_recover.training.own_steps import OwnSteps
from ms_recover.training.search import Search
from ms_recover.training.tree_view import see_trees
from ms_recover.training.this_process import current_job
from ms_recover.training.deciding.runs import agree_run_id

ms.set_device("CPU")
init()
job = current_job()
root = sys.argv[1] + f"/host{job.rank}"  # each rank sees its own disk only
print("run", agree_run_id(job, "", token_bytes))

def steps_of(root):
    search = Search(root, ScanOptions(), PlanOptions(world_size=job.size), "refuse")
    return OwnSteps.judged(job.rank, search, see_trees(root, search.scanning, None).place, ())

own = job.run_together("scanning", lambda: steps_of(root))
print("offers", *own.steps.available)
print("agreed", find_common_step(job, own)[0].step)
print("nothing", agree(job, steps_of(root + "/other")))

own = steps_of(root if job.rank == 0 else root + "/other")
try:
    find_common_step(job, own)
except UnrecoverableError as error:
    print("none:", error)

def work():
    if job.rank == 1:
        raise ValueError("disk on fire")

try:
    job.run_together("trying", work)
except (MsRecoverError, ValueError) as error:
    print("failed:", error)
print("all said", flush=True)
"""


def test_ranks_agree_without_a_common_file_system(whole, tmp_path):
    """Each sees its own directory; the newest step of one is not there on the other."""
    for rank in range(2):
        shutil.copytree(whole / f"ckpt_dir{rank}", tmp_path / f"host{rank}" / f"ckpt_dir{rank}")
        (tmp_path / f"host{rank}" / f"ckpt_dir{rank}" / "group_info.pb").unlink()
        for path in (tmp_path / f"host{rank}" / f"ckpt_dir{rank}").glob(f"*{MANIFEST_SUFFIX}"):
            path.unlink()  # they name a world of four
    (tmp_path / "host1" / "ckpt_dir1" / "test-3_8.ckpt").unlink()
    (tmp_path / "host0" / "ckpt_dir0" / "test-3_4.ckpt").unlink()
    texts = talk(tmp_path, 2)
    run_ids = [re.search(r"^run ([0-9a-f]{32})$", text, re.MULTILINE)[1] for text in texts]
    assert run_ids[0] == run_ids[1]
    assert "offers 3_8 2_7 2_2" in texts[0]
    assert "offers 3_4 2_7 2_2" in texts[1]
    for rank, text in enumerate(texts):
        assert "agreed 2_7" in text
        assert "nothing None" in text
        assert "none: there is no step" in text
        assert "rank(s) 1: none" in text
        assert ("failed: disk on fire" if rank else "failed: rank 0 stops because trying failed on rank(s) 1") in text


def talk(directory, ranks):
    """Run RANKS_TALK on some ranks; return what each printed."""
    program = directory / "talk.py"
    program.write_text(RANKS_TALK)
    port = free_port()
    common = {
        "MS_WORKER_NUM": str(ranks),
        "RANK_SIZE": str(ranks),
        "MS_SCHED_HOST": "127.0.0.1",
        "MS_SCHED_PORT": str(port),
        "PYTHONPATH": str(REPOSITORY),
        "GLOG_v": "3",
    }
    roles = [{"MS_ROLE": "MS_SCHED"}]
    roles += [{"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank), "RANK_ID": str(rank)} for rank in range(ranks)]
    processes = [
        subprocess.Popen(
            [sys.executable, str(program), str(directory)],
            cwd=directory,
            env={**os.environ, **common, **role},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for role in roles
    ]
    try:
        texts = [process.communicate(timeout=LIMIT)[0] for process in processes]
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.wait(timeout=10)
    assert processes[0].returncode == 0, texts
    for process, text in zip(processes[1:], texts[1:], strict=True):
        assert "all said" in text, texts
        assert process.returncode in (0, -signal.SIGSEGV), texts  # MindSpore may crash when its threads end
    return texts[1:]
