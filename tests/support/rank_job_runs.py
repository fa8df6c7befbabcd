"""Run random jobs of several ranks: undisturbed, and cut, robbed and resumed; print what came of them.

Processes are forked after MindSpore is imported and before it computes anything, with the variables that msrun sets, so
that a start takes a few seconds.

    python -m tests.support.rank_job_runs FOLDER --first 9000 --count 20 --ranks 2

The folder has ``results.jsonl`` afterwards, a line for each job, and what a job that went wrong has written.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.support.killed_jobs import fork, scheduler
from tests.support.ports import free_port
from tests.support.program_legs import first_difference, read_leg, without_stop
from tests.support.program_runs import import_all
from tests.support.random_rank_jobs import Base, RankJob, draw_job
from tests.support.rank_job_causes import (
    End,
    SeenRanks,
    problems_of_ranks,
    summary_of_ranks,
    verdict_of_ranks,
)
from tests.support.rank_job_training import Launch, run_rank
from tests.support.rank_job_tree import committed, copy_folder, lose, steps_with_states

LIMIT = 75
"""Seconds for one start."""
AFTER_CRASH = 0.7
"""Seconds that the ranks beside one that is gone go on, until a launcher ends them."""


class Ended:
    """One start of a job, which has ended."""

    def __init__(self, launch: Launch) -> None:
        self.launch, self.ranks = launch, launch.job.base.ranks
        launch.top.mkdir(parents=True)
        began = time.monotonic()
        self._start()
        self._wait(began)
        outputs = [launch.top / f"rank{rank}.out" for rank in range(self.ranks)]
        self.legs = [read_leg(launch.report(rank), outputs[rank]) for rank in range(self.ranks)]
        ends = [launch.over(rank) for rank in range(self.ranks)]
        self._times = [float(end.read_text()) if end.exists() else time.monotonic() for end in ends]
        self.waited = self._waited()

    def _start(self) -> None:
        port = free_port()
        common = {
            "MS_WORKER_NUM": str(self.ranks),
            "RANK_SIZE": str(self.ranks),
            "MS_SCHED_HOST": "127.0.0.1",
            "MS_SCHED_PORT": str(port),
            "GLOG_v": "3",
        }
        top = self.launch.top
        self._scheduler = fork(scheduler, top / "scheduler.txt", {**common, "MS_ROLE": "MS_SCHED"})
        self._running = {}
        for rank in range(self.ranks):
            role = {"MS_ROLE": "MS_WORKER", "MS_NODE_ID": str(rank), "RANK_ID": str(rank)}
            process = fork(lambda rank=rank: run_rank(self.launch, rank), top / f"rank{rank}.out", {**common, **role})
            self._running[process] = rank

    def _wait(self, began: float) -> None:
        """Wait for the ranks; in a start that is to crash, end the others soon behind the first that is gone."""
        until = began + LIMIT
        while self._running and time.monotonic() < until:
            gone = [process for process in self._running if os.waitpid(process, os.WNOHANG) != (0, 0)]
            for process in gone:
                over = self.launch.over(self._running.pop(process))
                if not over.exists():
                    over.write_text(str(time.monotonic()))
            if gone and self.launch.crash is not None and self.launch.crash[0] not in ("raise", "stop"):
                until = min(until, time.monotonic() + AFTER_CRASH)
            time.sleep(0.01)
        for process in (*self._running, self._scheduler):
            os.kill(process, signal.SIGKILL)
            os.waitpid(process, 0)

    def _waited(self) -> float:
        """Return how long ranks were left alone by one that failed, in seconds."""
        times = self._times
        if all(leg.ended for leg in self.legs):
            return 0.0
        return max(times) - min(end for end, leg in zip(times, self.legs, strict=True) if not leg.ended)

    @property
    def spread(self) -> float:
        """Seconds from the first rank's end to the last one's."""
        return max(self._times) - min(self._times)

    def end_of(self, rank: int) -> End:
        """Return how a rank ended."""
        leg = self.legs[rank]
        if leg.error is not None:
            return End("refused" if leg.error[0] == "refused" else "failed", leg.error[1])
        return End("done" if leg.ended else "died")


class Runner:
    """Runs jobs; those that train the same share one undisturbed training."""

    def __init__(self, top: Path) -> None:
        self._top = top
        self._alone: dict[tuple[Base, bool], Ended] = {}

    def alone(self, job: RankJob) -> Ended:
        """Return the undisturbed training of the job."""
        key = (job.base, job.change == "more epochs")
        if key not in self._alone:
            top = self._top / f"alone-{len(self._alone)}"
            shutil.rmtree(top, ignore_errors=True)
            quiet = replace(job, argument="none", change="more epochs" if key[1] else "none")
            launch = Launch(job=quiet, root=top / "tree", top=top / "alone", how="alone", is_last=True)
            self._alone[key] = Ended(launch)
        return self._alone[key]

    def run(self, job: RankJob, top: Path) -> dict[str, Any]:
        """Run a job; return the verdict and what led to it."""
        root = top / "tree"
        root.mkdir(parents=True)
        os.chdir(top)  # MindSpore writes rewritten networks and graphs that failed to where it runs
        alone = self.alone(job)
        if not all(leg.ended for leg in alone.legs):
            return _found("not judged", f"does not train: {[leg.error for leg in alone.legs if leg.error]}")
        if job.lost == "other experiment":
            quiet, beside = replace(job, argument="none"), top / "other"
            other = Ended(Launch(job=quiet, root=beside, top=top / "start-other", how="train", other=True))
            if not all(leg.ended for leg in other.legs):
                return _found("not judged", f"the other does not train: {[leg.error for leg in other.legs]}")
        starts: list[Ended] = []
        found: list[list[int]] = []
        for index, crash in enumerate((*job.crashes, None)):
            if crash is None and not self._rob(job, top, root, index):
                return _found("not judged", "there is nothing to lose")
            found.append(committed(root, job.base.ranks))
            own, described = _left(job, root)
            how = "recover" if index or job.begins == "recover" else "train"
            launch = Launch(job=job, root=root, top=top / f"start{index}", how=how, crash=crash, is_last=crash is None)
            starts.append(Ended(launch))
            if _refused(starts[-1]):
                break
            if crash is not None and crash[0] != "stop" and all(leg.ended for leg in starts[-1].legs):
                return _found("not judged", "ended before it crashed")
            if index == 0 and len(job.crashes) > 1:
                copy_folder(root, job.lost_by, top / "older")
        seen = replace(_see(alone, starts), own=own, described=described)
        verdict = verdict_of_ranks(job, seen)
        if verdict.kind == "refused" and len(starts) > 1 and not any(max(one) for one in found[1:]):
            return _found("not judged", "no slice was left")
        more: dict[str, object] = {"seen": seen.record, "committed": found}
        more["first"] = [[leg.first for leg in one.legs] for one in starts]
        return _found(verdict.kind, verdict.why, verdict.undeserved, **more)

    def _rob(self, job: RankJob, top: Path, root: Path, index: int) -> bool:
        instead = top / "other" / f"ckpt_dir{job.lost_by}" if job.lost == "other experiment" else top / "older"
        return lose(root, job.lost, job.lost_by, instead)


def _left(job: RankJob, root: Path) -> tuple[bool, bool]:
    """Return whether a step has each rank's own slice and state, and whether others have states, behind the loss."""
    held = [set(steps_with_states(root, rank, states=job.base.saves_states)) for rank in range(job.base.ranks)]
    if job.lost in ("flipped", "flipped state") and held[job.lost_by]:
        held[job.lost_by].discard(max(held[job.lost_by]))
    return bool(set.intersection(*held)), any(one for rank, one in enumerate(held) if rank != job.lost_by)


def _refused(start: Ended) -> bool:
    """Whether a rank was refused by the library, which a crash is not."""
    ends = [start.end_of(rank) for rank in range(start.ranks)]
    if start.launch.crash is None:
        return True
    refused = [end.kind == "refused" for end in ends]
    return all(refused) or (any(refused) and start.launch.crash[0] in ("raise", "stop"))


def _see(alone: Ended, starts: list[Ended]) -> SeenRanks:
    differences = []
    for rank, whole in enumerate(alone.legs):
        of_rank = []
        for start in starts:
            leg = start.legs[rank]
            stopped = start.launch.crash is not None
            difference = first_difference(without_stop(leg) if stopped else leg, whole)
            if difference is None and not stopped and leg.ended and leg.final != whole.final:
                difference = "other values at the end"
            of_rank.append(difference)
        differences.append(next((one for one in of_rank if one is not None), None))
    last = starts[-1]
    ranks = range(last.ranks)
    said = [[line for start in starts for line in _said(start, rank)] for rank in ranks]
    return SeenRanks(
        ends=tuple(map(last.end_of, ranks)),
        differences=tuple(differences),
        warnings=tuple(tuple(dict.fromkeys(lines)) for lines in said),
        waited=last.waited,
        undisturbed=alone.spread,
    )


def _said(start: Ended, rank: int) -> list[str]:
    """Return what a rank has warned of, and what its line of a resume names as not proven."""
    parts = [part for line in start.legs[rank].printed for part in line.split("; ")]
    return [*start.legs[rank].warnings, *(part for part in parts if "not proven" in part)]


def _found(kind: str, why: str, undeserved: str = "", **more: object) -> dict[str, Any]:
    return {"verdict": kind, "why": why, "undeserved": undeserved, **more}


def run_jobs(top: Path, numbers: list[int], ranks: int | None) -> list[dict[str, Any]]:
    """Run jobs by their numbers; append a line for each to ``results.jsonl``."""
    runner, results = Runner(top), []
    for number in numbers:
        job = draw_job(number, ranks)
        folder = top / str(number)
        shutil.rmtree(folder, ignore_errors=True)
        began = time.monotonic()
        found = {
            "number": number,
            "ranks": ranks,
            "digest": job.digest,
            "plain": job.is_plain,
            **runner.run(job, folder),
        }
        found |= {"seconds": round(time.monotonic() - began, 1), "job": str(job)}
        with (top / "results.jsonl").open("a") as file:
            file.write(json.dumps(found) + "\n")
        results.append(found)
        os.chdir(top)
        if not problems_of_ranks([found]):
            shutil.rmtree(folder)
    return results


def judge_again(top: Path) -> list[dict[str, Any]]:
    """Return the results in a folder with the verdicts of now; jobs that are drawn otherwise by now are not judged."""
    results = []
    for line in (top / "results.jsonl").read_text().splitlines():
        found = json.loads(line)
        job = draw_job(found["number"], found["ranks"])
        if job.digest != found["digest"]:
            found |= {"verdict": "not judged", "why": "drawn otherwise by now", "undeserved": ""}
        elif found["verdict"] != "not judged":
            verdict = verdict_of_ranks(job, SeenRanks.of_record(found["seen"]))
            found |= {"verdict": verdict.kind, "why": verdict.why, "undeserved": verdict.undeserved}
        results.append(found)
    return results


def main() -> int:
    """Run the jobs that the command line names; return 0 when all is as it must be."""
    parser = argparse.ArgumentParser()
    parser.add_argument("top", type=Path, help="folder for what the jobs write; those that went wrong stay")
    parser.add_argument("--first", type=int, default=9000, help="number of the first job")
    parser.add_argument("--count", type=int, default=20)
    parser.add_argument("--numbers", type=int, nargs="*", help="these jobs instead")
    parser.add_argument("--ranks", type=int, choices=(2, 4), help="so many ranks in each job, instead of drawn")
    parser.add_argument("--exact", type=Path, help="file of jobs that were exact, none of which may be refused")
    parser.add_argument("--judge", action="store_true", help="judge what lies in the folder again, and run nothing")
    parser.add_argument("--record", type=Path, help="file to write those to that are exact now")
    options = parser.parse_args()
    options.top = options.top.absolute()
    options.top.mkdir(parents=True, exist_ok=True)
    if options.judge:
        found = judge_again(options.top)
    else:
        (options.top / "results.jsonl").unlink(missing_ok=True)
        import_all()
        numbers = options.numbers or list(range(options.first, options.first + options.count))
        found = run_jobs(options.top, numbers, options.ranks)
    if options.record:
        exact = {str(one["number"]): one["digest"] for one in found if one["verdict"] == "exact"}
        options.record.write_text(json.dumps(exact, indent=0) + "\n")
    problems = problems_of_ranks(found, json.loads(options.exact.read_text()) if options.exact else {})
    print("\n".join([*summary_of_ranks(found), *problems]))
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
