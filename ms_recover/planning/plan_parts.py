"""The plan of a tree of iterations, put together from the plans of its parts.

Each part is planned as any tree is. An iteration is recoverable when all its parts are, as slices of one run; the
newest such iteration wins. A rank's verdict is that of its worst part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ms_recover.errors import MissingInputError
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.planning.choice import AssessedStep, Choice, choose_step
from ms_recover.planning.document_check import plan_documents
from ms_recover.planning.judging.parts import Parts
from ms_recover.planning.planner import Planned, plan_part, texts_of_other_runs
from ms_recover.planning.required_reads import required_reads
from ms_recover.planning.tree.tree_facts import TreeFacts


def plan_parts(inventory: Inventory, parts: Sequence[Inventory], options: PlanOptions, contents: Contents) -> Planned:
    """Plan a tree of iterations, whose parts are those of `split_parts`.

    The plans of parts are joined when no file that they rest on is unread; before that the plan is the first part's.

    Errors are those of `ms_recover.planning.planner.plan_facts`, `gather_facts` and `TreeFacts`.
    """
    tree = Parts(TreeFacts(inventory, options, contents, parts), all_read=options.quick)
    return _join(tree, choose_step(tree))


def _is_unread(tree: Parts, planned: Sequence[Planned]) -> bool:
    """Whether plans of parts rest on files that must still be read."""
    if tree.facts.options.quick:
        return False
    return any(not tree.facts.contents.knows(file) for one in planned for file in required_reads(one))


def _join(tree: Parts, choice: Choice[AssessedStep]) -> Planned:
    """Return the joined plan; while files are unread that of the first part, because only its reads are asked for."""
    inventory, shown, found = tree.facts.inventory, choice.shown.value, choice.found
    step = choice.shown.step
    planned = tuple(plan_part(tree, part, found=found) for part in shown.parts)
    plans = [one.plan for one in planned]
    if not plans:
        raise MissingInputError(
            f"{inventory.root}: no iteration holds a file of a rank, and nothing states what they held"
        )
    if found and _is_unread(tree, planned):
        return replace(planned[0], parts=planned)
    chosen = tree.facts.options.step is not None
    documents, warnings = plan_documents(inventory, step, chosen=chosen) if found else ((), [])
    actions = sorted((action for plan in plans for action in plan.actions), key=lambda action: action.rank)
    notes = dict.fromkeys([*inventory.notes, *(note for plan in plans for note in plan.notes)])
    plan = replace(
        plans[0],
        world_size=max(plan.world_size for plan in plans),
        step=step if found else None,
        actions=tuple(actions) if found else (),
        group_files=(),
        strategy_files=(),
        set_aside=tuple(one for plan in plans for one in plan.set_aside) if found else (),
        ranks=shown.ranks,
        rejected_steps=choice.rejected,
        notes=tuple(sorted(notes, key=lambda note: (note.path, note.reason))),
        run_id=shown.run_id,
        disagreements=tuple(dict.fromkeys(text for plan in plans for text in plan.disagreements)),
        partials=() if found else tuple(action for plan in plans for action in plan.partials),
        considered=step,
        warnings=(
            *texts_of_other_runs(planned[0].facts, choice.rejected),
            *dict.fromkeys(text for plan in plans for text in plan.warnings),
            *warnings,
        ),
        documents=documents,
    )
    return replace(planned[0], plan=plan, parts=planned)
