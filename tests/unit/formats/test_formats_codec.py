"""JSON through the codec."""

import json
import subprocess
import sys

import pytest

from ms_recover.formats import codec


@pytest.mark.parametrize(
    "data",
    [{}, {"a": [1, 2.5, {"b": "\u202e\x1b", "c": [], "d": {}}], "e": None, "f": True, "g": (1, 2)}, {"n": "\udcff"}],
)
def test_indented_text_is_that_of_the_standard_library(data):
    assert codec.json_text(data) == json.dumps(data, indent=2)


TWO_THREADS = """
import threading
from concurrent.futures import ThreadPoolExecutor
from ms_recover.formats import codec

looked_at, decoded = threading.Event(), threading.Event()


def number():
    looked_at.set()
    decoded.wait(0.3)
    return int


class Inner(codec.Fields):
    value: "number()"


class Outer(codec.Fields):
    inner: Inner


def first():
    return {first}


def second():
    assert looked_at.wait(60)
    found = codec.decode(b'{{"inner": {{"value": 2}}}}', Outer).inner.value
    decoded.set()
    return found


with ThreadPoolExecutor(2) as pool:
    print([end.result() for end in [pool.submit(first), pool.submit(second)]])
"""
"""One thread looks at a type for the first time, and another decodes it meanwhile."""


@pytest.mark.processes
@pytest.mark.parametrize(
    "first",
    [
        'codec.decode(b\'{"inner": {"value": 1}}\', Outer).inner.value',
        "codec.convert({'inner': {'value': 1}}, Outer).inner.value",
        "codec.make(Outer, Outer(Inner(1))).inner.value",
    ],
)
def test_a_type_that_two_threads_meet_first_is_decoded_by_both(first):
    program = TWO_THREADS.format(first=first)
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120, check=False)
    assert (done.returncode, done.stdout) == (0, "[1, 2]\n"), done.stderr
