"""Two ranks that save on hosts of different names; run by msrun.

``python -m tests.support.host_losses DIRECTORY`` writes what each rank logged to ``DIRECTORY/said{rank}.json``, by the
names of the hosts.
"""

import json
import logging
import os
import sys
from pathlib import Path

import mindspore as ms
from mindspore import nn
from mindspore.communication import init

from ms_recover.training import SliceSaver
from ms_recover.training.this_process import current_job

HOSTS = {"one": ("node1", "node1"), "two": ("node1", "node2")}


class Said(logging.Handler):
    """Keeps what is logged about hosts."""

    def __init__(self):
        super().__init__(logging.INFO)
        self.lines = []

    def emit(self, record):
        """Keep the level and the text."""
        if record.name == "ms_recover.training.headline":
            self.lines.append([record.levelname, record.getMessage()])


def main(folder: Path) -> None:
    """Save twice with each choice of hosts."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    ms.set_device("CPU")
    init()
    rank = current_job().rank
    logging.getLogger("ms_recover").setLevel(logging.INFO)
    network = nn.Dense(3, 2, weight_init="ones", bias_init="zeros")
    seen = {}
    for name, hosts in HOSTS.items():
        os.environ["MS_RECOVER_HOST"] = hosts[rank]
        said = Said()
        logging.getLogger("ms_recover").addHandler(said)
        group = [0, 1]
        with SliceSaver(network, f"{folder}/{name}/ckpt_dir{{rank}}", group=group, async_save=name == "two") as saver:
            saver.save(1)
            saver.save(2)
        logging.getLogger("ms_recover").removeHandler(said)
        seen[name] = said.lines
    (folder / f"said{rank}.json").write_text(json.dumps(seen))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
