import pytest

from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.training.deciding.job import TrainingJob

ONE = TrainingJob(0, 1)


def test_ranks_without_communication_are_asked_to_initialize_it():
    with pytest.raises(UsageError, match="init"):
        TrainingJob(0, 2).gather([1])


def test_running_together_passes_on_results_and_errors():
    assert ONE.run_together("testing", lambda: 7) == 7

    def fail():
        raise MsRecoverError("no")

    with pytest.raises(MsRecoverError, match="no"):
        ONE.run_together("testing", fail)
