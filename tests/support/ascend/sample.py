"""One simulated rank of the sample: ``python -m tests.support.ascend.sample SCRIPT OPTIONS...``.

Runs ``main()`` of a script of sample_code/distribute_training_transformer as it is.
"""

import importlib
import sys

from ms_recover.training.deciding.job import TrainingJob
from tests.support.sample import SAMPLE

if __name__ == "__main__":
    # the collectives between steps answer zeros: every rank says what this one says
    TrainingJob.gather = lambda self, numbers, doing="", *, named="": [tuple(numbers)] * self.size
    sys.path.insert(0, str(SAMPLE))
    del sys.argv[0]
    sys.exit(importlib.import_module(sys.argv[0]).main())
