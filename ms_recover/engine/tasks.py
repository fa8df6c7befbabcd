"""The tasks that workers run at the roots of their nodes. Each may run again: none is spoilt by a second run.

What writes loads on use: a command that reads names the tasks, and does not wait for it.
"""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace

from ms_recover.engine.context import cores, current
from ms_recover.engine.node_store import NodeStore
from ms_recover.engine.roots import make_root
from ms_recover.engine.workers import Node, RootIdentity
from ms_recover.errors import MsRecoverError
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import Digests
from ms_recover.model.options import ScanOptions
from ms_recover.model.outcome import Outcome
from ms_recover.model.places import Obstacle
from ms_recover.model.plan import DocumentWrite, Plan
from ms_recover.model.verdicts import Evidence
from ms_recover.scanning.read import Reading, read_contents
from ms_recover.scanning.scan import scan

_log = logging.getLogger(__name__)


def scan_node(node: Node, options: ScanOptions) -> Inventory:
    """Return what lies below the root; the inventory's root is the name of the node."""
    task = current()
    root = task.open_root(node)
    found = scan(root, replace(options, may_be_empty=True), stop=task.stop, progress=task.progress)
    return replace(found, root=node.label)


def read_slices(node: Node, files: Sequence[SliceFile], from_device: bool) -> Contents:
    """Return the digests of slices."""
    task = current()
    return read_contents(
        task.open_root(node), files, Reading(jobs=task.threads, progress=task.progress, from_device=from_device)
    )


def seal_node(
    node: Node,
    slices: Sequence[tuple[SliceFile, Evidence]],
    groups: Mapping[int, tuple[int, ...]],
    world_size: int,
    digests: Mapping[str, Digests],
) -> list[str]:
    """Write the manifests of sound slices; return the paths of the slices."""
    from ms_recover.execution.seal import seal_slices

    return seal_slices(current().open_root(node), slices, groups, world_size, digests)


def make_node(node: Node) -> RootIdentity:
    """Make the root of a node that has lost it."""
    return make_root(node.root, current().roots)


def apply_node(
    node: Node, plan: Plan, holders: Mapping[str, Node], jobs: int | None, verify: bool, partial: bool
) -> Outcome:
    """Carry out the part of a plan that is this node's; `holders` has the nodes of the files that lie elsewhere."""
    from ms_recover.execution.apply import ApplyOptions, apply_plan

    task = current()
    _log.info("%s: %d slices are written, %d sources lie elsewhere", node.label, len(plan.actions), len(holders))
    stores = {held.label: NodeStore(held, task.ask) for held in holders.values()}
    options = ApplyOptions(
        jobs=jobs or 4 * cores(),
        verify=verify,
        progress=task.count,
        partial=partial,
        sources={path: stores[held.label] for path, held in holders.items()},
        stop=task.stop,
    )
    return apply_plan(replace(plan, root=task.open_root(node)), options)


def find_obstacles(node: Node, plan: Plan, elsewhere: Collection[str]) -> tuple[Obstacle, ...]:
    """Return what keeps the part of a plan that is this node's from being written; some of its slices lie elsewhere."""
    from ms_recover.execution.targets import judge_now

    part = replace(plan, root=current().open_root(node))
    return judge_now(part, elsewhere=elsewhere, just_made=True).obstacles


def write_documents(
    node: Node, writes: Sequence[DocumentWrite], follow: Sequence[str] = ()
) -> tuple[list[str], MsRecoverError | None]:
    """Write documents in their order, up to the first that fails; return those that were written, and the error.

    `follow` is as for `ms_recover.execution.targets.check_place`.
    """
    from ms_recover.execution.destination import LocalDestination
    from ms_recover.execution.small_files import write_document

    destination, written = LocalDestination(current().open_root(node), follow=follow), []
    for write in writes:
        try:
            if write_document(destination, write):
                written.append(write.target)
        except MsRecoverError as error:
            return written, error
    return written, None
