"""The verbs that say what losing hosts would cost: audit, audit_claims.

>>> from ms_recover import api
>>> found = api.audit(api.scan("/checkpoints"))                                       # doctest: +SKIP
>>> print(found.headline)                                                             # doctest: +SKIP
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from ms_recover.errors import MsRecoverError
from ms_recover.model.contents import Contents, Reader
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_AUDIT, DEFAULT_PLAN, AuditOptions, PlanOptions
from ms_recover.model.progress import Progress
from ms_recover.model.topology import Topology
from ms_recover.planning.tree.candidates import text_of_others
from ms_recover.verbs.session import Session

if TYPE_CHECKING:
    from ms_recover.model.audit import Audit, Finding
    from ms_recover.planning.audit.after import Losable
    from ms_recover.planning.choice import Assess, AssessedStep, Choice
    from ms_recover.planning.judging.judge import Parts
    from ms_recover.planning.plan.planner import Planned

_log = logging.getLogger(__name__)
_MOST_READ = 1 << 30
"""Bytes of slices, such as those of older steps, that are read to know what a plan would do after losses."""


def audit(  # noqa: PLR0913 (the keywords of programs)
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    topology: Topology | None = None,
    wanted: AuditOptions = DEFAULT_AUDIT,
    *,
    jobs: int = 1,
    progress: Progress | None = None,
    read: Reader | None = None,
) -> Audit:
    """Say for the loss of each host, rack or other domain whether the tree can be recovered then, and what it takes.

    Slices are judged as `ms_recover.api.plan` judges them: with ``quick`` in the options by headers and manifests, and
    otherwise the slices of the step are read. Of a tree without any slice the strategy files and rank lists are asked.

    Parameters
    ----------
    inventory, options, jobs, progress, read
        As for `ms_recover.api.plan`.
    topology : Topology, optional
        Where ranks live; without one each rank stands for a host.
    wanted : AuditOptions
        How many domains are lost at once, and the bandwidth.

    Raises
    ------
    MissingInputError
        When there is neither a slice nor anything that says who will hold the same.
    UsageError, ContradictionError, StorageError
        As `ms_recover.api.plan`, and when the topology places another number of ranks.
    """
    if not inventory.steps:
        return audit_claims(inventory, options, topology, wanted)
    session = Session(inventory, options, jobs=jobs, progress=progress, read=read)
    planned = session.planned
    if (others := text_of_others(planned.tree.facts)) is not None:
        _log.warning("%s: %s", inventory.root, others)
    return audit_planned(planned, topology, wanted, session.reader)


def audit_planned(
    planned: Planned,
    topology: Topology | None = None,
    wanted: AuditOptions = DEFAULT_AUDIT,
    read: Reader | None = None,
    assess: Assess | None = None,
) -> Audit:
    """Say the same of a tree that is planned already; arguments and errors are those of `audit`.

    Without `read` no more slices are read than for the plan; `assess` is as for `steps_of_tree`.
    """
    from ms_recover.planning.audit.findings import Case, find_findings
    from ms_recover.planning.audit.holders import steps_of_tree
    from ms_recover.planning.audit.make_audit import AuditedTree, make_audit
    from ms_recover.planning.audit.shards import find_sharding
    from ms_recover.planning.tree.rank_verdicts import why_unrecoverable

    plan, facts, tree = planned.plan, planned.facts, planned.tree.facts
    findings: tuple[Finding, ...] = ()
    losses = None
    if not plan.recoverable:
        why = "; ".join(plan.disagreements) or why_unrecoverable(plan.ranks)
        evidence, steps = "", []
    else:
        steps = list(steps_of_tree(planned.tree, assess))
        why, evidence = "", evidence_of(tree.inventory, tree.options)
        losses = losable(planned.tree, read)
        dealt = steps[0].step in planned.compared.structure.deduplicated
        case = Case(facts=facts, held=steps[0], dealt=dealt, topology=topology, sharding=find_sharding(facts))
        findings = find_findings(case)
    audited = AuditedTree(
        root=plan.root,
        ranks=plan.world_size,
        steps=steps,
        evidence=evidence,
        why=why,
        findings=findings,
        disputed=bool(plan.disagreements),
        losable=losses,
    )
    try:
        return make_audit(audited, topology, wanted)
    except _ReadingError as failed:  # which says nothing about the loss that was asked about
        raise failed.error from None


class _UnreadError(Exception):
    """Slices would have to be read that were not."""


class _ReadingError(Exception):
    """The tree cannot be read; kept apart from what a plan after a loss says."""

    def __init__(self, error: MsRecoverError) -> None:
        super().__init__(str(error))
        self.error = error


def losable(tree: Parts, read: Reader | None) -> Losable:
    """Return a tree that may be planned without the files of some ranks, by what was read of it, or is by `read`."""
    from ms_recover.planning.audit.after import Losable
    from ms_recover.planning.choice import choose_step
    from ms_recover.planning.judging.judge import Parts
    from ms_recover.planning.tree.tree_facts import TreeFacts

    facts = tree.facts
    known, left = facts.contents, _MOST_READ

    def contents_of(files: Sequence[SliceFile]) -> Contents:
        nonlocal known, left
        unread = [file for file in files if not known.knows(file)]
        left -= sum(file.size for file in unread)
        if unread:
            if read is None or left < 0:
                raise _UnreadError
            try:
                known = known.merged(read(unread))
            except MsRecoverError as error:
                raise _ReadingError(error) from error
        return known.of(files)

    # A loss is planned by what reading allows; past the bound by what is known already, which the answer says.
    def ask(ranks: frozenset[int]) -> tuple[Choice[AssessedStep], bool]:
        without, options = facts.without(ranks)
        try:
            return Session(without, options, read=contents_of).chosen[1], True
        except _UnreadError:
            return choose_step(Parts(TreeFacts(without, options, known))), False

    return Losable(tree, ask)


def audit_claims(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    topology: Topology | None = None,
    wanted: AuditOptions = DEFAULT_AUDIT,
) -> Audit:
    """Say the same before the first checkpoint, by strategy files, rank lists, or the axes in the options.

    An inventory of them alone is that of `ms_recover.scanning.claims.read_claims`; with axes it may be empty.

    Raises
    ------
    MissingInputError
        When nothing says who will hold the same.
    UsageError, ContradictionError
        As `audit`.
    """
    from ms_recover.planning.audit.claimed import claimed_holders
    from ms_recover.planning.audit.findings import Case, find_findings
    from ms_recover.planning.audit.make_audit import AuditedTree, make_audit
    from ms_recover.planning.audit.shards import find_sharding
    from ms_recover.planning.tree.facts import gather_facts

    facts = gather_facts(inventory, _with_size(inventory, options))
    holders = claimed_holders(facts)
    case = Case(facts=facts, held=holders, dealt=False, topology=topology, sharding=find_sharding(facts))
    audited = AuditedTree(
        root=inventory.root,
        ranks=facts.world.ranks,
        steps=[holders],
        evidence=evidence_of(inventory, options),
        findings=find_findings(case),
    )
    return make_audit(audited, topology, wanted)


def count_ranks_of_claims(inventory: Inventory, options: PlanOptions = DEFAULT_PLAN) -> int:
    """Return the number of ranks by what was read and the options.

    Raises
    ------
    UsageError, ContradictionError
        As `audit`.
    """
    from ms_recover.planning.tree.world_size import find_world_size, with_word

    options = _with_size(inventory, options)
    return with_word(find_world_size(inventory, options.world_size), options, inventory).ranks


def _with_size(inventory: Inventory, options: PlanOptions) -> PlanOptions:
    """Return the options with the number of ranks that their axes multiply to, where nothing else says how many."""
    if options.axes is None or options.world_size is not None or inventory.ranks or inventory.strategy_files:
        return options
    from ms_recover.planning.claims.axes import count_ranks

    return replace(options, world_size=count_ranks(options.axes)[0])


def evidence_of(inventory: Inventory, options: PlanOptions) -> str:
    """Return in words what says who holds the same."""
    from ms_recover.model.texts import many

    sources = []
    if inventory.iterations:
        sources.append("metadata.json")
    if inventory.strategy_files:
        sources.append(many(len(inventory.strategy_files), "strategy file"))
    if inventory.group_files:
        sources.append(many(len(inventory.group_files), "rank list"))
    manifests = sum(file.manifest is not None for file in inventory.slices)
    if manifests:
        sources.append(many(manifests, "manifest"))
    if options.axes is not None:
        sources.append(f"--axes {options.axes}")
    if options.groups:
        sources.append("--group")
    return ", ".join(sources) or "nothing"
