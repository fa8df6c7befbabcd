"""What rank 0 logs of the saves of a run, once: what losing a host would cost, and that ranks save different steps."""

from __future__ import annotations

import json
import logging
from collections.abc import Hashable, Sequence

from ms_recover.model.steps import Step
from ms_recover.planning.audit.first_step import RankPlace, judge_places
from ms_recover.planning.audit.hosts import name_hosts
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.rotation import steps_apart
from ms_recover.training.host import HOST, this_host

_log = logging.getLogger(__name__)


_SUBJECT = "what losing a host would cost"


class Headline:
    """Says once what losing a host would cost, and that ranks save different steps; no failure disturbs the training.

    Parameters
    ----------
    job : TrainingJob
        The ranks, which exchange their hosts and groups once.
    directory : str
        The directory of this rank, for the command that says more.
    said : set
        What the savers of the run have said: of several one says it.
    """

    def __init__(self, job: TrainingJob, directory: str, said: set[Hashable]) -> None:
        self._job, self._directory, self._said_in_run = job, directory, said
        self._said = self._said_apart = False

    def floor(self, committed: Sequence[Step]) -> Step:
        """Return the newest step that every rank has committed, by those of each; warn where they are not the same."""
        apart = steps_apart(committed)
        if apart is not None and not self._said_apart:
            self._said_apart = True
            _log.log(logging.INFO if self._job.rank else logging.WARNING, "rank %d: %s", self._job.rank, apart)
        return min(committed)

    def say(self, step: Step, group: tuple[int, ...], known: bool) -> None:
        """Log it, where rank 0 calls this: all ranks do, behind each step that all have committed.

        `group` has the ranks that hold the same slice, if that is `known`.
        """
        if self._said or self._job.size == 1 or not self._job.connected:
            return
        self._said = True
        try:
            own = [*this_host(), *((min(group), len(group)) if known else (-1, 0))]
            rows = self._job.gather_text(json.dumps(own), "exchanging hosts")
            if self._job.rank == 0 and _SUBJECT not in self._said_in_run:
                self._said_in_run.add(_SUBJECT)
                stated = [json.loads(row) for row in rows]
                hosts = name_hosts({rank: (host, machine) for rank, (host, machine, *_) in enumerate(stated) if host})
                self._log(step, [RankPlace(hosts.get(rank, ""), *row[2:]) for rank, row in enumerate(stated)])
        except Exception as error:
            _log.info("rank %d, step %s: what losing a host would cost is not known: %s", self._job.rank, step, error)

    def _log(self, step: Step, places: list[RankPlace]) -> None:
        found = judge_places(places)
        if isinstance(found, str):
            _log.info(
                "step %s: what losing a host would cost is not known, because %s; hosts are named by %s",
                step,
                found,
                HOST,
            )
        elif found.audit.survived or len({place.host for place in places}) == 1:  # a job that has one host knows it
            _log.info("step %s: %s", step, found.text)
        else:
            _log.warning(
                "step %s: %s. recover-ckpt audit on the tree of %s names the setting or the placement that mends it",
                step,
                found.text,
                self._directory,
            )
