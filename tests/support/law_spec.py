"""The law about slices that are whole and proven, as a specification: decided from what was put into a tree alone."""

from __future__ import annotations

from collections.abc import Iterator

from ms_recover.model.steps import Step
from tests.support.cuts import cell_of
from tests.support.law_files import Tree, contents_of
from tests.support.law_network import Tensor
from tests.support.law_scenes import MISSING, RIGHT

PROOF = ("saved", "sealed")


def must_recover(tree: Tree) -> Step | None:
    """Return the step that a plan must recover with 0, unless it recovers a newer one; None where nothing obliges it.

    The evidence in the tree must be right and not contradict itself:

    - No strategy file and no rank list is of another job; they may be missing, on some ranks or on all.
    - Slices are whole, gone, or *shown* to be damaged: by their own manifest, or because they cannot be read or lack
      parameters.
    - A slice that is wrong and not shown to be, has more whole replicas in its rank list than there are wrong ones, at
      this step alone.

    - No rank that needs a slice has wrong ones at its other steps, not shown to be: so does one whose rank list is
      another job's, and one step does not show which of the two it is.

    The step is the newest of which each rank has its slice whole, or can have it whole from such slices (`has_source`),
    where manifests lie beside some slices from these alone. At newer steps something may be lost, but nothing disputed.
    """
    scene = tree.scene
    if not scene.strategies_right or not scene.lists_right:
        return None
    if scene.options.world_size is None and not any(
        (scene.job.size - 1, step) in tree.data for step in scene.job.steps
    ):
        return None
    if scene.manifests.startswith("sealed") and (not scene.known_when_saved or scene.manifests == "sealed on some"):
        return None  # what was sealed without rank lists names other groups than the lists that came later
    if not scene.manifests.startswith("saved") and "another run" in tree.manifest.values():
        return None  # a run that saves manifests has the names of slices without
    if scene.manifests == "none" and tree.manifest:
        return None  # where one slice has a manifest, of whatever run, the others were not committed
    if sum(any(hidden(tree, step)) for step in scene.job.steps) > 1:
        return None
    for step in reversed(scene.job.steps):
        if any(not _has_majority(tree, rank, step) for rank in hidden(tree, step)):
            return None
        lacking = [rank for rank in range(scene.job.size) if not _keeps(tree, rank, step)]
        if all(has_source(tree, rank, step) for rank in lacking):
            return step if not any(_speaks_against_list(tree, rank, step) for rank in lacking) else None
    return None


def _speaks_against_list(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a rank has slices at other steps, and all of them are wrong and not shown to be."""
    others = [one for one in tree.scene.job.steps if one != step and (rank, one) in tree.data]
    return bool(others) and all(rank in hidden(tree, one) for one in others)


def hidden(tree: Tree, step: Step) -> Iterator[int]:
    """Yield the ranks whose slices of a step are wrong, and not shown to be by themselves."""
    for rank in range(tree.scene.job.size):
        there = (rank, step) in tree.data and rank not in tree.scene.options.lost
        if there and not tree.is_intact(rank, step) and not is_shown(tree, rank, step):
            yield rank


def is_shown(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a wrong slice is shown to be damaged by its own manifest, or by its structure."""
    if len(tree.contents[rank, step]) < len(tree.scene.job.of_rank(rank)):
        return True
    return tree.manifest.get((rank, step)) == "against" and not tree.scene.options.quick


def counts(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a slice is whole, and committed where manifests lie beside some slices of the step.

    Of a run that saves manifests those of any step show that a slice without one was not finished.
    """
    if rank in tree.scene.options.lost or not tree.is_intact(rank, step):
        return False
    saved = tree.scene.manifests.startswith("saved")
    some = any(saved or at == step for _, at in tree.manifest)
    return not some or tree.manifest.get((rank, step)) in PROOF


def has_source(tree: Tree, rank: int, step: Step) -> bool:
    """Whether what a rank's slice must hold survives on slices that count, and the evidence says so.

    Nobody has what its own manifest names where that is not the truth, or names values of its own. Otherwise that is

    - a whole replica in its rank list, where a list survives that names it.
    - or parameter by parameter, where a strategy file of its stage survives: of one with a layout the same
      region in its stage, of a counter any slice of the stage, of a larger one without layout slices of two groups.
    """
    job = tree.scene.job
    stage = [one for one in range(job.size) if job.stage(one) == job.stage(rank) and counts(tree, one, step)]
    group = job.groups[rank]
    if (rank, step) in tree.manifest or (rank, step) in tree.orphaned:
        proved = tree.proved[rank, step]
        if proved != job.slice(rank, step) or any(one.own for one in job.of_rank(rank)):
            return False
    if knows_group(tree, rank) and any(one in group for one in stage):
        return True
    if not knows_layouts(tree, rank):
        return False
    return all(_has_region(tree, one, rank, stage) for one in job.of_rank(rank))


def _has_region(tree: Tree, tensor: Tensor, rank: int, held: list[int]) -> bool:
    job = tree.scene.job
    if tensor.counter:
        return bool(held)
    if job.stage(rank) in tensor.named:
        return any(job.region(tensor, one) == job.region(tensor, rank) for one in held)
    unread = tree.scene.options.quick and not tree.manifest
    if tensor.layout is not None or tensor.own or unread:
        return False
    return len({job.groups[one] for one in held}) > 1


def knows_group(tree: Tree, rank: int) -> bool:
    """Whether a right rank list that names a rank survives."""
    scene = tree.scene
    return any(one in tree.folders and scene.has("lists", one) == RIGHT for one in scene.job.groups[rank])


def knows_layouts(tree: Tree, rank: int) -> bool:
    """Whether a right strategy file of a rank's stage survives."""
    scene, job = tree.scene, tree.scene.job
    stage = (one for one in range(job.size) if job.stage(one) == job.stage(rank))
    return any(one in tree.folders and scene.has("strategies", one) == RIGHT for one in stage)


def _keeps(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a rank keeps its slice: it counts, or training's manifest proves it as it is."""
    saved = tree.manifest.get((rank, step)) == "saved" and rank not in tree.scene.options.lost
    return counts(tree, rank, step) or saved


def _has_majority(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a wrong slice has more whole replicas in its rank list than there are wrong ones."""
    if not knows_group(tree, rank) or tree.scene.options.quick:
        return False
    group = tree.scene.job.groups[rank]
    wrong = sum(one in group for one in hidden(tree, step))
    return sum(counts(tree, one, step) for one in group) > wrong


def is_protected(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a slice may be neither replaced nor set aside: training's manifest proves it, or a replica confirms it.

    Without a manifest of training it must be whole, equal to another survivor of its rank list, and differ from none.
    """
    if rank in tree.scene.options.lost:
        return False
    if tree.manifest.get((rank, step)) == "saved":
        return True
    if not tree.is_intact(rank, step) or not tree.scene.lists_right or not knows_group(tree, rank):
        return False
    others = [one for one in tree.scene.job.groups[rank] if one != rank and (one, step) in tree.data]
    return bool(others) and all(tree.data[one, step] == tree.data[rank, step] for one in others)


def excuse(tree: Tree, rank: int, step: Step, name: str, content: bytes) -> str | None:
    """Return why wrong contents of a parameter may be written to a rank's slice: nothing in the tree could show it.

    - The rank's own manifest was written for these contents.
    - Nothing was read to plan, and a slice that holds this part is wrong.
    - More slices that hold this part by right evidence hold the wrong contents than the right ones, and their manifests
      do not speak against them.
    - A wrong strategy file or rank list says that another slice holds the same, and nothing contradicts the file.
    - Of a larger parameter without layout slices of two groups hold the same, and no other slice of the stage differs.
    - They are values of another rank's own, which nobody else holds, and no manifest of that rank speaks against them.
    """
    if _wrong_majority(tree, rank, step, name, content):
        return "most slices that are left hold it"
    job = tree.scene.job
    if (rank, step) in tree.proved and contents_of(tree.proved[rank, step])[name] == content:
        return "its own manifest names it"
    held = [one for one in range(job.size) if tree.contents.get((one, step), {}).get(name) == content]
    if not tree.scene.strategies_right and not _is_refuted(tree, "strategies", job.stage(rank)) and held:
        return "a strategy file says so"
    if not tree.scene.lists_right and not _is_refuted(tree, "lists", job.stage(rank)) and held:
        return "a rank list says so"
    own = any(one.own and one.name == name for one in job.of_rank(rank))
    if own and any(tree.manifest.get((one, step)) != "against" for one in held):
        return "another rank's own values, of which nothing shows that they are wrong"
    if _of_two_groups(tree, rank, step, name, content):
        return "slices of two groups hold it, and none holds anything else"
    return None


def why_copied(tree: Tree, rank: int, step: Step, held: dict[str, bytes]) -> str | None:
    """Return why the slice of another rank may be copied to a rank: a wrong rank list says so, and nothing else."""
    if tree.scene.lists_right or _is_refuted(tree, "lists", tree.scene.job.stage(rank)):
        return None
    others = (tree.contents.get((one, step)) for one in range(tree.scene.job.size) if one != rank)
    return "a rank list says so" if any(held == other for other in others) else None


def _of_two_groups(tree: Tree, rank: int, step: Step, name: str, content: bytes) -> bool:
    """Whether slices of two groups hold the same of a larger parameter without layout, and all others do."""
    job = tree.scene.job
    tensor = next(one for one in job.of_rank(rank) if one.name == name)
    known = tensor.counter or (job.stage(rank) in tensor.named and tree.scene.strategies != MISSING)
    held = {
        one: tree.contents[one, step][name]
        for one in range(job.size)
        if job.stage(one) == job.stage(rank)
        and one not in tree.scene.options.lost
        and name in tree.contents.get((one, step), {})
        and not is_shown(tree, one, step)
    }
    groups = {_group(tree, one) for one in held}
    return not known and set(held.values()) == {content} and len(groups) > 1


def _wrong_majority(tree: Tree, rank: int, step: Step, name: str, content: bytes) -> bool:
    """Whether most slices that are left of a rank list hold the wrong contents.

    By layouts, or of a counter, others of the stage count where slices of two groups or more hold the truth. A slice
    that was cut off is damaged as a whole, so that it is replaced and speaks for nothing; one of another group, in the
    wrong place, does not speak for the rank beside whose name it lies, whatever both ranks share.
    """
    job, options = tree.scene.job, tree.scene.options
    tensor = next(one for one in job.of_rank(rank) if one.name == name)
    truth = job.held(tensor, rank, step).tobytes()
    there = {
        one
        for one in range(job.size)
        if one not in options.lost
        and name in tree.contents.get((one, step), {})
        and (one in job.replicas(rank) if tensor.own else job.region(tensor, one) == job.region(tensor, rank))
    }
    wrong = {one for one in there if tree.contents[one, step][name] == content and not is_shown(tree, one, step)}
    right = {
        one
        for one in there
        if tree.contents[one, step][name] == truth
        if not _is_cut(tree, one, step) and not _is_of_another_group(tree, one, step)
    }
    if options.quick and wrong:
        return True
    named_by = {one for one in there if contents_of(tree.proved.get((one, step), b"")).get(name) == content}
    if any(tree.manifest.get((one, step)) in PROOF for one in wrong) or named_by:
        wrong |= named_by
        right = {one for one in right if tree.manifest.get((one, step)) in PROOF}
    near = {one for one in right if one in job.groups[rank] and knows_group(tree, rank)}
    others = {one for one in right if job.stage(one) == job.stage(rank)}
    named = tensor.counter or job.stage(rank) in tensor.named
    if named and knows_layouts(tree, rank) and len({_group(tree, one) for one in others}) > 1:
        near |= others
    return len(wrong) > len(near)


def _is_cut(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a slice cannot be read, or has some of its parameters alone."""
    return tree.contents[rank, step].keys() < {one.name for one in tree.scene.job.of_rank(rank)}


def _is_of_another_group(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a slice is that of a rank of another group."""
    job = tree.scene.job
    others = (one for one in range(job.size) if one not in job.groups[rank])
    return any(tree.data[rank, step] == job.slice(one, step) for one in others)


def _group(tree: Tree, rank: int) -> tuple[int, ...]:
    """Return the rank list of a rank, as far as the tree knows it."""
    return tree.scene.job.groups[rank] if knows_group(tree, rank) else (rank,)


def _is_refuted(tree: Tree, what: str, stage: int) -> bool:
    """Whether slices, right files or manifests contradict the wrong strategy files or rank lists of a stage.

    A right list contradicts a wrong one only of a rank that the wrong one names. A slice that was cut off shows
    nothing: that it lacks what another has is its damage. So is it where ranks differ in what both hold in truth: there
    the wrong file is right.
    """
    scene, job = tree.scene, tree.scene.job
    there = {one for one in tree.folders if scene.has(what, one) == "wrong"}
    named = {one for rank in there for one in scene.foreign_groups.get(rank, ())}
    near = [one for one in tree.folders if (one in named if what == "lists" else job.stage(one) == stage)]
    if sum(scene.has(what, one) == RIGHT for one in near) >= len(there.intersection(near)) > 0:
        return True
    if _are_alike_by_fault(tree, what, there):
        return False
    if "saved" in tree.manifest.values() and (scene.known_when_saved or (what == "lists" and scene.lists != MISSING)):
        return True
    for (rank, step), held in tree.contents.items():
        for (other, at), theirs in tree.contents.items():
            if at != step or other <= rank or (job.stage(rank), job.stage(other)) != (stage, stage):
                continue
            if not (_is_committed(tree, rank, step) and _is_committed(tree, other, step)):
                continue
            if _is_cut(tree, rank, step) or _is_cut(tree, other, step):
                continue
            if scene.options.lost.intersection((rank, other)):
                continue  # the operator took them out of the comparison
            for tensor in job.of_rank(rank):
                claimed = _claimed_same(tree, what, tensor.name, rank, other, there)
                differ = (tensor.name in held) != (tensor.name in theirs) or (
                    not scene.options.quick and held.get(tensor.name) != theirs.get(tensor.name)
                )
                if claimed and differ and not tensor.own and job.region(tensor, rank) != job.region(tensor, other):
                    return True
    return False


def _are_alike_by_fault(tree: Tree, what: str, there: set[int]) -> bool:
    """Whether two ranks that a wrong file calls alike are so at some step, because one has the slice of the other.

    This step confirms the file as another one contradicts it, and nothing shows at which of them a slice is wrong.
    """
    job = tree.scene.job
    return any(
        other > rank
        and at == step
        and held == theirs
        and job.slice(rank, step) != job.slice(other, step)
        and _are_claimed_alike(tree, what, rank, other, there)
        for (rank, step), held in tree.contents.items()
        for (other, at), theirs in tree.contents.items()
    )


def _are_claimed_alike(tree: Tree, what: str, rank: int, other: int, there: set[int]) -> bool:
    """Whether wrong files say that two ranks hold the same in all that they speak of."""
    job = tree.scene.job
    if what == "lists":
        return _claimed_same(tree, what, "", rank, other, there)
    if job.stage(rank) != job.stage(other):
        return False
    names = [one.parameter for one in tree.scene.foreign[job.stage(rank)].layouts]
    return all(_claimed_same(tree, what, name, rank, other, there) for name in names)


def _is_committed(tree: Tree, rank: int, step: Step) -> bool:
    """Whether a slice has a manifest of this run, or no slice of the step has one; what has none shows nothing then."""
    some = any(tree.manifest.get((one, step)) in PROOF for one in range(tree.scene.job.size))
    return not some or tree.manifest.get((rank, step)) in PROOF


def _claimed_same(tree: Tree, what: str, name: str, rank: int, other: int, there: set[int]) -> bool:
    scene, job = tree.scene, tree.scene.job
    if what == "lists":
        return any(other in scene.foreign_groups[one] and rank in scene.foreign_groups[one] for one in there)
    if not any(job.stage(one) == job.stage(rank) for one in there):
        return False
    layout = next((one for one in scene.foreign[job.stage(rank)].layouts if one.parameter == name), None)
    return layout is not None and cell_of(layout, rank) == cell_of(layout, other)
