"""Plan, and read what the plan needs as proof, until nothing is unread."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Sequence
from dataclasses import replace

from ms_recover.errors import UsageError
from ms_recover.model.contents import Contents, Reader
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.planning.choice import choose_step
from ms_recover.planning.judging.parts import Parts
from ms_recover.planning.planner import Planned, plan_choice
from ms_recover.planning.required_reads import required_reads
from ms_recover.planning.tree.tree_facts import TreeFacts
from ms_recover.scanning.read import read_contents


def plan_with_evidence(
    inventory: Inventory,
    options: PlanOptions = DEFAULT_PLAN,
    *,
    jobs: int = 1,
    progress: Callable[[int], None] | None = None,
    read: Reader | None = None,
) -> tuple[Planned, Contents]:
    """Return the plan with its evidence and the digests that were read, also when it goes back to an older step.

    Arguments and errors are those of `ms_recover.api.plan`.
    """
    facts = TreeFacts(inventory, options)
    while True:
        tree = Parts(facts, all_read=options.quick)
        choice = choose_step(tree)
        wanted = () if options.quick else required_reads(choice)
        unread = [file for file in wanted if not facts.contents.knows(file)]
        if not unread:
            return plan_choice(tree, choice), facts.contents
        if read is not None:
            more = read(unread)
        else:
            more = read_contents(inventory.root, unread, jobs=jobs, progress=progress, crc=inventory.crc_later)
        facts = facts.with_contents(facts.contents.merged(more))


def with_obstacles(plan: Plan, follow: Sequence[str] = (), *, elsewhere: Collection[str] = ()) -> Plan:
    """Return a plan that was just made with what keeps its files from being written, where its root is on this host.

    `follow` is that of the options; `elsewhere` has the paths of slices that do not lie below the root.

    Raises
    ------
    UsageError
        When a directory that links may lead to is none.
    """
    for one in follow:
        if not os.path.isdir(one):
            raise UsageError(f"--follow {one} is no directory of this host: name the one that links lead to")
    plan = replace(plan, follow=tuple(dict.fromkeys(os.path.realpath(one) for one in follow)))
    if not plan.changes_anything:
        return plan
    from ms_recover.execution.targets import judge_now  # which a plan that changes nothing does not need

    return replace(plan, obstacles=judge_now(plan, elsewhere=elsewhere, just_made=True).obstacles)
