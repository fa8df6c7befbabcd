"""What a rank sees of the tree, and how far it is proven."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from ms_recover import api
from ms_recover.errors import MissingInputError, VerificationError
from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.plan import RankVerdict, StepAssessment
from ms_recover.model.steps import Step
from ms_recover.planning.assess import assess_step
from ms_recover.planning.situation import Situation, understand
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
    situation : Situation or None
        What its steps are judged by.
    assessments : dict of Step to StepAssessment
        Newest step first; this rank's own verdict in it is what counts.
    tolerate : tuple of str
        Patterns of parameters that may differ between peers, beside the known ones.
    withdrawn : dict of Step to str
        Steps that looked possible and were not, and why.
    outdated : bool
        Whether a slice was copied since the inventory was taken.
    """

    rank: int
    inventory: Inventory | None = None
    situation: Situation | None = None
    assessments: dict[Step, StepAssessment] = field(default_factory=dict)
    tolerate: tuple[str, ...] = ()
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
        situation = self.situation
        assert situation is not None
        while unread := self._unread(step, situation):
            assert self.inventory is not None
            read = read_contents(self.inventory.root, unread)
            situation = self.situation = replace(situation, contents=situation.contents.merged(read))
            self.assessments[step] = assess_step(situation, step)
        for newer in self.assessments:
            if newer >= step and (disagreements := self.assessments[newer].disagreements):
                raise VerificationError(
                    f"rank {self.rank}, step {newer}: {'; '.join(disagreements)}: nothing says who is right; remove "
                    "the wrong slice, or name what may differ with tolerate"
                )

    def _unread(self, step: Step, situation: Situation) -> list[SliceFile]:
        verdict = self.verdict(step)
        files = [file for held in situation.files[step].values() for file in held]
        if verdict.verdict == "keep":
            wanted = [file for file in files if file.path == verdict.path and file.manifest is not None]
        elif verdict.verdict == "copy":
            group = situation.groups.of(self.rank)
            wanted = [
                file
                for file in files
                if file.rank in group and file.problem is None and file.manifest is None and file.encryption is None
            ]
        elif verdict.verdict == "compose":
            action = next(one for one in self.assessments[step].actions if one.rank == self.rank)
            givers = {source.path for source in action.sources} if isinstance(action, ComposeAction) else set()
            wanted = [file for file in files if file.path in givers and file.manifest is None]
        else:
            wanted = []
        return [file for file in wanted if not situation.contents.knows(file)]


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
    patterns = tuple(tolerate)
    situation = understand(inventory, PlanOptions(world_size=world.size, newest=newest, tolerate=patterns))
    assessments = {step: assess_step(situation, step) for step in inventory.steps}
    return Stock(world.rank, inventory, situation, assessments, patterns)
