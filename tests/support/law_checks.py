"""Recover a tree of `tests.support.law_scenes` by every verb that writes, and hold the result against the law."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import numpy as np

from ms_recover import api, file_names
from ms_recover.errors import MissingInputError, MsRecoverError
from ms_recover.loading.full import load_full
from ms_recover.model.options import AuditOptions
from ms_recover.model.plan import Plan
from ms_recover.model.reshard import ReshardOptions
from ms_recover.model.steps import Step
from ms_recover.verbs.audit import audit
from tests.support.law_files import OTHER_RUN, Tree, contents_of, make, path_of
from tests.support.law_scenes import Scene, random_scene
from tests.support.law_spec import excuse, hidden, is_protected, must_recover, why_copied

MEMORY = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
OUTVOTED = getattr(file_names, "OUTVOTED_SUFFIX", ".outvoted")
RECOVERED, REFUSED, LOST, FAILED, INVALID = "recovered", "refused", "unrecoverable", "failed", "invalid input"


@dataclass
class Verdict:
    """The end of one tree.

    Parameters
    ----------
    ended : str
        How plan and apply ended.
    right : bool
        It ended with 0, and every rank has the truth of the planned step.
    obliged : bool
        The law obliges it to end with 0.
    violations : list of str
        What contradicts the law.
    excuses : list of str
        Why wrong contents were written all the same, as `tests.support.law_spec.excuse` allows.
    """

    seed: int
    ended: str = ""
    right: bool = False
    obliged: bool = False
    violations: list[str] = field(default_factory=list)
    excuses: list[str] = field(default_factory=list)


def examine(seed: int, *, extras: bool = True) -> Verdict:
    """Make the tree of a seed, recover it, and return what contradicts the law."""
    return examine_scene(random_scene(seed), extras=extras)


def examine_scene(scene: Scene, *, extras: bool = True) -> Verdict:
    """Do the same for any scene; without `extras` by `plan` and `apply` alone."""
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        tree = make(scene, Path(folder) / "tree")
        return _Examination(tree, extras=extras).run()


class _Examination:
    def __init__(self, tree: Tree, *, extras: bool) -> None:
        self.tree, self.scene, self.job = tree, tree.scene, tree.scene.job
        self.options = tree.scene.options
        self.verdict = Verdict(tree.scene.seed)
        self.before = _files(tree.root)
        self.source = Random(f"verbs {tree.scene.seed}")
        self.extras = extras

    def run(self) -> Verdict:
        must = must_recover(self.tree)
        self.verdict.obliged = must is not None
        plan = self._plan()
        if must is not None and (plan is None or plan.step is None or plan.step < must):
            self._fault(f"c: step {must} is recoverable and not contradicted, the plan ends: {self._why(plan)}")
        if plan is None:
            return self.verdict
        if self.extras:
            self._check_audit(plan)
        if self.extras and plan.world_size == self.job.size:  # else nothing in the tree names the ranks that are gone
            self._whole_parameters()
        if plan.world_size != self.job.size:
            self.verdict.ended = LOST
            return self.verdict
        self._apply(plan, obliged=must is not None and plan.step == must)
        if self.extras:
            self._complete(plan)
        return self.verdict

    def _fault(self, text: str) -> None:
        self.verdict.violations.append(text)

    def _plan(self) -> Plan | None:
        try:
            return api.plan(api.scan(self.tree.root), self.options)
        except MsRecoverError as error:
            self.verdict.ended = INVALID
            self._reason = f"{type(error).__name__}: {error}"
            return None

    def _why(self, plan: Plan | None) -> str:
        if plan is None:
            return self._reason
        return "; ".join(
            [*plan.disagreements, *(f"{one.step}: {one.reason}" for one in plan.rejected_steps)]
            or [f"at step {plan.step}"]
        )

    def _apply(self, plan: Plan, *, obliged: bool) -> None:
        partial = plan.step is None
        if partial:
            self.verdict.ended = REFUSED if plan.disagreements else LOST
            if plan.disagreements or not plan.partials:
                return
        try:
            if not partial:
                api.check(plan)
            outcome = api.apply(plan, partial=partial)
        except MsRecoverError as error:
            self.verdict.ended = FAILED
            if obliged:
                self._fault(f"c: apply ends with {type(error).__name__}: {error}")
            return
        after = _files(self.tree.root)
        step = plan.step or plan.considered
        self._check_kept(after, plan.run_id)
        self._check_written(after, step, plan.run_id)
        if partial:
            return
        planned = [one.target for one in plan.actions]
        if [one.target for one in outcome.results] != planned:
            self._fault(f"d: the plan writes {planned}, apply {[one.target for one in outcome.results]}")
        if outcome.exit_code:
            self.verdict.ended = FAILED
            if obliged and not self.options.quick:
                self._fault(f"c: apply ends with {outcome.exit_code}: {outcome.errors} {outcome.results}")
            return
        self.verdict.ended = RECOVERED
        held = {one.rank: after.get(one.path or "") for one in plan.ranks}
        self.verdict.right = all(_same(self.tree, rank, step, held[rank]) for rank in range(self.job.size))
        if self.verdict.right:
            self._plan_again(plan)

    def _plan_again(self, plan: Plan) -> None:
        again = replace(self.options, lost=frozenset())
        try:
            second = api.plan(api.scan(self.tree.root), again)
        except MsRecoverError as error:
            self._fault(f"d: a second plan ends with {type(error).__name__}: {error}")
            return
        if (self.options.lost or self.options.quick) and second.step != plan.step:
            return  # newer slices of a rank that was declared lost are there still; what was written states more
        if self.options.lost and not self.scene.manifests.startswith(("saved", "sealed")):
            return  # the manifests of their older slices count again
        if self.options.lost and self.scene.manifests.endswith("on some"):
            return
        if self._speaks_no_more(plan, second):
            return
        if second.step != plan.step:
            self._fault(f"d: a second plan is of step {second.step} instead of {plan.step}: {self._why(second)}")
        elif second.changes_anything:
            self._fault(f"d: a second plan writes {[one.target for one in second.actions]}, {second.group_files}")

    def _speaks_no_more(self, plan: Plan, second: Plan) -> bool:
        """Whether the second plan differs because apply replaced what spoke for something, or against it.

        - A wrong slice that is replaced contradicts its rank list no more at a newer step.
        - A strategy file of another job is passed over where its slices contradict it in more parameters than they
          confirm; a slice that is right again may confirm one more, so that what is cut is disputed.
        - The manifest of another run says that slices without one were not committed; it is set aside with its slice.
        """
        assert plan.step is not None
        if second.step is not None:
            return second.step > plan.step and any(hidden(self.tree, plan.step))
        manifests = self.tree.manifest
        others = any(step == plan.step and by == "another run" for (_, step), by in manifests.items())
        uncommitted = others and not self.scene.manifests.startswith("saved")
        return bool(second.disagreements) and (uncommitted or not self.scene.strategies_right)

    def _check_kept(self, after: dict[str, bytes], run_id: str | None) -> None:
        """Law (a): what held the truth still does, or lies beside itself; what is protected is where it was.

        That is protected of the run that is recovered: where more ranks have the other run at the step, slices of this
        one are the other run's, whose own manifests say so. Each is set aside and not outvoted.
        """
        for (rank, step), data in self.tree.data.items():
            path = path_of(rank, step)
            if after.get(path) == data or rank in self.options.lost:
                continue
            if run_id != OTHER_RUN and is_protected(self.tree, rank, step):
                self._fault(f"a: {path} is protected and was replaced")
            elif self.tree.is_intact(rank, step) or self.tree.manifest.get((rank, step)) == "another run":
                aside = [one for one in after if one.startswith(path) and OUTVOTED in one and after[one] == data]
                if not aside:
                    self._fault(f"a: {path} was whole and is gone")

    def _check_written(self, after: dict[str, bytes], step: Step, run_id: str | None) -> None:
        """Law (b): each parameter of each file that was written holds the truth, that of the run that was planned."""
        if run_id == OTHER_RUN:
            return
        for path, data in after.items():
            if data == self.before.get(path) or not path.endswith(".ckpt") or path.endswith("strategy.ckpt"):
                continue
            rank = int(path.partition("/")[0].removeprefix("ckpt_dir"))
            self._check_slice(path, rank, step, contents_of(data), whole=".partial." not in path)

    def _check_slice(self, path: str, rank: int, step: Step, held: dict[str, bytes], *, whole: bool) -> None:
        right = self.job.contents(rank, step)
        if held.keys() != right.keys() and (why := why_copied(self.tree, rank, step, held)) is not None:
            self.verdict.excuses.append(why)
            return
        if not held or (whole and held.keys() != right.keys()):
            self._fault(f"b: {path} lists {sorted(held)} instead of {sorted(right)}")
        for name, content in held.items():
            if content in _allowed(self.tree, rank, step, name):
                continue
            why = excuse(self.tree, rank, step, name, content) if name in right else None
            if why is None:
                self._fault(f"b: {path} was written, and {name} is wrong")
            else:
                self.verdict.excuses.append(why)

    def _complete(self, plan: Plan) -> None:
        rank = self.source.randrange(self.job.size)
        before = _files(self.tree.root)
        asked = replace(self.options, lost=frozenset())  # the command has no --lost
        self.tree = replace(self.tree, scene=replace(self.scene, options=asked))
        try:
            result = api.complete(api.scan(self.tree.root), rank, asked)
        except MsRecoverError:
            return
        after = _files(self.tree.root)
        target = os.path.relpath(os.path.join(self.tree.root, result.target), self.tree.root)
        for path in before:
            if after.get(path) != before[path]:
                self._fault(f"a: complete changed {path}")
        step = next(one for one in self.job.steps if f"-{one}." in target)
        tree = self.tree
        others = any(at == step and by == "another run" for (_, at), by in tree.manifest.items())
        if not others and (self.verdict.ended != RECOVERED or self.verdict.right):
            names = {one.name for one in self.job.of_rank(rank)}
            held = {name: data for name, data in contents_of(after[target]).items() if name in names}
            if tree.data.get((rank, step)) is None or tree.is_intact(rank, step):
                self._check_slice(target, rank, step, held, whole=True)

    def _whole_parameters(self) -> None:
        """Law (b) of `reshard --full` and `load_full`: each parameter that is given whole is the whole tensor."""
        choice = self.source.random()
        if choice < 0.3:
            with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
                output = Path(folder) / "full"
                try:
                    wanted = ReshardOptions(full=True, shard_size=0)
                    plan = api.plan_reshard(api.scan(self.tree.root), output, wanted, self.options)
                    api.reshard(plan, partial=True)
                except MsRecoverError:
                    return
                for path in output.glob("model*.ckpt"):
                    self._check_whole("reshard --full", plan.step, dict(contents_of(path.read_bytes())))
        elif choice < 0.6:
            try:
                with load_full(self.tree.root, options=self.options, verify=True) as full:
                    step = full.step
                    names = [name for name in full if name not in full.missing]
                    held = {name: np.ascontiguousarray(full[name]).tobytes() for name in names}
            except MsRecoverError:
                return
            assert step is not None
            self._check_whole("load_full", step, held)

    def _check_whole(self, verb: str, step: Step, held: dict[str, bytes]) -> None:
        for name, content in held.items():
            tensor = next(one for one in self.job.tensors if one.name == name)
            if tensor.own or self.job.whole(name, step).tobytes() == content:
                continue
            if not self._is_struck(step) and self.scene.strategies_right and self.scene.lists_right:
                self._fault(f"b: {verb} gives {name} of step {step} wrong, {len(content)} bytes")

    def _is_struck(self, step: Step) -> bool:
        ranks = range(self.job.size)
        return any((one, step) in self.tree.data and not self.tree.is_intact(one, step) for one in ranks)

    def _check_audit(self, plan: Plan) -> None:
        """Law (d) of `audit`: its verdict of the loss of a rank is that of a plan without it.

        docs/audit.md names the exceptions: contents of older steps, which are not read; what a sealing passed over;
        slices that are damaged, disputed, or without the manifest that others have, where it may call a loss fatal
        that a plan mends, or name an older step than the manifest of the lost slice hid; and slices of another run,
        which a plan takes where they alone are left.
        """
        right = self.scene.strategies_right and self.scene.lists_right  # which files are believed may change
        if plan.step is None or self.source.random() < 0.7 or self.options.world_size is None or not right:
            return
        if not self.scene.manifests.startswith("saved") and any(
            list(hidden(self.tree, step)) for step in self.job.steps
        ):
            return
        if self.scene.manifests == "saved on some" and not self.tree.manifest.keys() >= self.tree.data.keys():
            return  # what has no manifest is no holder, even where those that have one are lost with it
        found = audit(api.scan(self.tree.root), self.options, None, AuditOptions(losses=1))
        rank = self.source.randrange(self.job.size)
        loss = next(one for one in found.levels[0].singles if one.ranks == (rank,))
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            copy = Path(folder) / "copy"
            shutil.copytree(self.tree.root, copy)
            shutil.rmtree(copy / f"ckpt_dir{rank}", ignore_errors=True)
            try:
                without = api.plan(api.scan(copy), self.options)
                step = without.step
                if without.run_id not in (None, plan.run_id):
                    return
            except MissingInputError:
                step = None
            except MsRecoverError:
                return
        planned = {found_step for found_step in (loss.step, step) if found_step == plan.step}
        if not self.scene.manifests.startswith("saved"):
            differ = bool(planned) and loss.step != step and not self.scene.manifests.startswith("sealed")
        else:
            differ = loss.step != step
        wrong = self.tree.manifest.get((rank, step)) == "against" or (rank, step) in self.tree.orphaned
        if step is not None and step > plan.step and wrong and (loss.step is None or loss.step <= plan.step):
            return  # with a rank goes the manifest that speaks against what others hold at a newer step
        older = loss.step if loss.step != plan.step else None
        if differ and older is not None and self._is_struck(older):
            return
        if differ and (step is None or step < plan.step or not self._is_unsound(plan)):
            self._fault(f"d: by audit the loss of rank {rank} leaves step {loss.step}, by deletion and plan {step}")

    def _is_unsound(self, plan: Plan) -> bool:
        """Whether a slice of the planned step is damaged, or differs from others and is kept."""
        return any(one.state == "damaged" or "it is kept" in one.reason for one in plan.ranks)


def _files(root: Path) -> dict[str, bytes]:
    return {str(path.relative_to(root)): path.read_bytes() for path in _walk(root)}


def _walk(root: Path) -> Iterator[Path]:
    for folder in root.iterdir():
        yield from folder.iterdir() if folder.is_dir() else ()


def _allowed(tree: Tree, rank: int, step: Step, name: str) -> set[bytes]:
    """Return what a slice may hold of a parameter: the truth, of a rank's own values those of its replicas too.

    Its replicas are the ranks of its stage at the same place of the tensor-parallel axis: only the optimizer's states
    differ between these.
    """
    job = tree.scene.job
    tensor = next((one for one in job.of_rank(rank) if one.name == name), None)
    if tensor is None:
        return set()
    ranks = job.replicas(rank) if tensor.own else (rank,)
    return {job.held(tensor, one, step).tobytes() for one in ranks}


def _same(tree: Tree, rank: int, step: Step, data: bytes | None) -> bool:
    held = contents_of(data or b"")
    names = {one.name for one in tree.scene.job.of_rank(rank)}
    return held.keys() == names and all(held[name] in _allowed(tree, rank, step, name) for name in names)
