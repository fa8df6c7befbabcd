"""Real jobs of several ranks on this machine, by msrun."""

import os
import sys

from tests.support.ports import free_port
from tests.support.sample import REPOSITORY, run

SCRIPTS = REPOSITORY / "tests" / "support"


def run_ranks(script, ranks, folder, *arguments, **environment):
    """Run a script of tests/support as several ranks, with logs below a folder; return exit code and output."""
    port = free_port()
    programs = os.path.dirname(sys.executable)
    launch = [
        *(os.path.join(programs, "msrun"), f"--worker_num={ranks}", f"--local_worker_num={ranks}"),
        *(f"--master_port={port}", f"--log_dir={folder}/logs", "--join=True", "--cluster_time_out=120"),
        *(SCRIPTS / script, *arguments),
    ]
    return run(launch, folder, PATH=os.pathsep.join((programs, os.environ["PATH"])), **environment)
