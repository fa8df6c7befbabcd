"""Training removes nothing but what its own lineage claims, whatever lies in its directory.

The directory is drawn at random: experiments whose prefixes look like numbers of each other's starts, runs that go on
from each other or from nothing, slices that were set aside, halves that a kill left, manifests of older versions, and
slices of other programs. Who saved each file is known.
"""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover.execution.state_files import CLAIM
from ms_recover.file_names import BESIDE_SLICE, MANIFEST_SUFFIX, STATE_SUFFIX, SUPERSEDED_SUFFIX
from ms_recover.formats.manifest import encode_manifest
from ms_recover.formats.manifest_json import parse_origin
from ms_recover.formats.state import encode_state
from ms_recover.model.manifest import Digests, Manifest, RunStep, TrainingRecord
from ms_recover.model.state import SliceClaim
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.training.deciding.held_slice import Held, prefix_of
from ms_recover.training.deciding.rotation import Keeping
from ms_recover.training.held_slices import find_earlier, find_newer, held_slice, read_folder, rotate
from tests.support.examples import SAME_EVERY_TIME, examples

MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None
PREFIXES = ("resnet", "resnet_50", "resnet_50_1", "lr_0.01", "lr_0", "lr_0.5", "x-1_2", "a_1_1")
LATEST = Step(6, 8)


@dataclass
class TrueRun:
    """A run as it was."""

    experiment: str
    number: int
    prefix: str
    before: TrueRun | None
    until: Step | None
    old: bool
    """Its version states no experiment."""
    steps: list[Step] = field(default_factory=list)

    @property
    def started(self) -> int:
        return 1000 * self.number

    @property
    def run_id(self) -> str:
        return f"run{self.number}"

    @property
    def resumed_from(self) -> RunStep | None:
        if self.before is None or self.until is None:
            return None
        return RunStep(self.before.run_id, self.until, self.before.started)


class Folder:
    """A directory, and the run that saved each file; None where no manifest and no state file claims it."""

    def __init__(self, path: Path, random: Random) -> None:
        self.path, self.random = path, random
        self.runs: list[TrueRun] = []
        self.claimed: dict[str, TrueRun] = {}

    def write(self, name: str, ends: tuple[str, ...], run: TrueRun | None) -> None:
        for end in ends:
            path = self.path / (name + end)
            if not path.exists():
                path.write_bytes(b"{}")
        if run is not None and not run.old:
            self.claimed[name] = run

    def begin(self, experiment: str) -> TrueRun:
        """Begin a run as a saver does."""
        random = self.random
        number = Held(read_folder(str(self.path)), experiment).next_start(os.listdir(self.path))
        prefix = prefix_of(experiment, number)
        assert not any(name.startswith(f"{prefix}-") for name in os.listdir(self.path))
        own = [one for one in self.runs if one.experiment == experiment and one.steps]
        others = [one for one in self.runs if one.steps]
        before = None
        if own and random.random() < 0.7:
            before = own[-1] if random.random() < 0.7 else random.choice(own)
        elif others and random.random() < 0.15:
            before = random.choice(others)  # by run=
        until = random.choice(before.steps) if before is not None else None
        run = TrueRun(experiment, len(self.runs) + 1, prefix, before, until, random.random() < 0.15)
        self.runs.append(run)
        return run

    def save(self, run: TrueRun, step: Step) -> None:
        """Write a slice as a saver does, or what is left when it was killed, or somebody changed it."""
        random = self.random
        name = f"{run.prefix}-{step}.ckpt"
        claim = SliceClaim(run.experiment, run.prefix, run.run_id, run.started)
        values = {} if run.old else {CLAIM: claim.values}
        (self.path / f"{name}{STATE_SUFFIX}").write_bytes(encode_state(values))
        left = random.random()
        if left < 0.06:
            if left < 0.03:
                self.write(name, ("",), None)
            self.write(name, (), run)
            return
        origin = "sealed by structure" if random.random() < 0.05 else "saved"
        stated = None if run.old else run.experiment
        training = TrainingRecord(run.started, run.resumed_from, epoch_steps=8, base_prefix=stated)
        manifest = Manifest(
            run.run_id,
            0,
            1,
            step,
            (step.epoch - 1) * 8 + step.step,
            name,
            1,
            Digests(f"xxh3_128:{0:032x}"),
            (),
            (0,),
            provenance=parse_origin(origin),
            training=training,
        )
        if left < 0.1:  # the slice was to be the last, or was removed first
            (self.path / f"{name}{MANIFEST_SUFFIX}").write_bytes(encode_manifest(manifest))
            self.write(name, (), run if origin == "saved" else None)
            return
        run.steps.append(step)
        aside = name + (SUPERSEDED_SUFFIX if random.random() < 0.15 else "")
        copied = random.random() < 0.05
        for target in (aside, f"best of {name}") if copied else (aside,):
            (self.path / f"{target}{MANIFEST_SUFFIX}").write_bytes(encode_manifest(manifest))
            self.write(target, ("",), run if target == aside and origin == "saved" else None)
        if aside != name:
            (self.path / f"{name}{STATE_SUFFIX}").rename(self.path / f"{aside}{STATE_SUFFIX}")

    def train(self, experiment: str) -> TrueRun:
        """Train a run to somewhere."""
        run = self.begin(experiment)
        epoch = run.until.epoch if run.until is not None else 1
        last = self.random.randint(epoch, LATEST.epoch)
        for step in (Step(one, 8) for one in range(epoch, last + 1)):
            if run.until is None or step > run.until:
                self.save(run, step)
        return run

    def foreign(self) -> None:
        """Write a slice of another program, with or without a state that is none."""
        prefix = self.random.choice([*PREFIXES, "resnet_3", "CKP", "lr_0.01_7"])
        name = f"{prefix}-{self.random.randint(1, 9)}_4.ckpt"
        if not any((self.path / (name + end)).exists() for end in ("", *BESIDE_SLICE)):
            self.write(name, self.random.choice([("",), ("", STATE_SUFFIX)]), None)

    def contents(self) -> dict[str, bytes]:
        return {path.name: path.read_bytes() for path in self.path.iterdir()}

    def ancestors(self, run: TrueRun) -> list[TrueRun]:
        """Return the runs that one goes on from, as far as manifests here show it."""
        found, one = [], run.before
        while one is not None:
            found.append(one)
            states = [held for held in read_folder(str(self.path)) if held.run == (one.run_id, one.started)]
            one = one.before if any(held.manifest is not None for held in states) else None
        return found


def name_of_slice(name: str) -> str:
    """Return the name of the slice that a file is, or lies beside."""
    return next((name.removesuffix(end) for end in BESIDE_SLICE if name.endswith(end)), name)


def check(path: Path, random: Random) -> None:
    folder = Folder(path, random)
    for _ in range(random.randint(0, 8)):
        folder.train(random.choice(PREFIXES[: random.choice((2, 8))]))
        if random.random() < 0.3:
            folder.foreign()
    run = folder.begin(random.choice(PREFIXES))
    run.old = False
    ancestors = folder.ancestors(run)
    record = RunRecord(run_id=run.run_id, started=run.started, resumed_from=run.resumed_from, newest=Step(0, 0))
    begun = run.until or Step(0, 0)

    newer = find_newer(str(path), run.experiment, run.prefix, record, begun)
    for one in newer:
        owner = folder.claimed.get(os.path.basename(one.path))
        assert owner is None or owner.experiment == run.experiment, one
        assert one.step > begun
        assert owner is None or owner not in ancestors or one.step > begun

    before = folder.contents()
    kept, count = Keeping(random.randint(2, 4), set()), random.choice((1, 1, 2))
    known = find_earlier(str(path), run.experiment, run.prefix, record)
    mine = []
    for step in (Step(epoch, half) for epoch in range(1, LATEST.epoch + 2) for half in (4, 8)):
        if step <= begun:
            continue
        folder.save(run, step)
        if run.steps and run.steps[-1] == step and (one := held_slice(str(path), f"{run.prefix}-{step}.ckpt")):
            mine.append(one)
            kept.saved.add(step)
        mine = [one for one in mine if os.path.exists(one.path)]
        known = known.without(rotate(mine, [kept], step, known, count))
    left = folder.contents()

    lost = {name_of_slice(name) for name in before if name not in left}
    for name in lost:
        owner = folder.claimed.get(name)
        assert owner is not None, f"{name} is nobody's"
        assert owner.experiment == run.experiment, f"{name} is of {owner.experiment}"
        assert owner in ancestors, f"{name} is of a run that nothing was begun from"
    assert all(left[name] == contents for name, contents in before.items() if name in left)

    own = [name for name, owner in folder.claimed.items() if owner in ancestors and owner.experiment == run.experiment]
    stays = [name for name in own if name in left]
    if len(mine) >= kept.keep:
        assert len(stays) <= kept.keep * (count - 1), stays


@settings(max_examples=examples(150), deadline=None, derandomize=SAME_EVERY_TIME)
@given(st.integers(0, 2**32))
def test_nothing_is_removed_but_what_the_own_lineage_claims(seed: int) -> None:
    """And of the lineage no more stays than is to be kept, when training has come as far."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        check(Path(folder), Random(seed))
