"""What losing hosts, racks or other domains would cost, before any of them is lost."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction
from typing import ClassVar, Literal

from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.model.units import BigCount, Count, Rank, Size

BEFORE = Step(0, 0)
"""The step of an audit before the first checkpoint."""

RANK_LEVEL = "rank"
"""The level that stands for hosts where nothing says which ranks share one."""

FindingKind = Literal["redundancy", "optimizer", "evidence", "placement", "slices", "topology"]
"""``redundancy``: each slice is the only one of its kind, by remove_redundancy. ``optimizer``: the optimizer is sharded
over all replicas. ``evidence``: a rank list or strategy file is missing. ``placement``: all holders lie together.
``slices``: some are missing or damaged now. ``topology``: nothing says where ranks live.
"""


_MOST_SETS = 1000


@dataclass(frozen=True, slots=True)
class Giver:
    """A domain of the finest level that gives bytes to lost ranks."""

    host: str
    bytes: Size


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """What the loss of some domains of one level would cost.

    Parameters
    ----------
    level : str
        Level of the topology, such as ``host``.
    domains : tuple of str
        The domains that are lost, at once.
    ranks : tuple of int
        The ranks that live there, ascending.
    step : Step or None
        The newest step that is recoverable then; None when there is none. Before the first checkpoint, step 0_0.
    reason : str
        The first block of which every holder is lost: why there is no step, or why it is older. Empty for neither.
    bytes : int
        Bytes that the lost ranks get from others; 0 without a step.
    sources : tuple of Giver
        Who gives them; the largest share first. Empty where losses are too many to list one by one.
    seconds : float or None
        How long that takes at the bandwidth that is given: the busiest domain of the finest level sends or receives its
        share. None without one.
    """

    RECORD = "domains ranks fatal step reason bytes sources seconds"

    level: str
    domains: tuple[str, ...]
    ranks: tuple[Rank, ...]
    step: Step | None
    reason: str = ""
    bytes: Size = 0
    sources: tuple[Giver, ...] = ()
    seconds: float | None = None

    @property
    def fatal(self) -> bool:
        """Whether no step can be recovered."""
        return self.step is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Losses:
    """All losses of so many domains of one level at once.

    Parameters
    ----------
    count : int
        Domains that are lost at once.
    possible : int
        How many such losses there are.
    fatal : int or None
        How many of them leave no step, exactly; None when that could not be counted within bounds.
    newest : int or None
        How many of them leave the newest recoverable step, exactly; None likewise.
    """

    RECORD = "lost=count possible fatal newest probability"

    count: Count
    possible: BigCount
    fatal: BigCount | None
    newest: BigCount | None = None

    @property
    def probability(self) -> Fraction | None:
        """The probability that so many domains, picked at random, take data with them; None when it is not known."""
        return Fraction(self.fatal, self.possible) if self.fatal is not None and self.possible else None

    @property
    def survived(self) -> bool:
        """Whether every such loss can be recovered from."""
        return self.fatal == 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LevelAudit:
    """The losses of domains of one level.

    Parameters
    ----------
    name : str
        The level, such as ``host``.
    domains : tuple of str
        Its domains, in the order of their first ranks.
    singles : tuple of Loss
        Each domain alone, in the same order.
    losses : tuple of Losses
        Of 1, 2, ... domains, the probabilities among them.
    smallest : int or None
        Domains in a smallest fatal loss; None when even the loss of all is not fatal, or it could not be found.
    smallest_count : int or None
        How many fatal losses of so many domains there are, exactly.
    minimal : tuple of tuple of str
        Losses that are fatal although no part of them is, the smallest first: the inclusion-minimal holder sets. At
        most so many as are worth a list.
    minimal_count : int or None
        How many of them there are; None when they could not be counted within bounds.
    """

    RECORD = (
        "level=name domains=size survived smallest_fatal=smallest smallest_fatal_count=smallest_count minimal "
        "minimal_count losses singles"
    )

    name: str
    domains: tuple[str, ...]
    singles: tuple[Loss, ...]
    losses: tuple[Losses, ...]
    smallest: Count | None
    smallest_count: BigCount | None
    minimal: tuple[tuple[str, ...], ...] = ()
    minimal_count: Count | None = None

    @property
    def size(self) -> Count:
        """How many domains it has."""
        return len(self.domains)

    @property
    def fatal(self) -> tuple[Loss, ...]:
        """The domains of which even one may not be lost."""
        return tuple(loss for loss in self.singles if loss.fatal)

    @property
    def survived(self) -> Count:
        """How many domains may be lost at once, whichever they are."""
        if self.smallest is not None:
            return self.smallest - 1
        return next((one.count - 1 for one in self.losses if not one.survived), len(self.losses))


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockClass:
    """Parameters that are cut alike, and how many copies of their blocks there are.

    Parameters
    ----------
    stage : int or None
        Pipeline stage; None for parameters of several.
    names : tuple of str
        Some of the parameters, sorted; empty where whole slices are meant.
    parameters : int
        How many there are; 0 where whole slices are meant.
    blocks : int
        Into how many blocks they are cut.
    bytes : int or None
        Of one copy of all these blocks; None where sizes are not known.
    copies : tuple of (int, int)
        Fewest and most copies of a block.
    hosts : tuple of (int, int)
        Fewest and most domains of the finest level that hold a block.
    single_copy_bytes : int or None
        Bytes of the blocks of which one rank alone has a copy.
    source : str
        The file, or the option, that says so.
    """

    stage: Count | None
    names: tuple[str, ...]
    parameters: Count
    blocks: Count
    bytes: Size | None
    copies: tuple[Count, Count]
    hosts: tuple[Count, Count]
    single_copy_bytes: Size | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that makes losses fatal, and the setting that mends it."""

    kind: FindingKind
    text: str
    """What is wrong, and where."""
    mend: str
    """The one setting, file or command that mends it."""
    topology: Topology | None = None
    """For `placement`: where ranks might live instead, with the same parallel strategy."""


@dataclass(frozen=True, slots=True)
class GateResult:
    """The losses that had to be survived, in words; `passed` is None where nothing says whether they are."""

    survive: str
    passed: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What losses would cost, as a tree and the places of its ranks are now.

    Parameters
    ----------
    root : str
        The tree; empty before the first checkpoint.
    step : Step or None
        The newest step that is recoverable now; None when there is none, and then every loss is fatal. Before the first
        checkpoint, step 0_0.
    why : str
        Why there is none.
    disputed : bool
        There is none because replicas differ, with nothing to settle who is right.
    world_size : int
        Number of ranks.
    evidence : str
        What says who holds the same: files, or an option.
    topology : Topology
        Where ranks live; of one level, `RANK_LEVEL`, where nothing says it.
    levels : tuple of LevelAudit
        Finest first.
    pairs : tuple of Loss
        Losses of two domains of the finest level: each where they are few, else the fatal ones, and of these as many as
        are worth a list.
    chosen : tuple of Loss
        Losses of as many domains as were asked for, likewise.
    blocks : tuple of BlockClass
        Those with the fewest copies first.
    single_copy_bytes : int or None
        Bytes that one rank alone has a copy of; None where sizes are not known.
    findings : tuple of Finding
        The gravest first.
    fatal_ranks : tuple of frozenset of int
        The inclusion-minimal sets of ranks whose loss is fatal; the smallest first. Empty where they could not be
        listed within bounds.
    headline : str
        One sentence.
    gate : GateResult or None
        What a launch script asked for.
    """

    RECORD = (
        "version root headline step before_first_checkpoint=before why disputed world_size evidence hosts_known "
        "topology gate levels pairs chosen blocks single_copy_bytes fatal_ranks=some_fatal_ranks findings"
    )

    version: ClassVar[int] = 1
    root: str
    step: Step | None
    why: str = ""
    disputed: bool = False
    world_size: Rank
    evidence: str
    topology: Topology
    levels: tuple[LevelAudit, ...]
    pairs: tuple[Loss, ...] = ()
    chosen: tuple[Loss, ...] = ()
    blocks: tuple[BlockClass, ...] = ()
    single_copy_bytes: Size | None = None
    findings: tuple[Finding, ...] = ()
    fatal_ranks: tuple[frozenset[int], ...] = ()
    headline: str = ""
    gate: GateResult | None = None

    @property
    def before(self) -> bool:
        """Whether it is of claims alone, before the first checkpoint."""
        return self.step == BEFORE

    @property
    def hosts_known(self) -> bool:
        """Whether something says which ranks share a host."""
        return self.topology.levels[0] != RANK_LEVEL

    @property
    def some_fatal_ranks(self) -> tuple[tuple[Rank, ...], ...]:
        """The first of `fatal_ranks`, ranks ascending."""
        return tuple(tuple(sorted(ranks)) for ranks in self.fatal_ranks[:_MOST_SETS])

    def level(self, name: str) -> LevelAudit | None:
        """Return the losses of a level, None when the topology has none of that name."""
        return next((level for level in self.levels if level.name == name), None)

    @property
    def survived(self) -> int:
        """How many domains of the finest level may be lost at once, whichever they are."""
        return self.levels[0].survived
