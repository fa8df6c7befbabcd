"""Where a rank takes the state of the training from, and when all ranks do without."""

import logging
from dataclasses import replace

import pytest

from ms_recover.execution.manifests import write_manifest
from ms_recover.execution.save_slice import SliceOrder, commit_slice
from ms_recover.file_names import STATE_SUFFIX
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.steps import Step
from ms_recover.testing.trees import PARAMETERS, slice_bytes

pytestmark = pytest.mark.mindspore
pytest.importorskip("mindspore")

from ms_recover.training.continuation import agree_state  # noqa: E402
from ms_recover.training.deciding.own_slice import OwnSlice  # noqa: E402
from ms_recover.training.found_state import find_run_state  # noqa: E402
from ms_recover.training.run_state import RunState, pending_state  # noqa: E402
from tests.support.ranks import on_all, thread_jobs  # noqa: E402

COUNTED = ({"class": "Counter", "state": {"count": 3}},)


FIRST = Step(1, 4)


def commit(root, rank, state=None, step=FIRST):
    folder = root / f"ckpt_dir{rank}"
    folder.mkdir(exist_ok=True)
    path = str(folder / f"test-{step}.ckpt")
    order = SliceOrder(path, rank, 2, step, 4, "run", (0, 1), frozenset(PARAMETERS))
    data = None if state is None else pending_state(state).encoded()

    def write(temporary):
        with open(temporary, "wb") as file:
            file.write(slice_bytes(PARAMETERS, 5))

    return OwnSlice(rank, step, path), commit_slice(replace(order, state=data), write)


def recovered(own, manifest, *sources):
    """Have a slice look as one that was copied."""
    found = tuple(ProvenanceSource(rank, f"ckpt_dir{rank}/test-{step}.ckpt") for rank, step in sources)
    provenance = Provenance(kind="copied", evidence="manifest", sources=found)
    training = manifest.training and manifest.training.of_recovered()
    write_manifest(own.path, replace(manifest, provenance=provenance, training=training))


def test_the_state_beside_the_slice_is_the_ranks_own(tmp_path, caplog):
    state = RunState(generators={"python": (3, (1, 2), None)}, extra={"scale": 0.5}, callbacks=COUNTED)
    own, _ = commit(tmp_path, 0, state)
    assert find_run_state(own, str(tmp_path)) == state
    assert caplog.text == ""


def test_a_recovered_slice_has_the_state_of_its_source(tmp_path, caplog):
    commit(tmp_path, 0, RunState(extra={"of": 0}))
    own, manifest = commit(tmp_path, 1, RunState(extra={"of": 1}))
    recovered(own, manifest, (0, Step(1, 4)))
    assert find_run_state(own, str(tmp_path)).extra == {"of": 0}
    assert "its state file is lost, so random generators, callbacks and extra go on as those of rank 0: " in caplog.text


def test_a_source_that_holds_another_step_now_lends_nothing(tmp_path, caplog):
    commit(tmp_path, 0, RunState(extra={"of": 0}), Step(2, 4))
    own, manifest = commit(tmp_path, 1, RunState(extra={"of": 1}))
    recovered(own, manifest, (0, Step(2, 4)), (7, Step(1, 4)))
    assert find_run_state(own, str(tmp_path)) is None
    assert "they start anew (it was not saved with this slice)" in caplog.text


def test_a_state_that_is_gone_or_damaged_is_named(tmp_path, caplog):
    own, _ = commit(tmp_path, 0, RunState())
    path = tmp_path / "ckpt_dir0" / f"test-1_4.ckpt{STATE_SUFFIX}"
    path.chmod(0o600)
    path.write_bytes(b"damaged")
    assert find_run_state(own, str(tmp_path)) is None
    assert f"they start anew ({path}: its contents are not those that the manifest of the slice names)" in caplog.text
    path.unlink()
    assert find_run_state(own, str(tmp_path)) is None
    assert f"({path}: no such file; a state file was expected there" in caplog.text


def test_callbacks_are_restored_on_all_ranks_or_on_none(tmp_path, caplog):
    caplog.set_level(logging.WARNING)
    jobs = thread_jobs(2)
    owns = [OwnSlice(rank, Step(1, 4), "path") for rank in range(2)]
    state = RunState(extra={"scale": 2}, callbacks=COUNTED)
    assert on_all(2, lambda rank: agree_state(jobs[rank], owns[rank], state)) == [state, state]
    assert caplog.text == ""
    lacking = on_all(2, lambda rank: agree_state(jobs[rank], owns[rank], state if rank else None))
    assert lacking == [None, replace(state, callbacks=())]
    assert "the callbacks start anew, because their state is lost on rank(s) 0: Counter" in caplog.text
