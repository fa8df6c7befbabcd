"""Which manifest stays beside a recovered slice, and what one that was left proves."""

from dataclasses import replace

import pytest

from ms_recover.execution.manifests import is_as_saved, proves
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.provenance import Provenance
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step

STEP = Step(1, 8)
SAVED = Manifest(
    run_id="run",
    rank=1,
    world_size=4,
    step=STEP,
    cumulative_step=8,
    file="net-1_8.ckpt",
    size=100,
    digests=Digests("x", ("y",)),
    parameters=(Parameter("w", "Float32", (4,), 16),),
    group=(1, 3),
    strategy_digest="layouts",
)
COPIED = replace(SAVED, provenance=Provenance(kind="copied", evidence="manifest"), tool="of another version")


@pytest.mark.parametrize(
    "made",
    [COPIED, replace(COPIED, strategy_digest=None), replace(COPIED, cumulative_step=None)],
    ids=["copied", "without a strategy file", "without all that it states besides"],
)
def test_what_training_saved_stays_beside_the_same_bytes(made):
    assert is_as_saved(SAVED, made)


@pytest.mark.parametrize(
    "changes",
    [
        {"run_id": "another"},
        {"rank": 3},
        {"world_size": 8},
        {"step": Step(1, 9)},
        {"file": "other-1_8.ckpt"},
        {"size": 101},
        {"digests": Digests("z", ("y",))},
        {"parameters": ()},
        {"group": (1,)},
        {"strategy_digest": "others"},
    ],
    ids=lambda changes: next(iter(changes)),
)
def test_a_manifest_of_anything_else_is_replaced(changes):
    assert not is_as_saved(SAVED, replace(COPIED, **changes))


def test_only_a_manifest_of_training_stays():
    assert not is_as_saved(None, COPIED)
    for kind in ("sealed", "copied", "composed"):
        assert not is_as_saved(replace(SAVED, provenance=Provenance(kind=kind, evidence="vote")), COPIED)


@pytest.mark.parametrize(
    ("own", "run", "proven"),
    [
        (SAVED, "run", True),
        (SAVED, None, True),
        (SAVED, "another", False),
        (None, None, False),
        (replace(SAVED, rank=3), "run", False),
        (replace(SAVED, step=Step(1, 9)), "run", False),
        (replace(SAVED, provenance=Provenance(kind="sealed", evidence="structure")), "run", False),
    ],
    ids=["own", "no run", "another run", "none", "another rank", "another step", "sealed by its structure"],
)
def test_a_manifest_that_was_left_proves_bytes_of_its_rank_step_and_run(own, run, proven):
    assert proves(own, 1, STEP, run) == proven
