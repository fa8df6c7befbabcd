"""What jobs on changing ranks go through; each function answers what a test compares."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ms_recover.formats.manifest import read_manifest
from tests.support.resharded_jobs import World, copy_tree

Start = Callable[..., World]
EPOCHS = 4
CUT = {"first.weight": 0, "first.bias": 0, "last.weight": 1}
"""The dimension that a parameter is split in, by the end of its name."""


def whole_values(answers: Sequence[Mapping[str, Any]], mp: int) -> dict[str, bytes]:
    """Return the parameters of all tensor-parallel ranks joined, to the last bit; the replicas must agree."""
    found = {}
    for name in answers[0]["loaded"]:
        parts = [answer["loaded"][name] for answer in answers]
        assert all(part == parts[rank % mp] for rank, part in enumerate(parts)), name
        axis = next((axis for end, axis in CUT.items() if name.endswith(end)), None)
        arrays = [np.frombuffer(bytes.fromhex(part), np.float32) for part in parts[:mp]]
        if axis == 1:
            arrays = [one.reshape(8, -1) for one in arrays]
        found[name] = (np.concatenate(arrays, axis) if axis is not None else arrays[0]).tobytes()
    return found


def distance(found: Mapping[str, str], expected: Mapping[str, str]) -> float:
    """Return the largest difference of losses of the same steps."""

    def number(text: str) -> float:
        return float(np.frombuffer(bytes.fromhex(text), np.float32)[0])

    return max(abs(number(loss) - number(expected[step])) for step, loss in found.items())


def brief(world: World, whole: World, mp: int) -> dict[str, Any]:
    """Return what a test compares of a start."""
    answers = world.answers
    if any("error" in answer for answer in answers):
        return {"errors": [answer.get("error") for answer in answers], "said": world.said[-3000:]}
    losses = answers[0]["losses"]
    return {
        "steps": [int(min(losses, key=int)), int(max(losses, key=int))] if losses else [],
        "same losses on all ranks": all(answer["losses"] == losses for answer in answers),
        "distance": distance(losses, whole.answers[0]["losses"]) if losses else 0,
        "step": answers[0]["step"],
        "from": answers[0]["from"],
        "accumulate": answers[0]["accumulate"],
        "values": {name: value.hex() for name, value in sorted(whole_values(answers, mp).items())},
    }


def lose_a_node(top: Path, start: Start) -> dict[str, Any]:
    """2 x 2 trains, two ranks are lost; 1 x 2 goes on with two micro-batches, crashes twice, and 2 x 2 goes on."""
    root = top / "tree"
    whole = start(top / "whole", 4, 2, EPOCHS, how="train")
    first = start(root, 4, 2, EPOCHS, how="train", crash=7)
    copy_tree(root, top / "a")
    for rank in (2, 3):
        shutil.rmtree(root / f"ckpt_dir{rank}")
    found = {"refused": start(root, 2, 2, EPOCHS, micro=2).answers[0].get("error")}
    parts = {"micro": 2, "reshard": True}
    found["unsaved"] = brief(start(root, 2, 2, EPOCHS, before=True, **parts), whole, 2)
    found["tree"] = sorted(str(path.relative_to(root)) for path in root.rglob("*-*.ckpt"))
    found["plain"] = start(root, 2, 2, EPOCHS, micro=2, fresh="start").answers[0].get("error")
    found["resumed"] = brief(start(root, 2, 2, EPOCHS, crash=11, **parts), whole, 2)
    found["again"] = brief(start(root, 2, 2, EPOCHS, crash=13, **parts), whole, 2)
    found["lost again"] = lose_a_rank_of_the_second_world(top, start, root, whole)
    found["wide"] = brief(start(copy_tree(top / "a", top / "wide"), 4, 4, EPOCHS, crash=9, reshard=True), whole, 4)
    shards = start(copy_tree(top / "a", top / "shards"), 4, 2, EPOCHS, crash=9, reshard=True, shards=2)
    found["shards"] = {
        "anew": shards.said.count("which 4 ranks saved: slices are cut anew"),
        "distance": distance(shards.answers[0]["losses"], whole.answers[0]["losses"]),
        "bytes": len(shards.answers[0]["loaded"]["first.weight"]) // 2,
    }
    found["otherwise"] = start(copy_tree(top / "a", top / "otherwise"), 4, 4, EPOCHS).answers[0].get("error")
    found["back"] = brief(start(root, 4, 2, EPOCHS, reshard=True), whole, 2)
    found["first"] = brief(first, whole, 2)
    found["trees"] = sorted(path.name for path in (root / "resharded_from").iterdir())
    return found


def lose_a_rank_of_the_second_world(top: Path, start: Start, root: Path, whole: World) -> dict[str, Any]:
    """What rank 1 of two had is gone, and nobody else has it: both go on from the slices that were set aside."""
    lost = copy_tree(root, top / "lost again", 1)
    found = brief(start(lost, 2, 2, EPOCHS, micro=2, reshard=True), whole, 2)
    return {**found, "trees": sorted(path.name for path in (lost / "resharded_from").iterdir())}


# loops without Model: every rank holds parts of the same whole arrays


SHAPES = {"up": (8, 4), "down": (4, 8), "bias": (5,), "count": ()}


def cuts(dp: int, mp: int, shards: int = 0) -> list[Any]:
    from ms_recover.training import cut

    devices = {"dp": dp, "mp": mp}
    return [
        cut("up", devices, "mp", None, optimizer_shards=shards),
        cut("down", devices, None, "mp"),
        cut("bias", devices, None),
    ]


def parts(rank: int, layouts: Sequence[Any], *, filled: bool, shapes: Mapping[str, Any] = SHAPES) -> list[Any]:
    """Return the parameters of a rank: its parts of known whole arrays, or zeros."""
    import mindspore as ms

    from ms_recover.planning.claims.layouts import cells_of

    ranks = int(np.prod(layouts[0].device_matrix))
    by_name = {one.parameter: one for one in layouts}
    found = []
    for number, (name, shape) in enumerate(shapes.items()):
        whole = np.arange(np.prod(shape), dtype=np.float32).reshape(shape) + 100 * number + 1
        if name in by_name:
            cell = cells_of(by_name[name], range(ranks))[rank]
            for axis, (index, count) in enumerate(zip(cell.index, cell.count, strict=True)):
                whole = np.split(whole, count, axis)[index]
        value = whole if filled else np.zeros_like(whole)
        found.append(ms.Parameter(ms.Tensor(value), name=name))
    return found


def values(parameters: Sequence[Any]) -> dict[str, str]:
    return {one.name: one.asnumpy().tobytes().hex() for one in parameters}


def save(root: Path, rank: int, layouts: Sequence[Any], steps: Sequence[int], parameters: Sequence[Any]) -> str:
    from ms_recover import SliceSaver

    with SliceSaver(parameters, f"{root}/ckpt_dir{{rank}}", "loop", layouts=layouts) as saver:
        for step in steps:
            saver.save(step)
    return "saved"


def go_on(root: Path, rank: int, layouts: Sequence[Any], *, shapes: Any = SHAPES, **options: Any) -> dict[str, Any]:
    """Resume zeros; answer what came of it."""
    from ms_recover import resume
    from ms_recover.errors import MsRecoverError

    parameters = parts(rank, layouts, filled=False, shapes=shapes)
    try:
        resumed = resume(parameters, root, layouts=layouts, reshard=True, **options)
    except MsRecoverError as error:
        return {
            "error": f"{type(error).__name__}: {error}",
            "untouched": not any(one.asnumpy().any() for one in parameters),
        }
    right = values(parameters) == values(parts(rank, layouts, filled=True, shapes=shapes))
    return {"step": str(resumed.step), "from": resumed.resharded_from, "right": right}


def there_and_back(top: Path, start: Start) -> dict[str, Any]:
    """2 x 2 -> 1 x 4 -> 2 x 2 with optimizer shards -> 2 x 2, in one job: each loads what was, and saves it again."""
    root = top / "tree"

    def work(rank: int) -> list[Any]:
        first, second, third = cuts(2, 2), cuts(1, 4), cuts(2, 2, 2)
        save(root, rank, first, (1, 2), parts(rank, first, filled=True))
        found = []
        for layouts, step in ((second, 3), (third, 4), (first, 5)):
            found.append(go_on(root, rank, layouts))
            save(root, rank, layouts, (step,), parts(rank, layouts, filled=True))
        found.append(go_on(root, rank, first))  # as they are
        return found

    world = World(top / "world", 4, work)
    from ms_recover import api

    trees = [root, *sorted((root / "resharded_from").iterdir())]
    checks = {path.name: [check.status for check in api.verify(api.scan(path)).checks] for path in trees}
    return {"answers": world.answers, "checks": checks, "said": world.said[-3000:]}


def mistakes(top: Path, start: Start) -> dict[str, Any]:
    """Two ranks go on from slices of four, and from everything that cannot be."""
    from tests.support.sample import flip

    tree = top / "tree"
    layouts = cuts(2, 2)
    World(top / "saving", 4, lambda rank: save(tree, rank, layouts, (1, 2), parts(rank, layouts, filled=True)))
    lost, one_bad, all_bad, elsewhere = (top / name for name in ("lost", "one bad", "all bad", "elsewhere"))
    copy_tree(tree, lost, 2, 3)
    copy_tree(tree, one_bad)
    flip(one_bad / "ckpt_dir0" / "loop-1_2.ckpt")
    copy_tree(tree, all_bad)
    for rank in range(4):
        flip(all_bad / f"ckpt_dir{rank}" / "loop-1_2.ckpt")
    copy_tree(tree, top / "halved", 1, 3)
    (elsewhere / "none").mkdir(parents=True)
    before = {str(path): path.stat().st_mtime_ns for path in top.rglob("*.ckpt")}

    def work(rank: int) -> dict[str, Any]:
        mine = cuts(1, 2)
        wide = {**SHAPES, "bias": (3,)}
        odd = [*mine[:2], *_odd()]
        return {
            "plain": _plain(tree, rank, mine),
            "half": go_on(tree, rank, mine) if rank == 0 else _plain(tree, rank, mine),
            "lost": go_on(lost, rank, mine),
            "one bad": go_on(one_bad, rank, mine),
            "all bad": go_on(all_bad, rank, mine),
            "all bad, chosen": go_on(all_bad, rank, mine, step="1_2"),
            "nobody holds it": go_on(top / "halved", rank, mine),
            "nothing": go_on(top / "nowhere", rank, mine),
            "one sees nothing": go_on(tree if rank == 0 else top / "nowhere", rank, mine),
            "one source is gone": go_on(
                elsewhere / "none", rank, mine, sources=[str(top / ("gone" if rank else "tree"))]
            ),
            "sources": go_on(elsewhere / "none", rank, mine, sources=[str(tree)]),
            "does not divide": go_on(tree, rank, _uneven(), shapes=SHAPES | {"bias": (4,)}),
            "another model": go_on(tree, rank, odd, shapes={**SHAPES, "other": (4,)}),
            "another shape": go_on(tree, rank, mine, shapes=wide),
            "no such step": go_on(tree, rank, mine, step="1_9"),
        }

    world = World(top / "world", 2, work)
    after = {str(path): path.stat().st_mtime_ns for path in top.rglob("*.ckpt")}
    return {"answers": world.answers, "untouched": before == after, "said": world.said[-4000:]}


def _plain(root: Path, rank: int, layouts: Sequence[Any]) -> dict[str, Any]:
    from ms_recover import resume
    from ms_recover.errors import MsRecoverError

    try:
        resume(parts(rank, layouts, filled=False), root)
    except MsRecoverError as error:
        return {"error": f"{type(error).__name__}: {error}"}
    return {}


def _odd() -> list[Any]:
    from ms_recover.training import cut

    return [cut("bias", {"dp": 1, "mp": 2}, None), cut("other", {"dp": 1, "mp": 2}, "mp")]


def _uneven() -> list[Any]:
    from ms_recover.training import cut

    devices = {"dp": 1, "mp": 2}
    return [*cuts(1, 2)[:2], cut("bias", devices, "mp")]


def abandon_a_run(top: Path, start: Start) -> dict[str, Any]:
    """2 x 2 trains, a node is lost; 1 x 2 goes on, and once more from the run of the four; then 2 x 2 again."""
    root, parts = top / "tree", {"micro": 2, "reshard": True}
    whole = start(top / "whole", 4, 2, EPOCHS, how="train")
    start(root, 4, 2, EPOCHS, how="train", crash=7)
    first = newest_run(root)
    for rank in (2, 3):
        shutil.rmtree(root / f"ckpt_dir{rank}")
    found = {"gone on": brief(start(root, 2, 2, EPOCHS, crash=11, **parts), whole, 2)}
    abandoned = newest_run(root)
    found["from the first"] = brief(start(root, 2, 2, EPOCHS, crash=9, run=first, **parts), whole, 2)
    found["runs"] = [first, abandoned, newest_run(root)]
    by_choice = copy_tree(root, top / "chosen")
    back = start(root, 4, 2, EPOCHS, reshard=True)
    found["back"] = brief(back, whole, 2)
    found["names the abandoned one"] = f"of run {abandoned}" in back.said and "training resumes from step" in back.said
    found["chosen"] = brief(start(by_choice, 4, 2, EPOCHS, reshard=True, run=abandoned), whole, 2)
    return found


def newest_run(root: Path) -> str:
    """Return the run that was started last of those with slices in place."""
    manifests = [read_manifest(path) for path in root.glob("ckpt_dir*/*.manifest.json")]
    return max(manifests, key=lambda one: one.training.started).run_id
