"""Every kind of damage, wherever it strikes, with and without manifests: what recovery makes of it.

docs/recovery-matrix.csv and the figures in docs/recovery-matrix.md are what this run gives. To write them again:

    MS_RECOVER_WRITE_MATRIX=1 python -m pytest tests/integration/test_fault_campaign.py

With MS_RECOVER_EXAMPLES=x10 all of it happens ten times: to other ranks, at other steps, with other contents.
"""

from __future__ import annotations

import os
import shutil
import stat
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random

import pytest

from ms_recover import api
from ms_recover.cli.tree import plan_code
from ms_recover.errors import MsRecoverError
from ms_recover.model.compose import ComposeAction
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support import damage, mishaps, mistakes, recovery_matrix
from tests.support.cuts import make_struck_cut_tree
from tests.support.examples import SAME_EVERY_TIME, examples
from tests.support.mishaps import NotHereError, Victim, overwrite
from tests.support.recovery_matrix import COMPOSED, FELL_BACK, NOT_HERE, REPAIRED, REPLACED, UNDETECTED, UNHARMED

REPOSITORY = Path(__file__).parents[2]
FIXTURES = REPOSITORY / "tests" / "data" / "fixtures"
REWRITE = "MS_RECOVER_WRITE_MATRIX"
MEMORY = Path("/dev/shm")
RUNS = 1 if SAME_EVERY_TIME or REWRITE in os.environ else min(examples(1), 20)
"""How often all kinds strike; the first run is that of the documents."""


@dataclass(frozen=True)
class Where:
    """Which slice is struck, and what else is gone."""

    title: str
    data_parallel: int
    victim: int
    lost: int | None = None
    stranger: int = 1


WHERES = {
    "own": Where("A rank's own slice is struck, its peer's is whole", 2, 0),
    "only": Where("The only source of a lost rank is struck", 2, 2, lost=0),
    "several": Where("One of two sources of a lost rank is struck", 3, 2, lost=0),
    "parts": Where("A slice without replica is struck; each part of it lies on other ranks too", 1, 0),
}
EVIDENCES = dict(zip(("saved", "sealed", "none"), recovery_matrix.EVIDENCES, strict=True))


@dataclass(frozen=True)
class Run:
    """The steps that trees of a run hold, and the slices that are struck in them."""

    older: Step
    newest: Step
    wheres: Mapping[str, Where]


def run_of(number: int) -> Run:
    """Return a run; the outcomes of all are the same."""
    if number == 0:
        return Run(Step(1, 8), Step(2, 8), WHERES)
    source = Random(number)
    older, newest = (Step(source.randint(low, low + 4), source.randint(1, 40)) for low in (1, 6))
    return Run(older, newest, {at: elsewhere(where, source) for at, where in WHERES.items()})


def elsewhere(where: Where, source: Random) -> Where:
    """Choose other ranks for the same: of one group, or where a group is one rank, of a tree of six."""
    if where.data_parallel == 1:
        victim = source.randrange(4)
        return replace(where, victim=victim, stranger=victim ^ 1)
    part = source.randrange(2)
    victim, lost = source.sample(range(part, 2 * where.data_parallel, 2), 2)
    return replace(where, victim=victim, lost=None if where.lost is None else lost, stranger=1 - part)


def by_bytes(function: Callable[[bytes], bytes]) -> mishaps.Mishap:
    """Strike by changing the victim's bytes behind its back."""

    def strike(victim: Victim) -> None:
        before = victim.path.read_bytes()
        after = function(before)
        assert after != before
        overwrite(victim.path, after)

    return strike


def from_fixture(layout: str, name: str, to: Callable[[Victim], Path]) -> mishaps.Mishap:
    """Strike by putting a file of another real tree over one of this."""
    return lambda victim: overwrite(to(victim), (FIXTURES / layout / "ckpt_dir0" / name).read_bytes())


FAMILIES: dict[str, dict[str, mishaps.Mishap]] = {
    "Contents": {kind: by_bytes(made) for kind, made in {**damage.CONTENT_DAMAGE, **damage.TOLERATED_DAMAGE}.items()},
    "Structure": {kind: by_bytes(made) for kind, made in damage.STRUCTURE_DAMAGE.items()},
    "CRC trailer": {kind: by_bytes(made) for kind, made in damage.CRC_DAMAGE.items()},
    "Losses": dict(mishaps.LOSSES),
    "Mistakes": dict(mistakes.MISTAKES),
    "Manifests": dict(mishaps.MANIFEST_DAMAGE),
    "Rank lists": dict(mishaps.RANK_LIST_DAMAGE),
}
REAL_FAMILY = "Layouts (a tree that MindSpore wrote: data parallel 2, tensor parallel 4)"
REAL_KINDS: dict[str, mishaps.Mishap] = {
    "slice of a layout with sharded optimizer": from_fixture("dp4_mp2_opt2", "test-1_77.ckpt", lambda v: v.path),
    "slice of a layout sharded over all ranks": from_fixture("dp4_mp2_optfull", "test-1_77.ckpt", lambda v: v.path),
    "slice of a pipeline stage": from_fixture("dp2_mp2_pp2", "test-1_77.ckpt", lambda v: v.path),
    "slice of another tensor parallel rank": by_bytes(
        lambda data: (FIXTURES / "dp2_mp4" / "ckpt_dir1" / "test-2_77.ckpt").read_bytes()
    ),
    "strategy file of another layout": from_fixture(
        "dp4_mp2_opt2", "strategy.ckpt", lambda v: v.path.with_name("strategy.ckpt")
    ),
    "strategy file under the slice's name": from_fixture("dp2_mp4", "strategy.ckpt", lambda v: v.path),
    "rank list of another layout": from_fixture("dp4_mp2_optfull", "group_info.pb", lambda v: v.rank_list),
}
REAL_WHERES = {
    "own": Where(WHERES["own"].title, 2, 0),
    "only": Where(WHERES["only"].title, 2, 4, lost=0),
}

DEDUPLICATED = "deduplicated with everybody"
NO_DAMAGE_TO_SLICES = {DEDUPLICATED, *mishaps.RANK_LIST_DAMAGE, "rank list of another layout"}
TAKEN_OVER = "killed while being recovered"

ONLY_WITHOUT = {("only", "none")}
# What is not detected. Reason, where and by which evidence, kinds.
UNKNOWABLE: tuple[tuple[str, set[tuple[str, str]], tuple[str, ...]], ...] = (
    (
        "The file is well formed, its contents are nowhere else, and no manifest or CRC covers them.",
        ONLY_WITHOUT,
        (
            *damage.CONTENT_DAMAGE,
            "torn between two steps",
            "a foreign run's contents",
            "a foreign run's slice",
            "a slice of another layout",
        ),
    ),
    (
        "It is another step's slice, and no copy is left under its own name; values are not interpreted.",
        ONLY_WITHOUT,
        ("an older step's slice, renamed", "exchanged with its own older step's"),
    ),
    (
        "`plan` reads older steps of the source's own group, not of others; `verify` reads everything and names it.",
        ONLY_WITHOUT,
        ("another group's older slice",),
    ),
    (
        "While nothing is missing, slices of different groups are not compared by their layouts.",
        {("parts", "none")},
        (
            *damage.CONTENT_DAMAGE,
            "torn between two steps",
            "an older step's slice",
            "an older step's slice, renamed",
            "exchanged with its own older step's",
            "another group's slice",
            "another group's older slice",
            "a link to another group's slice",
            "exchanged with another group's",
            "a foreign run's contents",
            "a foreign run's slice",
            "a slice of another layout",
        ),
    ),
    (
        "Batch statistics and random states may differ between peers, so a difference is no sign of damage.",
        {("own", "none"), ("only", "none"), ("several", "none"), ("parts", "none")},
        tuple(damage.TOLERATED_DAMAGE),
    ),
)
UNKNOWN = {(kind, *at) for _, places, kinds in UNKNOWABLE for at in places for kind in kinds}


@dataclass
class Result:
    """What became of one case, and what went wrong that never may."""

    outcome: str
    faults: list[str] = field(default_factory=list)


@dataclass
class Case:
    """One kind at one place in a tree with one evidence."""

    root: Path
    kind: str
    victim: Victim
    where: Where
    truth: dict[tuple[int, Step], bytes]

    def run(self, strike: mishaps.Mishap) -> Result:
        try:
            strike(self.victim)
        except NotHereError:
            return Result(NOT_HERE)
        if self.kind == DEDUPLICATED:  # then this is the truth, and nobody holds the lost rank's share
            for rank in {rank for rank, _ in self.truth}:
                path = self.victim.slice_of(rank, self.victim.step)
                self.truth[rank, self.victim.step] = path.read_bytes() if path.exists() else b"nobody knows"
        before = snapshot(self.root)
        try:
            result = self.recover()
        except Exception as error:
            return Result("crashed", [f"{type(error).__name__}: {error}"])
        self.look_for_losses(before, result)
        return result

    def recover(self) -> Result:
        noticed = True
        try:
            inventory = api.scan(self.root)
            noticed = self.is_noticed(inventory)
            plan = api.plan(inventory)
            if plan.recoverable:
                api.check(plan)
                outcome = api.apply(plan)
                result = self.judge(plan) if outcome.exit_code == 0 else Result(refused(outcome.exit_code))
            else:
                result = Result(refused(plan_code(plan)))
        except MsRecoverError as error:
            result = Result(refused(error.exit_code))
        at = next(at for at, where in WHERES.items() if where.title == self.where.title)
        told = {
            reason
            for reason, places, kinds in UNKNOWABLE
            if self.kind in kinds and at in {place for place, _ in places}
        }
        may_be_silent = result.outcome == UNDETECTED and not any("names it" in reason for reason in told)
        if not (noticed or may_be_silent or result.outcome == UNHARMED or self.kind in NO_DAMAGE_TO_SLICES):
            result.faults.append("verify noticed nothing")
        return result

    def is_noticed(self, inventory: Inventory) -> bool:
        found = api.verify(inventory)
        gone = {(one.step, rank) for one in found.missing for rank in one.ranks}
        return bool(found.wrong or found.disagreements or (self.victim.step, self.victim.rank) in gone)

    def judge(self, plan: Plan) -> Result:
        """Judge a recovery that ended with 0, by comparing every rank's slice with the truth."""
        assert plan.step is not None
        wrong = set()
        for verdict in plan.ranks:
            assert verdict.path is not None
            if (self.root / verdict.path).read_bytes() != self.truth[verdict.rank, plan.step]:
                wrong.add(verdict.rank)
        if wrong:
            struck = {self.victim.stranger} if "exchanged with another group's" in self.kind else set()
            more = wrong - {self.victim.rank, self.where.lost} - struck
            return Result(UNDETECTED, [f"what was whole is wrong now: rank {rank}" for rank in sorted(more)])
        result = Result(self.name(plan))
        again = api.scan(self.root)
        planned = api.plan(again, PlanOptions(step=plan.step))
        if not planned.recoverable or planned.actions or planned.group_files:
            result.faults.append("apply left something to do")
        found = api.verify(again, PlanOptions(step=plan.step))
        used = {verdict.path for verdict in plan.ranks}
        result.faults += [f"after apply {one.path} is {one.status}" for one in found.wrong if one.path in used]
        return result

    def name(self, plan: Plan) -> str:
        assert plan.step is not None
        if plan.step < self.victim.step:
            return FELL_BACK
        if all(action.rank != self.victim.rank for action in plan.actions):
            return UNHARMED
        if any(isinstance(action, ComposeAction) and action.rank == self.victim.rank for action in plan.actions):
            return COMPOSED
        return REPAIRED if self.where.lost is None else REPLACED

    def look_for_losses(self, before: dict[str, bytes | int], result: Result) -> None:
        """Nothing is removed, and what changed is the truth now; but for what this run gave up as undetected."""
        after = snapshot(self.root)
        slices = {str(self.victim.slice_of(*key).relative_to(self.root)): data for key, data in self.truth.items()}
        for path, was in before.items():
            now = after.get(path)
            if now is None and not (self.kind == TAKEN_OVER and path.endswith(".ms_recover.tmp")):
                result.faults.append(f"{path} was removed")
            elif path in slices and now not in (was, slices[path]) and result.outcome != UNDETECTED:
                result.faults.append(f"{path} holds neither what it held nor the truth")
            elif path not in slices and now != was and now is not None and not path.endswith(("json", "pb")):
                result.faults.append(f"{path} was changed")
        for path in set(after) - set(before):
            if path.endswith(".ms_recover.tmp"):
                result.faults.append(f"{path} was left behind")


def refused(code: int) -> str:
    return f"refused (exit {code})"


def snapshot(root: Path) -> dict[str, bytes | int]:
    """Return what every name below `root` holds: bytes of regular files, the kind of others."""
    held: dict[str, bytes | int] = {}
    for path in root.rglob("*"):
        kind = stat.S_IFMT(path.lstat().st_mode)
        if path.parent != root:
            held[str(path.relative_to(root))] = path.read_bytes() if kind == stat.S_IFREG else kind
    return held


@dataclass(frozen=True)
class Template:
    """A whole tree."""

    root: Path
    model_parallel: int
    older: Step
    newest: Step
    truth: dict[tuple[int, Step], bytes]

    def struck_at(self, root: Path, where: Where, kind: str) -> Case:
        """Copy the tree, without what is lost."""
        gone = f"ckpt_dir{where.lost}"
        shutil.copytree(
            self.root,
            root,
            symlinks=True,
            ignore=lambda folder, names: {gone, "truth"} & set(names),
        )
        ranks = range(
            where.victim % self.model_parallel, where.data_parallel * self.model_parallel, self.model_parallel
        )
        peers = tuple(rank for rank in ranks if rank not in (where.victim, where.lost))
        victim = Victim(root, where.victim, self.newest, self.older, stranger=where.stranger, peers=peers)
        return Case(root, kind, victim, where, dict(self.truth))


def made_tree(root: Path, data_parallel: int, evidence: str, run: Run) -> Template:
    parameters, pieces = damage.STRUCK, damage.STRUCK_PIECES
    older, newest = run.older, run.newest
    make_tree(root, data_parallel=data_parallel, steps=[older, newest], parameters=parameters, pieces=pieces)
    for folder in root.iterdir():
        (folder / "strategy.ckpt").write_bytes(damage.struck_layout_bytes(data_parallel, 2))
    return complete(Template(root, 2, older, newest, {}), data_parallel * 2, evidence)


def cut_tree(root: Path, evidence: str, run: Run) -> Template:
    make_struck_cut_tree(root, [run.older, run.newest])
    return complete(Template(root, 6, run.older, run.newest, {}), 6, evidence)


def real_tree(root: Path, evidence: str) -> Template:
    shutil.copytree(FIXTURES / "dp2_mp4", root)
    return complete(Template(root, 4, Step(1, 77), Step(2, 77), {}), 8, evidence)


def complete(template: Template, ranks: int, evidence: str) -> Template:
    for rank in range(ranks):
        for step in (template.older, template.newest):
            path = template.root / f"ckpt_dir{rank}" / f"test-{step}.ckpt"
            template.truth[rank, step] = path.read_bytes()
    if evidence == "saved":
        save_manifests(template.root)
    elif evidence == "sealed":
        sealed, _ = api.seal(api.scan(template.root))
        assert len(sealed) == 2 * ranks
    return template


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A directory in memory where there is one: thousands of files are synced."""
    if MEMORY.is_dir() and os.access(MEMORY, os.W_OK):
        with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
            yield Path(folder)
    else:
        yield tmp_path_factory.mktemp("campaign")


@pytest.fixture(scope="module", params=range(RUNS))
def run(request: pytest.FixtureRequest) -> Run:
    """Return a run: what is asked of the first holds for all."""
    return run_of(request.param)


@pytest.fixture(scope="module")
def campaign(base: Path, run: Run) -> dict[tuple[str, str, str], Result]:
    """Run every case once: kind, where, evidence."""
    results: dict[tuple[str, str, str], Result] = {}

    def strike_all(kinds: dict[str, mishaps.Mishap], template: Template, at: str, where: Where, evidence: str) -> None:
        for kind, strike in kinds.items():
            root = base / "struck"
            case = template.struck_at(root, where, kind)
            results[kind, at, evidence] = case.run(strike)
            shutil.rmtree(root)

    kinds = {kind: strike for family in FAMILIES.values() for kind, strike in family.items()}
    for evidence in EVIDENCES:
        for at, where in run.wheres.items():
            folder = base / f"{at}-{evidence}"
            cut = at == "parts"
            template = cut_tree(folder, evidence, run) if cut else made_tree(folder, where.data_parallel, evidence, run)
            strike_all(kinds, template, at, where, evidence)
            shutil.rmtree(folder)
        template = real_tree(base / f"real-{evidence}", evidence)
        for at, where in REAL_WHERES.items():
            strike_all(REAL_KINDS, template, at, where, evidence)
        shutil.rmtree(template.root)
    return results


def test_at_least_forty_kinds_strike_everywhere(campaign: dict[tuple[str, str, str], Result]) -> None:
    happened = Counter((at, evidence) for (_, at, evidence), result in campaign.items() if result.outcome != NOT_HERE)
    assert len(happened) == len(WHERES) * len(EVIDENCES)
    assert min(happened.values()) >= 40, happened


def test_what_never_may_happen_does_not(campaign: dict[tuple[str, str, str], Result]) -> None:
    """No crash, no whole slice spoilt, no file lost, nothing left behind, nothing left to do."""
    faults = [f"{' | '.join(case)}: {fault}" for case, result in campaign.items() for fault in result.faults]
    assert not faults, "\n".join(faults)


def test_undetected_is_only_what_nothing_tells(campaign: dict[tuple[str, str, str], Result]) -> None:
    silent = {case for case, result in campaign.items() if result.outcome == UNDETECTED}
    assert silent - UNKNOWN == set(), "wrong bytes under a final name"
    assert UNKNOWN - silent == set(), "detected now: take it out of UNKNOWABLE"


def test_with_manifests_everything_is_detected(campaign: dict[tuple[str, str, str], Result]) -> None:
    silent = {case for case, result in campaign.items() if result.outcome == UNDETECTED and case[2] != "none"}
    assert not silent


@pytest.mark.parametrize(
    ("kind", "at", "evidence"),
    [
        ("bit flip in a piece", "own", "saved"),
        ("bit flip in a piece", "own", "none"),
        ("zero hole in the middle", "only", "sealed"),
        ("cut between two parameters", "several", "none"),
        ("a pipe in its place", "own", "saved"),
        ("an older step's slice, renamed with its manifest", "only", "saved"),
        ("rank list of another group", "several", "none"),
        ("a foreign slice beside it, its name not UTF-8", "own", "none"),
        ("manifest a pipe", "several", "saved"),
    ],
)
def test_the_command_line_ends_as_the_functions_do(kind, at, evidence, run, campaign, base, recover_ckpt):
    where = run.wheres[at]
    template = made_tree(base / "command-line", where.data_parallel, evidence, run)
    root = base / "command-line-struck"
    case = template.struck_at(root, where, kind)
    strike = next(family[kind] for family in FAMILIES.values() if kind in family)
    try:
        strike(case.victim)
        done = recover_ckpt("apply", root, "--json")
        expected = campaign[kind, at, evidence].outcome
        codes = {refused(code): code for code in range(1, 6)}
        assert done.code == codes.get(expected, 0), done.err
        if expected not in codes:
            step = case.victim.older if expected == FELL_BACK else case.victim.step
            assert done.json["step"] == {"epoch": step.epoch, "step": step.step}
    finally:
        shutil.rmtree(root)
        shutil.rmtree(template.root)


def rows_of(campaign: dict[tuple[str, str, str], Result]) -> list[recovery_matrix.Row]:
    rows = []
    for at, where in WHERES.items():
        for family, kinds in {**FAMILIES, REAL_FAMILY: REAL_KINDS}.items():
            for kind in kinds:
                outcomes = tuple(campaign.get((kind, at, evidence), Result(NOT_HERE)).outcome for evidence in EVIDENCES)
                silent = {
                    (at, evidence) for evidence, found in zip(EVIDENCES, outcomes, strict=True) if found == UNDETECTED
                }
                why = " ".join(reason for reason, places, named in UNKNOWABLE if kind in named and places & silent)
                row = recovery_matrix.Row(place=where.title, family=family, kind=kind, outcomes=outcomes, why=why)
                if set(outcomes) != {NOT_HERE}:
                    rows.append(row)
    return rows


@pytest.fixture(scope="module")
def rows(campaign: dict[tuple[str, str, str], Result]) -> list[recovery_matrix.Row]:
    return rows_of(campaign)


def test_every_case_that_was_recovered_still_is(rows: list[recovery_matrix.Row]) -> None:
    before = recovery_matrix.from_csv(recovery_matrix.TABLE.read_text())
    assert recovery_matrix.losses(before, rows) == set()


def test_the_matrix_in_the_documents_is_what_this_run_gave(rows: list[recovery_matrix.Row]) -> None:
    table, page = recovery_matrix.TABLE, recovery_matrix.PAGE
    if os.environ.get(REWRITE) and not recovery_matrix.losses(recovery_matrix.from_csv(table.read_text()), rows):
        table.write_text(recovery_matrix.to_csv(rows))
        page.write_text(recovery_matrix.with_figures(page.read_text(), rows))
    assert table.read_text() == recovery_matrix.to_csv(rows), f"{table} is not current: run this with {REWRITE}=1"
    assert page.read_text() == recovery_matrix.with_figures(page.read_text(), rows), "the page does not fit its CSV"
