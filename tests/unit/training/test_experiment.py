"""The experiment that a prefix stands for, and what a manifest states of a slice that MindSpore has saved."""

from types import SimpleNamespace

import pytest

from ms_recover.model.manifest import TrainingRecord
from ms_recover.training.deciding.experiment import experiment_of, given_prefix, start_of, with_experiment


@pytest.mark.parametrize(
    ("prefix", "given", "number"),
    [("CKP", "CKP", 0), ("CKP_3", "CKP", 3), ("CKP_x", "CKP", None), ("CKPT", "CKP", None), ("a.b", "acb", None)],
)
def test_the_number_of_a_start_is_what_was_appended(prefix, given, number):
    assert start_of(prefix, given) == number


def test_the_prefix_that_a_program_gave_is_that_of_the_callback():
    assert given_prefix(SimpleNamespace(_exception_prefix="CKP")) == "CKP"
    assert given_prefix(SimpleNamespace(_exception_prefix="")) is None
    assert given_prefix(SimpleNamespace(_exception_prefix=lambda: "CKP")) is None
    assert given_prefix(object()) is None


def test_a_record_gets_the_experiment_and_the_number_of_the_start():
    made = with_experiment(TrainingRecord(1), "CKP_rank_3_2", "CKP_rank_3")
    assert (made.base_prefix, made.start_number) == (experiment_of("CKP_rank_3"), 2)
    assert with_experiment(TrainingRecord(1), "CKP_rank_3_2", None) == TrainingRecord(1)
    assert with_experiment(TrainingRecord(1), "other", "CKP") == TrainingRecord(1)
