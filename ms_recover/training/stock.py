"""What a rank sees of the tree, and how far it is proven."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from ms_recover import api
from ms_recover.errors import MissingInputError, VerificationError
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.facts import gather_facts
from ms_recover.planning.judging.judge import compare_slices
from ms_recover.planning.judging.judgement import Comparison
from ms_recover.planning.planner import assess_step, required_reads_of_rank
from ms_recover.scanning.read import read_contents
from ms_recover.training.world import World

_log = logging.getLogger(__name__)


@dataclass
class Stock:
    """What one rank sees of the tree.

    Parameters
    ----------
    inventory : Inventory or None
        None when there is no tree.
    compared : Comparison or None
        The evidence its steps are judged by.
    assessments : dict of Step to StepAssessment
        Newest step first; this rank's own verdict in it is what counts.
    withdrawn : dict of Step to str
        Steps that looked possible and were not, and why.
    outdated : bool
        Whether a slice was copied since the inventory was taken.
    """

    rank: int
    inventory: Inventory | None = None
    compared: Comparison | None = None
    contents: Contents = NOTHING_READ
    assessments: dict[Step, StepAssessment] = field(default_factory=dict)
    withdrawn: dict[Step, str] = field(default_factory=dict)
    outdated: bool = False

    @property
    def steps(self) -> list[Step]:
        """Steps at which this rank has its slice or can get it, newest first."""
        return [
            step
            for step in self.assessments
            if step not in self.withdrawn and self.verdict(step).verdict in ("keep", "copy", "compose")
        ]

    @property
    def lacks(self) -> dict[Step, str]:
        """The other steps, and why."""
        steps = self.steps
        return {
            step: self.withdrawn.get(step, self.verdict(step).reason) for step in self.assessments if step not in steps
        }

    def verdict(self, step: Step) -> RankVerdict:
        """Return the verdict on this rank at a step."""
        return self.assessments[step].ranks[self.rank]

    def run_mark(self, step: Step) -> int:
        """Return a 32-bit number that tells runs apart, 0 when nobody knows the run of the step's slices."""
        run_id = self.assessments[step].run_id
        digest = hashlib.blake2b((run_id or "").encode(), digest_size=4).digest()
        return int.from_bytes(digest, "big", signed=True) if run_id else 0

    def prove(self, step: Step) -> None:
        """Read what this rank would resume from, and judge the step again.

        Its own slice when a manifest says what must be in it; otherwise, when the slice is to be copied or put
        together, all of its group, or that it is put together from, that have no manifest to be checked by meanwhile.

        Raises
        ------
        VerificationError
            When replicas differ, at this step or a newer one, with nothing to say who is right.
        """
        assert self.compared is not None
        assert self.inventory is not None
        while unread := self._unread(step, self.compared):
            self.contents = self.contents.merged(read_contents(self.inventory.root, unread))
            facts = gather_facts(self.inventory, self.compared.facts.options, self.contents)
            self.compared = compare_slices(facts)
            self.assessments[step] = assess_step(self.compared, step)
        for newer in self.assessments:
            if newer >= step and (disagreements := self.assessments[newer].disagreements):
                raise VerificationError(
                    f"rank {self.rank}, step {newer}: {'; '.join(disagreements)}: nothing says who is right; remove "
                    "the wrong slice, or name what may differ with tolerate"
                )

    def _unread(self, step: Step, compared: Comparison) -> list[SliceFile]:
        wanted = required_reads_of_rank(compared, self.assessments[step], self.rank)
        return [file for file in wanted if not self.contents.knows(file)]


def take_stock(
    root: str,
    world: World,
    pattern: str | None = None,
    group_info: Sequence[str] = (),
    newest: bool = False,
    tolerate: Iterable[str] = (),
) -> Stock:
    """Judge this rank at every step by what it can see; other ranks may see more.

    Raises
    ------
    MsRecoverError
        As `ms_recover.api.scan` and `ms_recover.api.assess` do; a root without slices is an empty stock.
    """
    try:
        inventory = api.scan(root, ScanOptions(pattern=pattern, group_info=tuple(group_info)))
    except MissingInputError as error:
        _log.warning("rank %d: %s", world.rank, error)
        return Stock(world.rank)
    compared = compare_slices(
        gather_facts(inventory, PlanOptions(world_size=world.size, newest=newest, tolerate=tuple(tolerate)))
    )
    assessments = {step: assess_step(compared, step) for step in inventory.steps}
    return Stock(world.rank, inventory, compared, assessments=assessments)
