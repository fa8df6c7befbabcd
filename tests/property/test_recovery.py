"""Several strikes at once on a real tree: what a recovery leaves behind is right, complete and never mixed."""

from __future__ import annotations

import functools
import os
import random
import stat
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.errors import InputError, MsRecoverError
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import CopyAction, Plan
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests, slice_bytes
from tests.support import damage, mishaps, mistakes
from tests.support.examples import examples
from tests.support.mishaps import FOREIGN_SEED, NotHereError, Victim, overwrite

STEPS = (Step(1, 8), Step(2, 8), Step(3, 8))
RUN, OTHER_RUN = "run-1", "another-run"
SAVED, SEALED, NONE = "saved with manifests", "sealed afterwards", "no manifests"
EXAMPLES = examples(110)
MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None


def by_bytes(change: Callable[[bytes], bytes]) -> mishaps.Mishap:
    return lambda victim: overwrite(victim.path, change(victim.path.read_bytes()))


CONTENTS = {kind: by_bytes(change) for kind, change in damage.CONTENT_DAMAGE.items()}
TOLERATED = {kind: by_bytes(change) for kind, change in damage.TOLERATED_DAMAGE.items()}
STRUCTURE = {kind: by_bytes(change) for kind, change in {**damage.STRUCTURE_DAMAGE, **damage.CRC_DAMAGE}.items()}
MISTAKES = {kind: strike for kind, strike in mistakes.MISTAKES.items() if kind != "deduplicated with everybody"}
FAMILIES: tuple[Mapping[str, mishaps.Mishap], ...] = (
    CONTENTS,
    TOLERATED,
    STRUCTURE,
    mishaps.LOSSES,
    MISTAKES,
    mishaps.MANIFEST_DAMAGE,
    mishaps.RANK_LIST_DAMAGE,
)
KINDS = {kind: strike for family in FAMILIES for kind, strike in family.items()}
IN_THE_WAY = ("a directory", "a full directory", "a pipe", "a link to a device", "manifest a pipe")
"""What other strikes could wait for, or read without end, comes last."""


@dataclass(frozen=True)
class Strike:
    """One kind of damage and where; `peers` are drawn among those that are left of its group."""

    kind: str
    rank: int
    step: Step
    other_step: Step
    stranger: int
    peers: tuple[int, ...]

    def mishap(self) -> mishaps.Mishap:
        return KINDS[self.kind]

    def hit(self, root: Path) -> bool:
        victim = Victim(root, self.rank, self.step, self.other_step, self.stranger, self.peers)
        try:
            self.mishap()(victim)
        except (NotHereError, MsRecoverError, OSError, ValueError, IndexError):
            return False  # what it needs was struck before
        return True


@dataclass(frozen=True)
class Scene:
    """A tree and what strikes it."""

    data_parallel: int
    model_parallel: int
    evidence: str
    strikes: tuple[Strike, ...]
    gone: frozenset[int]
    tell_size: bool

    @property
    def size(self) -> int:
        return self.data_parallel * self.model_parallel

    def group(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank % self.model_parallel, self.size, self.model_parallel))

    def whole(self) -> dict[str, bytes]:
        """Return the files of the tree before anything strikes it."""
        return whole_tree(self.data_parallel, self.model_parallel, self.evidence)

    def make(self, root: Path) -> dict[str, bytes]:
        """Write the struck tree; return what its slices were."""
        whole = self.whole()
        for name, data in whole.items():
            path = root / name
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        for rank in self.gone:
            for path in (root / f"ckpt_dir{rank}").iterdir():
                path.unlink()
            (root / f"ckpt_dir{rank}").rmdir()
        hits = [strike.kind for strike in self.strikes if strike.hit(root)]
        event(f"{len(hits)} strikes")
        return {name: data for name, data in whole.items() if name.endswith(".ckpt")}


@functools.cache
def whole_tree(data_parallel: int, model_parallel: int, evidence: str) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(folder)
        parameters, pieces = damage.STRUCK, damage.STRUCK_PIECES
        sizes = {"data_parallel": data_parallel, "model_parallel": model_parallel}
        make_tree(root, **sizes, steps=STEPS, parameters=parameters, pieces=pieces)
        for directory in root.iterdir():
            (directory / "strategy.ckpt").write_bytes(damage.struck_layout_bytes(data_parallel, model_parallel))
        return backed(root, evidence)


def backed(root: Path, evidence: str) -> dict[str, bytes]:
    """Give slices what they are to rest on; return every file."""
    if evidence == SAVED:
        save_manifests(root, RUN)
    elif evidence == SEALED:
        api.seal(api.scan(root))
    files = (path for path in root.rglob("*") if path.is_file() and path.parent != root)
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


@st.composite
def scenes(draw: st.DrawFn, evidence: str, kinds: Mapping[str, mishaps.Mishap] = KINDS) -> Scene:
    data_parallel, model_parallel = draw(st.sampled_from([(2, 2), (3, 2), (3, 1)]))
    ranks = range(data_parallel * model_parallel)
    strikes = []
    struck = draw(st.sampled_from([STEPS[2:], STEPS[2:], STEPS[1:], STEPS]))
    for _ in range(draw(st.integers(1, 7))):
        rank, step = draw(st.sampled_from(ranks)), draw(st.sampled_from(struck[::-1]))
        others = [other for other in ranks if other % model_parallel == rank % model_parallel and other != rank]
        strangers = [other for other in ranks if other % model_parallel != rank % model_parallel]
        kind = draw(st.sampled_from([kind for kind in kinds if strangers or "another group" not in kind]))
        strikes.append(
            Strike(
                kind,
                rank,
                step,
                draw(st.sampled_from([other for other in STEPS if other != step])),
                draw(st.sampled_from(strangers or [rank])),
                tuple(draw(st.permutations(others))),
            )
        )
    strikes.sort(key=lambda strike: strike.kind.startswith(IN_THE_WAY))
    gone = draw(st.sets(st.sampled_from(ranks), max_size=1))
    return Scene(data_parallel, model_parallel, evidence, tuple(strikes), frozenset(gone), draw(st.booleans()))


def recover(scene: Scene) -> None:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = Path(os.path.realpath(folder))
        truth = scene.make(root)
        wanted = PlanOptions(world_size=scene.size if scene.tell_size else None)
        try:
            inventory = api.scan(root)
            plan = api.plan(inventory, wanted)
        except InputError as error:
            event(f"refused: {type(error).__name__}")
            return
        check_order(scene, inventory, plan, wanted)
        if not plan.recoverable or plan.world_size != scene.size:
            event("no plan")
            return
        event(f"step {plan.step} of run {plan.run_id}, {len(plan.actions)} actions")
        check_sources(scene, plan, root, truth)
        before = slices_below(root)
        try:
            api.check(plan)
            outcome = api.apply(plan)
        except MsRecoverError as error:
            event(f"failed: {type(error).__name__}")
            return
        if outcome.exit_code:
            event(f"ended with {outcome.exit_code}")
            assert outcome.exit_code in (1, 5), outcome
            check_changes(scene, plan, before, slices_below(root), truth)
            return
        if any((root / verdict.path).is_symlink() for verdict in plan.ranks):
            event("a link")  # what was kept may have changed with the slice that it leads to
            return
        check_end(scene, plan, root, truth)
        if scene.evidence == NONE and not is_right(plan, root, truth):
            event("wrong and nothing told")  # what is wrong everywhere now may be noticed by the next plan
            return
        again = api.plan(api.scan(root), wanted)
        assert again.recoverable, again.rejected_steps
        assert (again.step, again.run_id or None) == (plan.step, plan.run_id or None)
        assert not again.actions, again.actions
        assert not again.group_files
        assert [kept.path for kept in again.ranks] == [held.path for held in plan.ranks]


def check_order(scene: Scene, inventory: Inventory, plan: Plan, wanted: PlanOptions) -> None:
    """The plan does not depend on the order of what was found."""
    chance = random.Random(len(inventory.slices))
    mixed = {name: list(getattr(inventory, name)) for name in ("slices", "group_files", "strategy_files", "notes")}
    for found in mixed.values():
        chance.shuffle(found)
    again = api.plan(replace(inventory, **{name: tuple(found) for name, found in mixed.items()}), wanted)
    assert again == plan


def check_sources(scene: Scene, plan: Plan, root: Path, truth: dict[str, bytes]) -> None:
    """Sources are of the planned step, of the target's group, and hold what the target's group holds."""
    for action in plan.actions:
        for replica in (action.replica, *action.alternatives) if isinstance(action, CopyAction) else ():
            assert replica.rank in scene.group(action.rank)
            assert f"-{plan.step}.ckpt" in replica.path
            if is_told(scene, plan, action.evidence):
                assert (root / replica.path).read_bytes() in allowed(scene, plan, action.rank, truth)


def check_end(scene: Scene, plan: Plan, root: Path, truth: dict[str, bytes]) -> None:
    """Every rank has its slice of one step and one run, and it is the right one wherever that can be known."""
    held: dict[int, bytes] = {}
    runs = set()
    for verdict in plan.ranks:
        assert verdict.verdict != "unrecoverable"
        assert verdict.path is not None
        assert f"-{plan.step}.ckpt" in verdict.path
        held[verdict.rank] = (root / verdict.path).read_bytes()
        if is_told(scene, plan, verdict.evidence):
            assert held[verdict.rank] in allowed(scene, plan, verdict.rank, truth), (verdict.rank, verdict.reason)
    after = {file.path: file for file in api.scan(root).slices}
    for verdict in plan.ranks:
        manifest = after[verdict.path].manifest
        if manifest is not None and (scene.evidence == SAVED or verdict.evidence == "manifest"):
            runs.add(manifest.run_id)
    assert len(runs) <= 1
    assert not runs or runs <= {plan.run_id, ""}
    if scene.evidence == SAVED and plan.run_id is not None:
        assert runs == {plan.run_id}
        for rank, data in held.items():
            assert {held[other] for other in scene.group(rank)} == {data}


def is_right(plan: Plan, root: Path, truth: dict[str, bytes]) -> bool:
    names = {verdict.path: f"ckpt_dir{verdict.rank}/test-{plan.step}.ckpt" for verdict in plan.ranks}
    return all((root / path).read_bytes() == truth.get(name) for path, name in names.items() if path is not None)


def is_told(scene: Scene, plan: Plan, evidence: str | None) -> bool:
    """Whether something tells what is right: a manifest of the slice, or that saved slices have manifests."""
    if scene.evidence == SAVED:
        return plan.run_id is not None
    return scene.evidence == SEALED and evidence == "manifest"


def allowed(scene: Scene, plan: Plan, rank: int, truth: dict[str, bytes]) -> set[bytes]:
    """Return what `rank` may hold: its slice as the run saved it."""
    right = {truth.get(f"ckpt_dir{rank}/test-{plan.step}.ckpt", b"no such step")}
    nameless = any(strike.kind == "a slice of another layout" for strike in scene.strikes)
    if plan.run_id == OTHER_RUN or (scene.evidence == SEALED and nameless):
        # some strikes save slices of another run, with manifests; those of a sealed tree name no run
        halves = {name: max(1, count // 2) for name, count in damage.STRUCK.items()}
        network = {"fc.weight": 64, "fc.bias": 8, "global_step": 1}
        right |= {slice_bytes(listed, FOREIGN_SEED) for listed in (damage.STRUCK, halves, network)}
    return right


def slices_below(root: Path) -> dict[str, bytes]:
    """Return the slices by path; of links only what they lead to is looked at."""
    files = (path for path in root.rglob("*.ckpt") if stat.S_ISREG(path.lstat().st_mode))
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def check_changes(
    scene: Scene, plan: Plan, before: dict[str, bytes], after: dict[str, bytes], truth: dict[str, bytes]
) -> None:
    """What a recovery that did not succeed everywhere left behind is what was there, or right."""
    assert set(before) <= set(after)
    evidence = {verdict.path: (verdict.rank, verdict.evidence) for verdict in plan.ranks}
    for path, data in after.items():
        if path.endswith("/strategy.ckpt"):
            assert data == before.get(path, truth[path])
        elif data != before.get(path):
            rank, by = evidence[path]
            assert not is_told(scene, plan, by) or data in allowed(scene, plan, rank, truth), path


def scene(evidence: str, *kinds: str, data_parallel: int = 2) -> Scene:
    """Strike rank 0's newest slice in several ways."""
    strikes = tuple(Strike(kind, 0, STEPS[-1], STEPS[0], 1, (2,)) for kind in kinds)
    return Scene(data_parallel, 2, evidence, strikes, frozenset(), False)


BESIDE = "a foreign run's slice beside it"
TAKEOVER = Scene(
    3,
    1,
    SEALED,
    (
        Strike("a slice of another layout", 0, STEPS[-1], STEPS[0], 0, (1, 2)),
        Strike("a foreign slice beside it, its name not UTF-8", 1, STEPS[-1], STEPS[0], 1, (0, 2)),
    ),
    frozenset({2}),
    False,
)
"""A conflict, and a newer file of another prefix that equals one side of it."""
LOOSE = Scene(
    3,
    2,
    SEALED,
    (
        Strike("bit flip in a batch statistic", 4, STEPS[-1], STEPS[0], 1, (0, 2)),
        Strike("bit flip in the first parameter", 0, STEPS[-1], STEPS[0], 1, (2, 4)),
        Strike("manifest removed", 4, STEPS[-1], STEPS[0], 1, (0, 2)),
    ),
    frozenset(),
    False,
)
"""A replica without a manifest, damaged in a parameter that may differ between replicas."""
TWO_RUNS = Scene(
    3,
    1,
    SEALED,
    (
        Strike("bit flip in the first parameter", 0, STEPS[-1], STEPS[0], 0, (1, 2)),
        Strike("a foreign run's slice with its manifest beside it", 0, STEPS[-1], STEPS[0], 0, (1, 2)),
        Strike("bit flip in the first parameter", 1, STEPS[-1], STEPS[0], 1, (0, 2)),
        Strike("a foreign run's contents", 2, STEPS[-1], STEPS[0], 2, (0, 1)),
    ),
    frozenset(),
    False,
)
"""A slice that is recovered beside one of another run with the same bytes."""
WRONG_LISTS = Scene(
    2,
    2,
    SAVED,
    (
        *(
            Strike("bit flip in the first parameter", rank, STEPS[-1], STEPS[0], 1 - rank, (rank + 2,))
            for rank in (0, 1)
        ),
        *(Strike("bit flip in the rank list", rank, STEPS[-1], STEPS[0], 1, ((rank + 2) % 4,)) for rank in (0, 1, 2)),
    ),
    frozenset(),
    False,
)
"""Lists that only manifests outvote, some of which the recovery writes anew."""
MANIFEST_IN_THE_WAY = Scene(
    3,
    1,
    SAVED,
    tuple(Strike(kind, 2, STEPS[-1], STEPS[0], 2, (1, 0)) for kind in ("deduplicated alone", "manifest a directory")),
    frozenset(),
    False,
)
"""A slice that is to be set aside, with something beside it that is no file."""
TWO_STRANGERS = Scene(
    3,
    2,
    NONE,
    tuple(
        Strike("another network's slice", rank, STEPS[-1], STEPS[0], 1 - rank % 2, others)
        for rank, others in ((0, (2, 4)), (3, (1, 5)))
    ),
    frozenset({1}),
    True,
)
"""Two slices of one other network in different groups, which support each other."""
REWRITTEN_LIST = Scene(
    2,
    2,
    NONE,
    (
        Strike("name not UTF-8", 1, STEPS[-1], STEPS[0], 0, (3,)),
        Strike("rank list of one that is alone", 3, STEPS[-1], STEPS[0], 0, (1,)),
        Strike("rank list removed", 1, STEPS[-1], STEPS[0], 0, (3,)),
    ),
    frozenset({0}),
    False,
)
"""A wrong list against one other, which the recovery writes a second time."""


@settings(max_examples=EXAMPLES)
@given(scenes(SAVED))
@example(scene(SAVED, "manifest of a larger world", BESIDE))
@example(scene(SAVED, "a slice of another layout", BESIDE))
@example(WRONG_LISTS)
@example(MANIFEST_IN_THE_WAY)
def test_with_saved_manifests_every_rank_gets_what_it_had(scene: Scene) -> None:
    """Or a refusal that is documented; and nothing is left to do, nothing mixed, nothing taken from a stranger."""
    recover(scene)


@settings(max_examples=EXAMPLES)
@given(scenes(SEALED))
@example(scene(SEALED, "manifest of a larger world", BESIDE))
@example(scene(SEALED, "bit flip in the first byte", BESIDE, data_parallel=3))
@example(TAKEOVER)
@example(TWO_RUNS)
@example(LOOSE)
def test_in_a_sealed_tree_what_a_manifest_tells_is_right(scene: Scene) -> None:
    recover(scene)


@settings(max_examples=EXAMPLES)
@given(scenes(NONE))
@example(TWO_STRANGERS)
@example(REWRITTEN_LIST)
@example(scene(NONE, "bit flip in the first byte", BESIDE, data_parallel=3))
def test_without_manifests_a_recovery_is_complete_and_not_mixed(scene: Scene) -> None:
    recover(scene)
