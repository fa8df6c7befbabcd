"""What an error that came out of a network in PyNative mode leaves behind: MindSpore goes on recording a gradient.

From then on, for every network of the process, parameters may not be written in place, and each training step runs the
network twice, so that what the network keeps (batch statistics, a memory bank) moves twice, too. ``clear_res`` ends the
recording; MindSpore calls it where it fails to compile.
"""

from __future__ import annotations

import logging

from ms_recover.training.mindspore_inside import clear_recording, is_recording

_log = logging.getLogger(__name__)


def end_recording() -> None:
    """End the recording of a gradient that an error has left open; nothing is recorded where a training begins."""
    if is_recording():
        try:
            clear_recording()
        except Exception as error:  # of an operator that failed then, which MindSpore raises only now
            _log.info("an operator of the network had failed: %s", str(error).partition("\n")[0])
            clear_recording()
        _log.info("MindSpore was left recording a gradient, by an error that came out of a network: it is ended")
