"""What is whole and proven is never overwritten by inference, and what survives is recovered."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import Phase, event, example, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.errors import VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.model.options import PlanOptions
from ms_recover.model.strategy import Layout, Strategy
from tests.support.cuts import cut_layout
from tests.support.examples import examples
from tests.support.law_checks import RECOVERED, Verdict, examine, examine_scene
from tests.support.law_files import contents_of, make, path_of
from tests.support.law_network import TIED, Job, Tensor, plain_job, spread_job
from tests.support.law_scenes import (
    MISSING,
    MIXED,
    OTHER_JOB,
    RIGHT,
    Fault,
    Scene,
    cut_over_data,
    random_scene,
    turned,
    uncut,
)
from tests.support.law_simplest import describe, simplest

SPREAD = spread_job()
NEWEST = SPREAD.steps[-1]
WHOLE = PlanOptions(world_size=8)
QUICK = PlanOptions(world_size=8, quick=True)


@settings(max_examples=examples(400), phases=(Phase.explicit, Phase.reuse, Phase.generate))  # no seed is simpler
@example(8045)  # lists and strategy files of another job, where the one lost directory leaves nothing that differs
@given(st.integers(0, (1 << 32) - 1))
def test_no_random_tree_loses_what_is_proven_and_none_is_refused_that_can_be_recovered(seed: int) -> None:
    verdict = examine(seed)
    event(f"{verdict.ended}, {'right' if verdict.right else 'not right'}")
    assert not verdict.violations, describe(simplest(random_scene(seed)))


def recovered(scene: Scene) -> None:
    verdict = lawful(scene)
    assert verdict.obliged
    assert (verdict.ended, verdict.right) == (RECOVERED, True)


def lawful(scene: Scene) -> Verdict:
    verdict = examine_scene(scene)
    assert not verdict.violations, "\n".join(verdict.violations)
    return verdict


def lost(*ranks: int) -> tuple[Fault, ...]:
    return tuple(Fault(kind="lost directory", rank=rank, step=NEWEST) for rank in ranks)


@pytest.mark.parametrize("options", [WHOLE, QUICK], ids=["read", "quick"])
@pytest.mark.parametrize("manifests", ["saved", "sealed", "none"])
@pytest.mark.parametrize("rank", range(4, 8))
def test_a_lost_rank_of_an_interleaved_pipeline_is_recovered_and_nothing_else_is_written(
    rank: int, manifests: str, options: PlanOptions
) -> None:
    """The strategy file of the last stage names states of the embedding and not the embedding, which is cut."""
    recovered(Scene(job=SPREAD, faults=lost(rank), manifests=manifests, options=options))


@pytest.mark.parametrize("manifests", ["saved", "sealed"])
@pytest.mark.parametrize("name", [TIED, "layer1.weight", "global_step"])
def test_a_flipped_bit_in_a_stage_of_an_interleaved_pipeline_is_mended_alone(name: str, manifests: str) -> None:
    flip = Fault(kind="flip", rank=7, step=NEWEST, names=(name,))
    recovered(Scene(job=SPREAD, faults=(flip,), manifests=manifests, options=WHOLE))


@pytest.mark.parametrize("options", [WHOLE, QUICK], ids=["read", "quick"])
@pytest.mark.parametrize("name", [TIED, "layer1.weight"])
def test_a_flipped_bit_without_manifests_in_an_interleaved_pipeline_overwrites_no_other_half(
    name: str, options: PlanOptions
) -> None:
    lawful(Scene(job=SPREAD, faults=(Fault(kind="flip", rank=7, step=NEWEST, names=(name,)),), options=options))


@pytest.mark.parametrize("options", [WHOLE, QUICK], ids=["read", "quick"])
@pytest.mark.parametrize("manifests", ["saved", "sealed", "none"])
def test_partial_gives_no_rank_the_half_of_others_where_both_ranks_of_its_half_are_lost(
    manifests: str, options: PlanOptions
) -> None:
    verdict = lawful(Scene(job=SPREAD, faults=lost(5, 7), manifests=manifests, options=options))
    assert verdict.ended == "unrecoverable"


@pytest.mark.parametrize("lists", [RIGHT, MISSING])
@pytest.mark.parametrize("change", [uncut, cut_over_data, turned])
@pytest.mark.parametrize("sizes", [(2, 2), (2, 4), (4, 2), (1, 4), (3, 2)])
def test_the_strategy_file_of_another_job_overwrites_nothing_where_a_rank_is_lost(
    sizes: tuple[int, int], change: Callable[[Layout], Layout], lists: str
) -> None:
    job = plain_job(*sizes)
    for rank in (0, job.size - 1):
        lawful(_misled(job, change, rank, lists=lists))


@pytest.mark.parametrize("change", [uncut, cut_over_data])
def test_one_foreign_parameter_of_four_ranks_overwrites_nothing_where_a_rank_is_lost(
    change: Callable[[Layout], Layout],
) -> None:
    job = plain_job(2, 2)
    for rank in range(4):
        for name in ("dense.weight", "head.weight"):
            lawful(_misled(job, change, rank, names=(name,)))


def _misled(
    job: Job, change: Callable[[Layout], Layout], rank: int, *, names: tuple[str, ...] = (), lists: str = RIGHT
) -> Scene:
    right = job.strategy(0)
    layouts = tuple(change(one) if not names or one.parameter in names else one for one in right.layouts)
    return Scene(
        job=job,
        faults=lost(rank),
        strategies=OTHER_JOB,
        lists=lists,
        foreign={0: replace(right, layouts=layouts)},
        options=PlanOptions(world_size=job.size),
    )


@pytest.mark.parametrize("manifests", ["saved", "sealed", "none"])
@pytest.mark.parametrize("shape", [(4,), (4, 2), (16, 3)])
def test_a_larger_parameter_without_layout_is_no_counter(shape: tuple[int, ...], manifests: str) -> None:
    cut = cut_layout("statistics", (2, 2), (0,), *((),) * (len(shape) - 1))
    extra = Tensor(name="statistics", shape=shape, layout=cut, stages=frozenset({0}), named=frozenset())
    for rank in range(4):
        job = plain_job(2, 2, extra=extra)
        recovered(Scene(job=job, faults=lost(rank), manifests=manifests, options=PlanOptions(world_size=4)))


@pytest.mark.parametrize("manifests", ["saved", "sealed", "none"])
def test_a_list_of_rates_comes_from_slices_of_two_groups(manifests: str) -> None:
    """Each rank is alone in its rank list, and each part of what is cut lies on two ranks."""
    only = frozenset({0})
    rates = Tensor(name="learning_rates", shape=(5,), layout=None, stages=only, named=frozenset())
    job = plain_job(2, 2, extra=rates)
    turned_one, *others = job.tensors
    assert turned_one.layout is not None
    crossed = replace(turned_one, layout=cut_over_data(turned_one.layout))
    for rank in range(4):
        recovered(
            Scene(
                job=replace(job, tensors=(crossed, *others)),
                faults=lost(rank),
                manifests=manifests,
                options=PlanOptions(world_size=4),
            )
        )


@pytest.mark.parametrize("size", [(4, 1), (2, 2), (4, 2)])
@pytest.mark.parametrize("ranks", [2, 4])
def test_the_rank_lists_of_another_job_give_no_rank_the_part_of_others_where_a_rank_is_lost(
    size: tuple[int, int], ranks: int
) -> None:
    """Right strategy files name other replicas, and nothing else says anything."""
    job = plain_job(*size)
    groups = {rank: tuple(range(rank // ranks * ranks, rank // ranks * ranks + ranks)) for rank in range(job.size)}
    options = PlanOptions(world_size=job.size)
    for faults in (lost(0), lost(job.size - 1), lost(1, 2)):
        for chosen in (options, replace(options, quick=True)):
            lawful(Scene(job=job, faults=faults, lists=OTHER_JOB, foreign_groups=groups, options=chosen))


@pytest.mark.parametrize("strategies", [RIGHT, MISSING])
@pytest.mark.parametrize("kind", ["flip", "lost slice"])
def test_the_manifest_of_a_damaged_slice_refuses_no_values_that_another_rank_lends(kind: str, strategies: str) -> None:
    """Each rank has statistics of its own, and sealing does not know it: the manifest states what nobody else has."""
    only = frozenset({0})
    own = Tensor(name="bn.moving_mean", shape=(4,), layout=None, stages=only, named=frozenset(), own=True)
    fault = Fault(kind=kind, rank=2, step=NEWEST, names=("dense.weight",))
    verdict = lawful(
        Scene(
            job=plain_job(2, 2, extra=own),
            faults=(fault,),
            manifests="sealed",
            strategies=strategies,
            options=PlanOptions(world_size=4),
        )
    )
    assert (verdict.ended, verdict.right) == (RECOVERED, True)


@pytest.mark.parametrize("manifests", ["none", "saved"])
def test_wrong_rank_lists_stay_out_when_what_was_recovered_without_them_names_its_rank_alone(manifests: str) -> None:
    verdict = lawful(
        Scene(
            job=plain_job(2, 4),
            faults=(Fault(kind="lost slice", rank=7, step=NEWEST),),
            manifests=manifests,
            lists=MIXED,
            foreign_groups={rank: (rank,) for rank in range(8)},
            without=frozenset({3, 5, 7}),
            options=WHOLE,
        )
    )
    assert (verdict.ended, verdict.right) == (RECOVERED, True)


@pytest.mark.parametrize("rank", range(4))
def test_complete_takes_nothing_by_layouts_that_another_step_contradicts_where_no_slice_of_its_own_does(
    tmp_path: Path, rank: int
) -> None:
    """The strategy file of a job without sharded optimizer says that two ranks have one moment."""
    right, wrong = _sharded_job()
    tree = make(
        Scene(
            job=right,
            faults=(*lost(rank), Fault(kind="lost slice", rank=3 - rank, step=NEWEST)),
            strategies=OTHER_JOB,
            lists=MISSING,
            foreign={0: wrong},
            options=PlanOptions(world_size=4),
        ),
        tmp_path / "tree",
    )
    with pytest.raises(VerificationError, match=r"step 3_8: .*head\.weight.*; step 2_8: "):
        api.complete(api.scan(tree.root), rank, PlanOptions(world_size=4))
    assert api.plan(api.scan(tree.root), tree.scene.options).disagreements


@pytest.mark.parametrize("rank", range(4))
def test_complete_takes_what_no_slice_of_the_step_confirms_where_another_step_does(tmp_path: Path, rank: int) -> None:
    job = plain_job(2, 2)
    faults = (*lost(rank), Fault(kind="lost slice", rank=3 - rank, step=NEWEST))
    scene = Scene(job=job, faults=faults, lists=MISSING, options=PlanOptions(world_size=4))
    tree = make(scene, tmp_path / "tree")
    result = api.complete(api.scan(tree.root), rank, scene.options)
    assert contents_of((tree.root / result.target).read_bytes()) == job.contents(rank, NEWEST)


def _sharded_job(extra: Tensor | None = None) -> tuple[Job, Strategy]:
    """Return a job that cuts one moment over the data-parallel ranks too, and the strategy file of another."""
    plain, name = plain_job(2, 2, extra=extra), "moment1.head.weight"
    tensors = tuple(
        replace(one, layout=cut_layout(name, (2, 2), (0,), (), shards=-1)) if one.name == name else one
        for one in plain.tensors
    )
    return replace(plain, tensors=tensors, _bytes={}), plain.strategy(0)


@pytest.mark.parametrize("lists", [RIGHT, MISSING])
@pytest.mark.parametrize("name", ["dense.weight", "moment1.dense.weight"])
def test_a_slice_that_is_again_as_training_saved_it_keeps_the_manifest_that_proves_it(
    tmp_path: Path, name: str, lists: str
) -> None:
    flip = Fault(kind="flip", rank=1, step=NEWEST, names=(name,))
    scene = Scene(
        job=plain_job(2, 2), faults=(flip,), manifests="saved", lists=lists, options=PlanOptions(world_size=4)
    )
    recovered(scene)
    tree = make(scene, tmp_path / "tree")
    manifest = tree.root / (path_of(1, NEWEST) + MANIFEST_SUFFIX)
    saved = manifest.read_bytes()
    outcome = api.apply(api.plan(api.scan(tree.root), scene.options))
    assert (outcome.exit_code, manifest.read_bytes()) == (0, saved)


def test_a_strategy_file_of_another_job_is_disputed_by_no_slice_that_was_mended_under_it(tmp_path: Path) -> None:
    """All manifests are of training before and after: what differs is as it was saved."""
    layout = cut_layout("norm", (2, 2), (), ())
    norm = Tensor(name="norm", shape=(4, 2), layout=layout, stages=frozenset({0}), named=frozenset({0}))
    job, wrong = _sharded_job(norm)
    flip = Fault(kind="flip", rank=2, step=NEWEST, names=("dense.weight",))
    scene = Scene(
        job=job,
        faults=(flip,),
        manifests="saved",
        strategies=OTHER_JOB,
        lists=MISSING,
        known_when_saved=False,
        foreign={0: wrong},
        options=PlanOptions(world_size=4),
    )
    verdict = lawful(scene)
    assert (verdict.ended, verdict.right) == (RECOVERED, True)
    tree = make(scene, tmp_path / "tree")
    api.apply(api.plan(api.scan(tree.root), scene.options))
    again = api.plan(api.scan(tree.root), scene.options)
    assert (again.step, again.changes_anything) == (NEWEST, False)


FOUR = PlanOptions(world_size=4)


def sharded_moment(data: int, model: int, *, named: bool = True) -> Job:
    """Return a job that cuts a moment over the data-parallel ranks in pairs, which its strategy file names or not."""
    plain, name, only = plain_job(data, model), "moment1.head.weight", frozenset({0})
    cut = Tensor(
        name=name,
        shape=(data * model * 2, 2),
        layout=cut_layout(name, (data, model), (0,), (), shards=2),
        stages=only,
        named=only if named else frozenset(),
    )
    return replace(plain, tensors=tuple(cut if one.name == name else one for one in plain.tensors), _bytes={})


@pytest.mark.parametrize("strategies", [RIGHT, MISSING])
@pytest.mark.parametrize("cut", range(5))
def test_a_slice_that_was_cut_off_is_known_by_another_rank_where_its_own_rank_has_no_other(
    strategies: str, cut: int
) -> None:
    """It is the only one of its step, and its rank has none of another."""
    faults = (
        Fault(kind="lost slice", rank=0, step=SPREAD.steps[0]),
        Fault(kind="cut", rank=0, step=NEWEST, seed=cut),
        Fault(kind="lost slice", rank=1, step=NEWEST),
    )
    recovered(Scene(job=plain_job(2, 1), faults=faults, strategies=strategies, options=PlanOptions(world_size=2)))


def test_a_list_of_more_ranks_than_there_are_is_not_believed_beside_a_strategy_file_that_leaves_moments_out() -> None:
    """An evaluation wrote the file: the list, without the ranks that are not there, would be what it says."""
    scene = Scene(
        job=sharded_moment(2, 1, named=False),
        faults=(Fault(kind="lost slice", rank=1, step=NEWEST),),
        lists=OTHER_JOB,
        foreign_groups=dict.fromkeys(range(2), (0, 1, 2, 3)),
        options=PlanOptions(world_size=2),
    )
    assert lawful(scene).ended == "recovered"


@pytest.mark.parametrize("ranks", [(0, 2), (1, 3), (0, 3), (1, 2)])
def test_a_wrong_list_is_not_believed_where_one_of_two_strategy_files_contradicts_it_and_another_step(
    ranks: tuple[int, int],
) -> None:
    job = sharded_moment(4, 1)
    wrong = replace(job.strategy(0), layouts=tuple(uncut(one) for one in job.strategy(0).layouts))
    scene = Scene(
        job=job,
        faults=tuple(Fault(kind="lost slice", rank=rank, step=NEWEST) for rank in ranks),
        strategies=MIXED,
        lists=OTHER_JOB,
        foreign={0: wrong},
        foreign_groups={0: (0, 1), 1: (0, 1), 2: (2, 3), 3: (2, 3)},
        without=frozenset({0, 1}),
        options=FOUR,
    )
    lawful(scene)


@pytest.mark.parametrize("change", [uncut, turned])
def test_a_list_that_came_after_a_lone_slice_was_sealed_condemns_it_not_and_lends_it_not(
    change: Callable[[Layout], Layout],
) -> None:
    """The strategy file is another job's; slices of one list alone would confirm it."""
    cut = cut_layout("statistics", (2, 2), (0,), ())
    extra = Tensor(name="statistics", shape=(4, 2), layout=cut, stages=frozenset({0}), named=frozenset())
    for rank in range(4):
        job = plain_job(2, 2, extra=extra)
        misled = _misled(job, change, rank)
        lawful(replace(misled, manifests="sealed", known_when_saved=False, sealed_first=True))


@pytest.mark.parametrize("lists", [RIGHT, OTHER_JOB])
@pytest.mark.parametrize("strategies", [RIGHT, OTHER_JOB])
@pytest.mark.parametrize("first", [True, False])
def test_what_was_recovered_beside_sealed_slices_is_there_at_a_second_plan(
    lists: str, strategies: str, first: bool
) -> None:
    """The lists came after the slices were sealed, or are not those that sealing took."""
    job = plain_job(2, 2)
    wrong = replace(job.strategy(0), layouts=tuple(uncut(one) for one in job.strategy(0).layouts))
    for rank in range(4):
        replica = (rank + 2) % 4
        faults = (
            Fault(kind="lost slice", rank=rank, step=NEWEST),
            Fault(kind="cut", rank=replica, step=NEWEST),
            Fault(kind="another run", rank=replica, step=SPREAD.steps[0]),
        )
        scene = Scene(
            job=job,
            faults=faults,
            manifests="sealed",
            lists=lists,
            strategies=strategies,
            foreign={0: wrong},
            foreign_groups={one: (0, 1) if one < 2 else (2, 3) for one in range(4)},
            known_when_saved=False,
            sealed_first=first,
            options=FOUR,
        )
        lawful(scene)


def test_lists_that_contents_contradicted_are_not_believed_when_fewer_slices_show_it_after_a_recovery() -> None:
    faults = (
        Fault(kind="flip", rank=0, step=NEWEST),
        Fault(kind="one counter", rank=1, step=NEWEST),
        Fault(kind="lost slice", rank=1, step=SPREAD.steps[0]),
    )
    scene = Scene(
        job=plain_job(2, 2),
        faults=faults,
        manifests="sealed",
        lists=OTHER_JOB,
        foreign_groups=dict.fromkeys(range(4), (0, 1, 2, 3)),
        known_when_saved=False,
        options=FOUR,
    )
    verdict = lawful(scene)
    assert (verdict.ended, verdict.right) == (RECOVERED, True)


@pytest.mark.parametrize("rank", range(4, 8))
def test_a_manifest_of_one_stage_speaks_against_no_strategy_file_of_another(tmp_path: Path, rank: int) -> None:
    """It is another run's, and names the strategy file of its own stage."""
    faults = (Fault(kind="another run", rank=rank, step=NEWEST, seed=1), *lost(2))
    tree = make(Scene(job=SPREAD, faults=faults, lists=MISSING, options=WHOLE), tmp_path / "tree")
    plan = api.plan(api.scan(tree.root), replace(WHOLE, lost=frozenset({rank})))
    assert plan.ranks[2].verdict in ("copy", "compose"), plan.ranks[2].reason


@pytest.mark.parametrize("other", range(4, 8))
def test_the_slice_of_another_stage_in_a_wrong_place_is_found_where_its_own_rank_has_no_other(other: int) -> None:
    """Both ranks have that list of parameters at this step alone, and no two slices are equal."""
    both = frozenset({0, 1})
    own = Tensor(name="bn.moving_mean", shape=(4,), layout=None, stages=both, named=frozenset(), own=True)
    job = replace(SPREAD, tensors=(*SPREAD.tensors, own), _bytes={})
    for rank in range(4):
        faults = (
            Fault(kind="misplaced", rank=rank, other=other, step=NEWEST),
            Fault(kind="lost slice", rank=other, step=SPREAD.steps[0]),
        )
        verdict = lawful(Scene(job=job, faults=faults, options=WHOLE))
        assert verdict.ended == RECOVERED
        with tempfile.TemporaryDirectory() as folder:
            plan = api.plan(api.scan(make(Scene(job=job, faults=faults), Path(folder)).root), WHOLE)
        assert plan.ranks[rank].verdict == "copy"


@pytest.mark.parametrize("manifests", ["saved", "sealed"])
@pytest.mark.parametrize("lists", [RIGHT, MISSING])
def test_a_parameter_without_layout_that_differs_at_another_step_is_not_whole(manifests: str, lists: str) -> None:
    """Slices of two rank lists that are left hold the same part of it."""
    for seed in range(8):
        faults = (*lost(1), Fault(kind="lost slice", rank=3, step=NEWEST))
        job = sharded_moment(4, 1, named=False)
        lawful(Scene(job=job, faults=faults, manifests=manifests, lists=lists, options=FOUR, seed=seed))


@pytest.mark.parametrize("rank", range(8))
def test_slices_that_training_saved_refute_the_layout_of_a_single_parameter(rank: int) -> None:
    job = sharded_moment(2, 4)
    right = job.strategy(0)
    layouts = tuple(turned(one) if one.parameter == "head.weight" else one for one in right.layouts)
    scene = Scene(
        job=job,
        faults=(*lost(rank), Fault(kind="stale", rank=(rank + 4) % 8, step=NEWEST)),
        manifests="saved",
        strategies=OTHER_JOB,
        known_when_saved=False,
        foreign={0: replace(right, layouts=layouts)},
        options=WHOLE,
    )
    lawful(scene)


CONTRADICTED = (
    *(120678, 122047, 123124, 123710, 123840, 200908, 201640, 203575, 204548, 213261),
    *(300123, 301771, 303330, 304361, 304500, 401761, 402812, 404229, 404794, 406702, 410373),
    *(604413, 604953, 700239, 701499, 702362, 702616, 702742, 704419, 704901, 900419, 7237277),
    *(5011, 8829),
)
"""Seeds of trees that contradicted the law once."""


@pytest.mark.parametrize("seed", CONTRADICTED)
def test_a_tree_that_contradicted_the_law_once_does_so_no_more(seed: int) -> None:
    verdict = examine(seed)
    assert not verdict.violations, "\n".join(verdict.violations)
