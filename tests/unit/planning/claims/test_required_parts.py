"""The parts that an iteration must have: where nothing shows that its save ended, also those of the others."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.model.steps import Step
from ms_recover.planning.tree.parts import required_parts
from tests.support.iterations import Job, write_job

BOTH, MODEL = ("model", "opt"), ("model",)
OLD, NEW = Step.iteration(100), Step.iteration(200)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Iterations without redundancy, the newer one of model files alone; it was written at the times 10, 20 and 30."""
    tops = [tmp_path_factory.mktemp(name) / "tree" for name in ("both", "model")]
    job = Job(layers=1, remove_redundancy=True)
    whole = api.scan(write_job(tops[0], job))
    models = api.scan(write_job(tops[1], replace(job, optimizer=False)))
    slices = [file for file in whole.slices if file.step == OLD]
    slices += [replace(file, mtime_ns=10) for file in models.slices if file.step == NEW]
    old, new = (
        next(one for one in found.iterations if one.step == step) for found, step in ((whole, OLD), (models, NEW))
    )
    return replace(whole, slices=tuple(slices), iterations=(new, old))


def with_times(inventory, *, common=20, metadata=5, tracker=30, value=200):
    new, old = inventory.iterations
    new = replace(
        new,
        metadata=replace(new.metadata, state=replace(new.metadata.state, mtime_ns=metadata)),
        common=replace(new.common, state=replace(new.common.state, mtime_ns=common)),
    )
    named = inventory.tracker
    named = replace(named, value=value, state=replace(named.state, mtime_ns=tracker))
    return replace(inventory, iterations=(new, old), tracker=named)


@pytest.mark.parametrize(
    ("times", "required"),
    [
        ({}, MODEL),
        ({"value": 300}, MODEL),
        ({"value": 199}, BOTH),
        ({"tracker": 20}, MODEL),
        ({"tracker": 19}, BOTH),
        ({"common": 3, "tracker": 10}, MODEL),
        ({"common": 3, "tracker": 9}, BOTH),
        ({"metadata": 31}, BOTH),
    ],
)
def test_a_save_without_redundancy_ended_where_the_tracker_was_written_after_all_its_files(times, required, saved):
    assert required_parts(with_times(saved, **times)) == {NEW: required, OLD: BOTH}


def test_without_progress_metadata_or_tracker_nothing_shows_that_a_save_ended(saved):
    ended = with_times(saved)
    new, old = ended.iterations
    for gone in ("metadata", "common"):
        one = replace(new, **{gone: replace(getattr(new, gone), value=None)})
        assert required_parts(replace(ended, iterations=(one, old)))[NEW] == BOTH
    for tracker in (None, replace(ended.tracker, value=None), replace(ended.tracker, state=None)):
        assert required_parts(replace(ended, tracker=tracker))[NEW] == BOTH
    torn = replace(new, metadata=replace(new.metadata, state=None))
    assert required_parts(replace(ended, iterations=(torn, old)))[NEW] == MODEL
