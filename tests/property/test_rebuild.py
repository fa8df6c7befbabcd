"""Slices rebuilt from layouts, against a brute-force oracle over the elements of the global tensors."""

from __future__ import annotations

import json
from dataclasses import dataclass
from math import prod

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.model.actions import CopyAction
from ms_recover.model.compose import ComposeAction
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory, RankPath, SliceFile, StrategyFile
from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.model.options import PlanOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Layout, Strategy
from tests.support.examples import examples
from tests.support.plans import make_plan

STEP = Step(1, 8)


@dataclass(frozen=True)
class World:
    """What every rank holds: for each parameter the numbers of the global elements, in the shape of its slice."""

    devices: int
    layouts: dict[int, list[Layout]]
    held: dict[int, dict[str, np.ndarray]]


@st.composite
def layouts(draw: st.DrawFn, name: str, matrix: tuple[int, ...], dimensions: int) -> Layout:
    """Draw how a tensor is cut: each axis splits at most one dimension, a dimension may be split over several."""
    axes = draw(st.permutations(range(len(matrix))))
    tensor_map: list[tuple[int, ...]] = [() for _ in range(dimensions)]
    for axis in axes:
        where = draw(st.integers(-1, dimensions - 1))
        if where >= 0:
            tensor_map[where] = (*tensor_map[where], axis)
    used = {axis for split in tensor_map for axis in split}
    replicas = prod(size for axis, size in enumerate(matrix[::-1]) if axis not in used)
    sizes = [size for size in range(2, replicas + 1) if replicas % size == 0] if dimensions else []
    shards = draw(st.sampled_from([0, 0, -1, *sizes])) if dimensions else 0
    return Layout(name, matrix, tuple(tensor_map), 1 if shards else 0, shards)


def cut(whole: np.ndarray, layout: Layout, devices: int) -> list[np.ndarray]:
    """Cut a tensor for every device of a stage, dimension by dimension."""
    slices, coordinates = [], []
    for device in range(devices):
        place = np.unravel_index(device, layout.device_matrix)[::-1]
        part = whole
        for dimension, axes in enumerate(layout.tensor_map):
            for axis in axes:
                part = np.split(part, layout.device_matrix[::-1][axis], dimension)[place[axis]]
        slices.append(part)
        coordinates.append(tuple(place[axis] for axes in layout.tensor_map for axis in axes))
    if not layout.opt_shard_size:
        return slices
    shards = []
    for device, part in enumerate(slices):
        alike = [other for other in range(devices) if coordinates[other] == coordinates[device]]
        size = len(alike) if layout.opt_shard_size < 0 else layout.opt_shard_size
        shards.append(np.split(part, size)[alike.index(device) % size])
    return shards


@st.composite
def worlds(draw: st.DrawFn) -> World:
    """Draw stages with parameters of their own, one that both share, and one that every rank has."""
    matrix = draw(st.sampled_from([(4,), (2, 2), (2, 1, 2), (2, 2, 2), (4, 2), (2, 4), (3, 2), (6,)]))
    devices = prod(matrix)
    stages = draw(st.integers(1, 2))
    told: dict[int, list[Layout]] = {}
    held: dict[int, dict[str, np.ndarray]] = {rank: {} for rank in range(stages * devices)}
    numbers = iter(range(1 << 30))
    shared_shape = tuple(draw(st.lists(st.integers(1, 2), min_size=1, max_size=2)))
    shared: np.ndarray | None = None
    for stage in range(stages):
        told[stage] = []
        for index in range(draw(st.integers(1, 3))):
            name = f"stage{stage}.w{index}"
            dimensions = draw(st.integers(0, 3))
            layout = draw(layouts(name, matrix, dimensions))
            shape = tuple(devices * draw(st.integers(1, 2)) for _ in range(dimensions))
            whole = np.array([next(numbers) for _ in range(prod(shape))]).reshape(shape)
            told[stage].append(layout)
            for device, part in enumerate(cut(whole, layout, devices)):
                held[stage * devices + device][name] = part
        if stages > 1 and draw(st.booleans()):
            full = tuple(size * devices for size in shared_shape)
            if shared is None:
                shared = np.array([next(numbers) for _ in range(prod(full))]).reshape(full)
            layout = draw(layouts("shared", matrix, len(full)))
            told[stage].append(layout)
            for device, part in enumerate(cut(shared, layout, devices)):
                held[stage * devices + device]["shared"] = part
    step = np.array(next(numbers))
    for parts in held.values():
        parts["global_step"] = step
    return World(devices, told, held)


def find(world: World, survivors: set[int]) -> tuple[Inventory, Contents]:
    """Return what a scan of the survivors finds, every slice read."""
    slices, strategies = [], []
    found: dict[str, Digests] = {}
    lists: dict[tuple[Parameter, ...], tuple[Parameter, ...]] = {}
    for rank in sorted(survivors):
        parts = world.held[rank]
        listed = tuple(Parameter(name, "Int64", part.shape, part.nbytes) for name, part in parts.items())
        listed = lists.setdefault(listed, listed)
        place = RankPath(("ckpt_dir", "/test-1_8.ckpt"))
        slices.append(SliceFile(rank, STEP, place, "test", 1, 1, listed))
        digests = tuple(digest_of(part.tobytes()) for part in parts.values())
        found[place.of(rank)] = Digests(digest_of(digests), digests)
        strategy = Strategy((rank // world.devices,), 2, tuple(world.layouts[rank // world.devices]))
        strategies.append(StrategyFile(rank, f"ckpt_dir{rank}/strategy.ckpt", strategy))
    ranks = tuple(sorted(survivors))
    return Inventory("/t", ranks, tuple(slices), strategy_files=tuple(strategies)), Contents(found)


def digest_of(value: object) -> str:
    return f"{DIGEST}:{hash(value) % (1 << 128):032x}"


def composed(world: World, action: ComposeAction) -> dict[str, bytes]:
    """Carry a compose action out in memory."""
    found = {}
    for item in action.parameters:
        name = item.parameter.name
        data = bytearray(item.parameter.nbytes)
        written = bytearray(item.parameter.nbytes)
        for piece in item.pieces:
            for number in (piece.source, *piece.alternatives):
                source = world.held[action.sources[number].rank][name].tobytes()
                assert len(source) == piece.source_bytes
                for start, target in piece.runs:
                    data[target : target + piece.runs.length] = source[start : start + piece.runs.length]
                    if number == piece.source:
                        written[target : target + piece.runs.length] = b"\1" * piece.runs.length
        assert all(written)
        found[name] = bytes(data)
    return found


def elements(shape: tuple[int, ...], world: World, name: str, region: tuple[tuple[int, int], ...]) -> set[int]:
    """Return the numbers of the elements in a region of a global tensor."""
    whole = np.full(shape, -1)
    for rank, parts in world.held.items():
        layout = next((one for one in world.layouts[rank // world.devices] if one.parameter == name), None)
        if layout is not None and name in parts:
            index = cut(np.arange(prod(shape)).reshape(shape), layout, world.devices)[rank % world.devices]
            whole.ravel()[index.ravel()] = parts[name].ravel()
    return set(whole[tuple(slice(start, stop) for start, stop in region)].ravel().tolist())


@given(worlds(), st.data())
@settings(max_examples=examples(150))
def test_what_survives_is_put_together_and_what_does_not_is_named(world: World, data: st.DataObject) -> None:
    ranks = sorted(world.held)
    lost = data.draw(st.sets(st.sampled_from(ranks), min_size=1, max_size=min(3, len(ranks) - 1)))
    survivors = set(ranks) - lost
    inventory, contents = find(world, survivors)
    plan = make_plan(inventory, PlanOptions(world_size=len(ranks)), contents=contents)
    assert plan_from_json(json.dumps(plan_to_json(plan)), "p") == plan
    actions = {action.rank: action for action in (*plan.actions, *plan.partials)}
    stages_told = {rank // world.devices for rank in survivors}
    for rank in lost:
        verdict = plan.ranks[rank]
        if rank // world.devices not in stages_told:
            assert verdict.verdict == "unrecoverable"
            continue
        truth = world.held[rank]
        gone: dict[str, set[int]] = {}
        for name, part in truth.items():
            stage = {one for one in survivors if one // world.devices == rank // world.devices}
            able = survivors if name == "global_step" else stage  # nothing that is cut comes from another stage
            there = set().union(*(world.held[one][name].ravel().tolist() for one in able if name in world.held[one]))
            left = set(part.ravel().tolist()) - there
            if left:
                gone[name] = left
        named: dict[str, set[int]] = {}
        for missing in verdict.missing:
            shape = whole_shape(world, rank, missing.parameter)
            found = elements(shape, world, missing.parameter, missing.region)
            assert len(found) * 8 == missing.bytes
            assert not found & named.get(missing.parameter, set())
            named.setdefault(missing.parameter, set()).update(found)
        assert named == gone
        assert (verdict.verdict == "unrecoverable") == bool(gone)
        action = actions.get(rank)
        if isinstance(action, CopyAction) and plan.recoverable:
            for replica in (action.replica, *action.alternatives):
                theirs = world.held[replica.rank]
                assert list(theirs) == list(truth)
                assert all(theirs[name].tobytes() == truth[name].tobytes() for name in truth)
        elif isinstance(action, ComposeAction):
            found_bytes = composed(world, action)
            assert list(found_bytes) == [name for name in truth if name not in gone]
            assert all(found_bytes[name] == truth[name].tobytes() for name in found_bytes)
    assert plan.recoverable == all(plan.ranks[rank].verdict != "unrecoverable" for rank in lost)


def whole_shape(world: World, rank: int, name: str) -> tuple[int, ...]:
    """Return the shape of a global tensor."""
    layout = next(one for one in world.layouts[rank // world.devices] if one.parameter == name)
    local = world.held[rank][name].shape
    sizes = layout.device_matrix[::-1]
    counts = [prod(sizes[axis] for axis in axes) for axes in layout.tensor_map]
    if layout.opt_shard_size and counts:
        used = {axis for axes in layout.tensor_map for axis in axes}
        replicas = prod(size for axis, size in enumerate(sizes) if axis not in used)
        counts[0] *= replicas if layout.opt_shard_size < 0 else layout.opt_shard_size
    return tuple(size * count for size, count in zip(local, counts, strict=True))
