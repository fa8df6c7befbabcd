"""What rank 0 says about the loss of hosts, once."""

import json
import logging

import pytest

from ms_recover.model.steps import Step
from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.headline import Headline


class Stated(TrainingJob):
    """Rank 0 of a job whose ranks run on these hosts; each pair of neighbours holds the same."""

    def __init__(self, *hosts):
        super().__init__(0, len(hosts), True)
        object.__setattr__(self, "hosts", hosts)

    def gather_text(self, text, doing):
        return [json.dumps([host, host, rank - rank % 2, 2]) for rank, host in enumerate(self.hosts)]


@pytest.mark.parametrize(
    ("hosts", "level"),
    [(("a",) * 4, logging.INFO), (("a", "a", "b", "b"), logging.WARNING), (("a", "b", "a", "b"), logging.INFO)],
    ids=["one host", "both copies on one of two", "on both"],
)
def test_that_no_host_may_be_lost_is_a_warning_where_there_are_several(caplog, hosts, level):
    caplog.set_level(logging.INFO, "ms_recover")
    said = set()
    for _ in range(2):  # savers of the run
        Headline(Stated(*hosts), "ckpt_dir0", said).say(Step(1, 8), (0, 1), True)
    (record,) = caplog.records
    assert record.levelno == level
    assert ("survives any 1 host" in record.getMessage()) == (hosts == ("a", "b", "a", "b"))
