"""The simplest scene that contradicts the law as another one does, and a scene in words."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from ms_recover import api
from ms_recover.errors import MsRecoverError
from tests.support.law_checks import MEMORY, examine_scene
from tests.support.law_files import make
from tests.support.law_scenes import RIGHT, Scene


def simplest(scene: Scene) -> Scene:
    """Return a scene with fewer faults, parameters and wrong files that contradicts the same part of the law."""
    kinds = _kinds(scene)
    smaller = next((one for one in _smaller(scene) if kinds & _kinds(one)), None) if kinds else None
    return scene if smaller is None else simplest(smaller)


def _kinds(scene: Scene) -> set[str]:
    return {text[:1] for text in examine_scene(scene).violations}


def _smaller(scene: Scene) -> Iterator[Scene]:
    for number in range(len(scene.faults)):
        yield replace(scene, faults=scene.faults[:number] + scene.faults[number + 1 :])
    if scene.options.lost:
        yield replace(scene, options=replace(scene.options, lost=frozenset()))
    if scene.options.quick:
        yield replace(scene, options=replace(scene.options, quick=False))
    if scene.lists != RIGHT:
        yield replace(scene, lists=RIGHT)
    if scene.strategies != RIGHT:
        yield replace(scene, strategies=RIGHT)
    if scene.manifests not in ("saved", "none"):
        yield replace(scene, manifests="saved")
        yield replace(scene, manifests="none")
    tensors = scene.job.tensors
    for number in range(len(tensors)):
        rest = tensors[:number] + tensors[number + 1 :]
        if all(any(stage in one.named for one in rest) for stage in range(scene.job.stages)):
            yield replace(scene, job=replace(scene.job, tensors=rest, _bytes={}))


def describe(scene: Scene) -> str:
    """Return a scene, what the law says of it, and the plan of its tree."""
    job = scene.job
    lines = [
        f"seed {scene.seed}: data {job.data}, model {job.model}, stages {job.stages}; {scene.options}",
        (
            f"strategy files {scene.strategies}, rank lists {scene.lists}, manifests {scene.manifests}; without some: "
            f"{sorted(scene.without)}, known when saved: {scene.known_when_saved}, sealed first: {scene.sealed_first}"
        ),
    ]
    for tensor in job.tensors:
        cut = tensor.layout and (tensor.layout.device_matrix, tensor.layout.tensor_map, tensor.layout.opt_shard_size)
        lines.append(
            f"  {tensor.name} {tensor.shape} of stages {set(tensor.stages)}, named in {set(tensor.named)}: {cut}"
        )
    lines.append(f"  alike: {sorted(set(job.groups.values()))}")
    for stage, foreign in scene.foreign.items() if not scene.strategies_right else ():
        cuts = [(one.parameter, one.device_matrix, one.tensor_map) for one in foreign.layouts]
        lines.append(f"  stage {stage} by the wrong file: {cuts}")
    if not scene.lists_right:
        lines.append(f"  wrong lists: {dict(scene.foreign_groups)}")
    lines += [f"  {fault}" for fault in scene.faults]
    verdict = examine_scene(scene)
    lines.append(f"{verdict.ended}, right: {verdict.right}, obliged: {verdict.obliged}")
    return "\n".join([*lines, *(f"  ! {text}" for text in verdict.violations), *_plan_of(scene)])


def _plan_of(scene: Scene) -> Iterator[str]:
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        try:
            plan = api.plan(api.scan(make(scene, Path(folder)).root), scene.options)
        except MsRecoverError as error:
            yield f"{type(error).__name__}: {error}"
            return
    yield f"step {plan.step} of run {plan.run_id}; {plan.disagreements}"
    for rank in plan.ranks:
        yield f"  {rank.rank} {rank.state} {rank.verdict} {rank.reason}"
    for one in plan.rejected_steps:
        yield f"  not {one.step}: {one.reason}"
