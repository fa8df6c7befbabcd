"""Tasks that workers run for tests."""

import os
import time

from ms_recover.engine.context import current
from ms_recover.engine.engine import Task
from ms_recover.engine.nodes import find_shared


def on_all(engine, function, calls):
    """Return tasks that any worker of this host may run, one for the arguments of each call."""
    node = find_shared(engine.look("/"), "/", None)
    return [Task(node, function, arguments) for arguments in calls]


def wait_until_stopped(folder):
    """Run until nobody waits for the result any more; files say when it began and when it had cleaned up."""
    begun = os.path.join(folder, f"begun{os.getpid()}")
    with open(begun, "w"):
        pass
    try:
        deadline = time.monotonic() + 120
        while not current().stop() and time.monotonic() < deadline:
            time.sleep(0.05)
        time.sleep(0.5)  # cleaning up takes a moment
    finally:
        os.rename(begun, begun.replace("begun", "ended"))


def work(seconds):
    """Take so long."""
    time.sleep(seconds)
    return seconds


def count_twice(size):
    """Count bytes in two steps; return what a worker cannot spoil."""
    current().progress(size)
    time.sleep(0.3)
    current().progress(size)
    return size
