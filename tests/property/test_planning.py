"""Whatever is lost, damaged or misplaced: what a plan promises holds for every tree."""

from __future__ import annotations

import json
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import pytest
from hypothesis import assume, event, example, given, settings
from hypothesis import strategies as st

from ms_recover.errors import ContradictionError, FormatError, MissingInputError
from ms_recover.formats.manifest import decode_manifest, encode_manifest
from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.manifest import DIGEST, Digests, Manifest
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.verbs.session import Session
from tests.support.examples import examples
from tests.support.inventories import slice_file, tree
from tests.support.plans import make_plan

STEPS = (Step(3, 8), Step(2, 8), Step(1, 8))
RUN, OTHER_RUN = "run-1", "run-0"
WHOLE, CUT, FLIPPED, STALE, BARE, FOREIGN = "whole", "cut", "flipped", "stale", "bare", "foreign"
"""As saved; damaged in structure; in contents; another step's; without its manifest; of another run, with its own."""


def digest(text: str) -> str:
    return f"{DIGEST}:{text.encode().hex():0>32.32}"


@dataclass
class World:
    """A tree in memory, and what each slice should hold."""

    data_parallel: int
    model_parallel: int
    manifests: bool
    states: dict[tuple[int, Step], str]
    lists: frozenset[int] = frozenset()
    lost: frozenset[int] = frozenset()
    mtimes: dict[tuple[int, Step], int] = field(default_factory=dict)
    change_manifest: Callable[[Manifest], Manifest] = lambda manifest: manifest

    @property
    def size(self) -> int:
        return self.data_parallel * self.model_parallel

    def group(self, rank: int) -> tuple[int, ...]:
        return tuple(range(rank % self.model_parallel, self.size, self.model_parallel))

    def truth(self, rank: int, step: Step) -> str:
        return f"{step} {rank % self.model_parallel}"

    def contents(self, rank: int, step: Step) -> str:
        state = self.states[rank, step]
        if state == FLIPPED:
            return f"{step} bad {rank}"
        if state == FOREIGN:
            return f"{step} far {rank % self.model_parallel}"
        return self.truth(rank, STEPS[-1] if state == STALE else step)

    def slice(self, rank: int, step: Step) -> SliceFile:
        state = self.states[rank, step]
        problem = "cut" if state == CUT else None
        file = slice_file(rank, step, problem=problem, mtime=self.mtimes.get((rank, step), 1))
        if not self.manifests or state == BARE:
            return file
        told = self.contents(rank, step) if state == FOREIGN else self.truth(rank, step)
        manifest = Manifest(
            run_id=OTHER_RUN if state == FOREIGN else RUN,
            rank=rank,
            world_size=self.size,
            step=step,
            cumulative_step=None,
            file=file.path.rpartition("/")[2],
            size=file.size,
            digests=self.digests(told),
            parameters=file.parameters,
            group=self.group(rank),
        )
        return replace(file, manifest=self.change_manifest(manifest))

    def digests(self, contents: str) -> Digests:
        return Digests(digest(contents), tuple(digest(f"{contents} {i}") for i in range(4)))

    def inventory(self) -> Inventory:
        lists = {rank: list(self.group(rank)) for rank in self.lists}
        return tree([self.slice(*key) for key in self.states], lists)

    def plan(self, inventory: Inventory | None = None, **options: object) -> Plan:
        """Plan as `api.plan` does: read what the plan so far rests on, until it rests on what was read."""
        inventory = inventory or self.inventory()
        wanted = PlanOptions(world_size=self.size, lost=frozenset(self.lost), **options)
        return Session(inventory, wanted, read=self._read).planned.plan

    def _read(self, files: Sequence[SliceFile]) -> Contents:
        return Contents({file.path: self.digests(self.contents(file.rank, file.step)) for file in files})

    def known_group(self, rank: int) -> tuple[int, ...]:
        """Return the group as far as rank lists tell; with manifests it is known anyway."""
        return self.group(rank) if self.lists & set(self.group(rank)) else (rank,)

    def readable(self, rank: int, step: Step) -> bool:
        return self.states.get((rank, step), CUT) != CUT and rank not in self.lost

    def is_alone(self, rank: int, step: Step) -> bool:
        """Whether nobody else's slice can be compared with that of `rank`; one known as an older step's cannot."""
        others = [other for other in self.known_group(rank) if other != rank and self.readable(other, step)]
        return all(self.states[other, step] == STALE for other in others)


@st.composite
def worlds(
    draw: st.DrawFn,
    states: tuple[str, ...] = (CUT, FLIPPED, STALE, BARE, FOREIGN),
    manifests: bool | None = None,
    all_lists: bool = False,
) -> World:
    """Worlds of which most slices are whole."""
    data_parallel, model_parallel = draw(st.integers(1, 4)), draw(st.integers(1, 3))
    ranks = range(data_parallel * model_parallel)
    steps = STEPS[-draw(st.integers(1, 3)) :]
    with_manifests = draw(st.booleans()) if manifests is None else manifests
    fate = st.sampled_from((WHOLE,) * (len(states) + 3) + (None, None) + states)
    fates = {(rank, step): draw(fate) for rank in ranks for step in steps}
    lists = ranks if all_lists else draw(st.sets(st.sampled_from(ranks)))
    return World(
        data_parallel,
        model_parallel,
        with_manifests,
        {key: state for key, state in fates.items() if state is not None},
        frozenset(lists),
        frozenset(draw(st.sets(st.sampled_from(ranks), max_size=2))),
        {key: draw(st.integers(-(2**60), 2**60)) for key in fates},
    )


@st.composite
def bereft_worlds(draw: st.DrawFn) -> World:
    """Worlds in which some ranks lost everything, and the others nothing."""
    data_parallel, model_parallel = draw(st.integers(2, 3)), draw(st.integers(2, 3))
    ranks = range(data_parallel * model_parallel)
    gone = draw(st.sets(st.sampled_from(ranks), min_size=1, max_size=2))
    steps = STEPS[-draw(st.integers(1, 2)) :]
    states = {(rank, step): WHOLE for rank in ranks if rank not in gone for step in steps}
    return World(data_parallel, model_parallel, True, states)


def planned(world: World, **options: object) -> Plan:
    """Plan; trees without a slice, or whose inputs exclude each other, are not the matter here."""
    assume(world.states)
    plan = world.plan(**options)
    event(f"recoverable {plan.recoverable}, actions {bool(plan.actions)}, manifests {world.manifests}")
    return plan


@settings(max_examples=examples(200))
@given(worlds())
def test_every_source_shares_group_step_and_contents_with_its_target(world: World) -> None:
    plan = planned(world)
    for action in plan.actions:
        assert plan.step is not None
        assert action.group == world.group(action.rank)
        for replica in (action.replica, *action.alternatives):
            assert replica.rank in world.group(action.rank)
            assert replica.rank not in world.lost
            assert replica.rank != action.rank
            assert replica.path == f"ckpt_dir{replica.rank}/test-{plan.step}.ckpt"
            check_contents(world, plan, action.rank, replica.rank)
    for verdict in plan.ranks if plan.recoverable else ():
        if verdict.verdict == "keep":
            assert verdict.rank not in world.lost
            check_contents(world, plan, verdict.rank, verdict.rank)


def check_contents(world: World, plan: Plan, rank: int, source: int) -> None:
    """What `rank` will hold is right, in its run; without manifests only where somebody could contradict."""
    assert plan.step is not None
    held = world.contents(source, plan.step)
    if world.manifests and plan.run_id is not None:
        foreign = plan.run_id == OTHER_RUN
        assert held == (f"{plan.step} far {rank % world.model_parallel}" if foreign else world.truth(rank, plan.step))
        return
    right = {world.truth(rank, plan.step), f"{plan.step} far {rank % world.model_parallel}"}
    agreeing = [
        other
        for other in world.group(rank)
        if world.readable(other, plan.step) and world.contents(other, plan.step) == held
    ]
    if held not in right:  # no manifest told: then it was alone, or several hold the same
        assert world.is_alone(source, plan.step) or len(agreeing) > 1


@settings(max_examples=examples(100))
@given(worlds(), st.randoms(use_true_random=False))
def test_a_plan_is_a_function_of_what_is_there(world: World, chance: object) -> None:
    plan = planned(world)
    inventory = world.inventory()
    slices, lists = list(inventory.slices), list(inventory.group_files)
    chance.shuffle(slices)  # type: ignore[attr-defined]
    chance.shuffle(lists)  # type: ignore[attr-defined]
    shuffled = replace(inventory, slices=tuple(slices), group_files=tuple(lists))
    again = world.plan(shuffled)
    assert again == plan
    text = json.dumps(plan_to_json(plan))
    assert json.dumps(plan_to_json(again)) == text
    assert plan_from_json(text, "test") == plan


@settings(max_examples=examples(100))
@given(worlds(), st.integers(-(2**60), 2**60))
def test_times_decide_nothing(world: World, base: int) -> None:
    plan = planned(world)
    world.mtimes = {key: base - place for place, key in enumerate(world.mtimes)}
    assert timeless(world.plan()) == timeless(plan)


def timeless(plan: Plan) -> Plan:
    def still(state: FileState | None) -> FileState | None:
        return None if state is None else replace(state, mtime_ns=0)

    actions = tuple(
        replace(
            action,
            replica=replace(action.replica, state=still(action.replica.state)),
            replaces=still(action.replaces),
            alternatives=tuple(replace(one, state=still(one.state)) for one in action.alternatives),
        )
        for action in plan.actions
    )
    return replace(plan, actions=actions, warnings=())  # these name the run that was written last


@settings(max_examples=examples(150))
@given(worlds(manifests=True))
def test_steps_and_runs_are_never_mixed(world: World) -> None:
    plan = planned(world)
    assume(plan.recoverable)
    slices = {file.path: file for file in world.inventory().slices}
    used = {verdict.source or verdict.path for verdict in plan.ranks}
    assert {slices[path].step for path in used} == {plan.step}
    runs = {slices[path].manifest.run_id for path in used if slices[path].manifest is not None}
    assert len(runs) <= 1
    assert runs <= {plan.run_id}


@settings(max_examples=examples(200))
@given(worlds(states=(CUT,), manifests=False))
@example(World(3, 3, False, dict.fromkeys([(rank, STEPS[-1]) for rank in (0, 2, 3, 5)], WHOLE)))  # ranks 6-8 are named
def test_brute_force_says_the_same(world: World) -> None:
    """With nothing but losses and cuts: the newest step at which each rank or a known peer has a sound slice."""
    plan = planned(world)
    steps = sorted({step for _, step in world.states}, reverse=True)

    def can_have(rank: int, step: Step) -> bool:
        return any(world.readable(member, step) for member in world.known_group(rank))

    good = [step for step in steps if all(can_have(rank, step) for rank in range(world.size))]
    assert plan.step == (good[0] if good else None)
    shown = plan.step or steps[0]
    for verdict in plan.ranks:
        if world.readable(verdict.rank, shown):
            assert verdict.verdict == "keep"
        else:
            assert (verdict.verdict == "unrecoverable") == (not can_have(verdict.rank, shown))
    assert [rejected.step for rejected in plan.rejected_steps] == [step for step in steps if step not in good[:1]][
        : len(plan.rejected_steps)
    ]
    assert all(set(blamed(world, one.step)) <= numbers_in(one.reason) for one in plan.rejected_steps)


def numbers_in(words: str) -> set[int]:
    """Return the numbers that a text names, those within a range like ``6-8`` too."""
    ranges = re.findall(r"(\d+)(?:-(\d+))?", words)
    return {number for first, last in ranges for number in range(int(first), int(last or first) + 1)}


def blamed(world: World, step: Step) -> list[int]:
    """Return ranks that certainly rule a step out."""
    return [rank for rank in range(world.size) if not any(world.readable(other, step) for other in world.group(rank))]


@settings(max_examples=examples(150))
@given(worlds(states=(CUT,), all_lists=True))
def test_sources_are_spread_evenly(world: World) -> None:
    plan = planned(world)
    serves: dict[tuple[int, ...], Counter[int]] = defaultdict(Counter)
    for action in plan.actions:
        serves[action.group][action.source_rank] += 1
    for group, counts in serves.items():
        assert plan.step is not None
        able = [counts[rank] for rank in group if world.readable(rank, plan.step)]
        assert max(able) - min(able) <= 1


@settings(max_examples=examples(150))
@given(worlds(manifests=True), st.data())
def test_one_more_sound_slice_never_makes_a_plan_older(world: World, data: st.DataObject) -> None:
    assume(any(state == WHOLE and rank not in world.lost for (rank, _), state in world.states.items()))
    plan = planned(world)
    steps = sorted({step for _, step in world.states})
    absent = [key for key in ((rank, step) for rank in range(world.size) for step in steps) if key not in world.states]
    assume(plan.recoverable and absent)
    more = replace(world, states={**world.states, data.draw(st.sampled_from(absent)): WHOLE})
    after = more.plan()
    assert after.step is not None
    assert plan.step is not None
    assert after.step >= plan.step


@settings(max_examples=examples(150))
@given(worlds(states=(CUT, FLIPPED), manifests=True) | bereft_worlds(), st.data())
def test_a_manifest_that_lies_about_its_group_brings_no_wrong_bytes(world: World, data: st.DataObject) -> None:
    """Without rank lists the manifests tell the groups; one flipped digit must not lead to a stranger's slice."""
    assume(world.states)
    rank, step = data.draw(st.sampled_from(sorted(world.states)))
    event(f"ranks without any slice {world.size - len({rank for rank, _ in world.states})}")
    lie = tuple(sorted({rank, *data.draw(st.sets(st.integers(0, world.size - 1), max_size=3))}))

    def change(manifest: Manifest) -> Manifest:
        return replace(manifest, group=lie) if (manifest.rank, manifest.step) == (rank, step) else manifest

    lying = replace(world, lists=frozenset(), change_manifest=change)
    others = [key for key, state in world.states.items() if key != (rank, step) and state == WHOLE]
    assume(any(key[0] in world.group(rank) for key in others))  # somebody who knows better
    try:
        plan = lying.plan()
    except ContradictionError:
        event("refused")
        return
    for action in plan.actions:
        assert plan.step is not None
        assert world.contents(action.source_rank, plan.step) == world.truth(action.rank, plan.step)


def test_a_renamed_slice_is_no_newest_step_of_a_run_that_writes_manifests() -> None:
    """All ranks hold the same: an older slice under a newer name would otherwise be copied to everybody."""
    states = {(rank, step): WHOLE for rank in range(3) for step in STEPS[1:]}
    world = World(3, 1, True, {**states, (0, STEPS[0]): BARE})
    plan = world.plan()
    assert plan.step == STEPS[1]
    assert not plan.actions
    assert "not committed" in plan.rejected_steps[0].reason


def test_a_renamed_slice_is_found_by_its_bytes_where_there_are_no_manifests() -> None:
    states = {(rank, step): WHOLE for rank in range(3) for step in STEPS[1:]}
    del states[0, STEPS[2]]
    world = World(3, 1, False, {**states, (0, STEPS[0]): STALE}, frozenset(range(3)))
    plan = world.plan()
    assert plan.step == STEPS[1]
    assert "renamed" in plan.rejected_steps[0].reason


def test_of_two_whole_runs_the_one_started_later_is_taken() -> None:
    """By MindSpore's ``_N`` behind the prefix, whatever the clocks say."""
    step = STEPS[0]
    first = World(2, 2, True, {(rank, step): WHOLE for rank in range(4)}, mtimes={(r, step): 99 for r in range(4)})
    second = World(2, 2, True, {(rank, step): FOREIGN for rank in range(4)})
    named = []
    for file in (second.slice(rank, step) for rank in range(4)):
        again = slice_file(file.rank, step, prefix="test_1")
        told = replace(file.manifest, file=again.path.rpartition("/")[2])
        named.append(replace(again, manifest=told))
    inventory = tree([*first.inventory().slices, *named], {})
    plan = make_plan(inventory)
    assert plan.run_id == OTHER_RUN
    assert not plan.actions
    assert make_plan(inventory, PlanOptions(newest=True)).run_id == RUN


def test_nothing_to_plan_is_said() -> None:
    with pytest.raises(MissingInputError):
        World(2, 1, False, {}, frozenset({0, 1})).plan()


MANIFEST = encode_manifest(World(2, 2, True, {(0, STEPS[0]): WHOLE}).slice(0, STEPS[0]).manifest)
PLAN = json.dumps(plan_to_json(World(3, 2, True, {(r, STEPS[0]): WHOLE for r in (1, 2, 3, 4)}).plan())).encode()
JSON_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=8,
)


@st.composite
def damaged_json(draw: st.DrawFn, whole: bytes) -> bytes:
    """JSON with other values in some places, or with bytes changed."""
    if draw(st.booleans()):
        data = json.loads(whole)
        for _ in range(draw(st.integers(1, 3))):
            place = data
            while True:
                keys = list(place) if isinstance(place, dict) else list(range(len(place)))
                if not keys:
                    break
                key = draw(st.sampled_from(keys))
                if isinstance(place[key], (dict, list)) and draw(st.integers(0, 3)):
                    place = place[key]
                    continue
                if isinstance(place, dict) and draw(st.integers(0, 4)) == 0:
                    del place[key]
                else:
                    place[key] = draw(JSON_VALUES)
                break
        return json.dumps(data).encode()
    text = bytearray(whole)
    for _ in range(draw(st.integers(1, 4))):
        at = draw(st.integers(0, max(len(text) - 1, 0)))
        kind = draw(st.sampled_from(["flip", "cut", "insert", "drop"]))
        if kind == "flip" and text:
            text[at] ^= 1 << draw(st.integers(0, 7))
        elif kind == "cut":
            del text[at:]
        elif kind == "insert":
            text[at:at] = draw(st.binary(min_size=1, max_size=8) | st.sampled_from([b"1e999", b"NaN", b"[" * 2000]))
        else:
            del text[at : at + draw(st.integers(1, 30))]
    return bytes(text)


@settings(max_examples=examples(250))
@given(damaged_json(MANIFEST) | st.binary(max_size=100))
def test_any_manifest_is_read_or_refused(data: bytes) -> None:
    try:
        manifest = decode_manifest(data, "x.manifest.json")
    except FormatError:
        return
    assert decode_manifest(encode_manifest(manifest), "again") == manifest
    assert manifest.rank in manifest.group
    assert max(manifest.group) < manifest.world_size


@settings(max_examples=examples(250))
@given(damaged_json(PLAN) | st.binary(max_size=100))
def test_any_plan_is_read_or_refused(data: bytes) -> None:
    try:
        plan = plan_from_json(data.decode(errors="surrogateescape"), "x.json")
    except FormatError:
        return
    paths = [action.target for action in plan.actions] + [action.source for action in plan.actions]
    assert not any(path.startswith("/") or ".." in path.split("/") for path in paths)
    assert plan_from_json(json.dumps(plan_to_json(plan)), "again") == plan
