"""Law: a server that is slow, broken or hostile in any way costs little, and the program ends with the reason.

At most 300 MiB and 10 s of CPU beside the bytes that were asked for; an inventory counts as asked for, and costs at
most twice its length more. No traceback, nothing wrong under a final name, nothing left over.
"""

import os
import signal
import subprocess
import sys
import threading
import time
from random import Random

import pytest

from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.examples import examples
from tests.support.lying_server import LIES, LyingServer
from tests.support.serving import leftovers, serving, split

MEMORY, CPU_S, WALL_S = 300 << 20, 10.0, 100
LIMITS = {"MS_RECOVER_TIMEOUT": "0.5", "MS_RECOVER_MIN_RATE": "20000"}
"""3 s for a rate, 30 s in all."""

PROGRAM = """
import atexit, os, sys

def note():
    with open("/proc/self/status") as status, open(os.environ["PEAK"], "w") as peak:
        peak.write(next(line.split()[1] for line in status if line.startswith("VmHWM:")))

atexit.register(note)
from ms_recover.cli.entry import main
sys.exit(main())
"""
"""Notes the most memory that this process had, in KiB: what getrusage says of a child may be its parent's."""
BEGIN_S = 3.0
"""CPU of the start, and of the work on the bytes that were asked for, on a slow machine."""


class Scene:
    """A tree behind a server, and commands that read it."""

    def __init__(self, folder, slices, port):
        self.folder, self.slices, self.port = folder, slices, port
        self.count = 0

    def command(self, drawn, server, kind):
        """Return a command, of a kind or any, and the folder that it writes to."""
        self.count += 1
        here = self.folder / f"here{self.count}"
        here.mkdir()
        source = server.address if server.ours and drawn.random() < 0.7 else server.url
        several = {
            "scan": ["scan", server.url],
            "plan": ["plan", server.url, *drawn.choice(([], ["--lost", "1"], ["--quick"]))],
            "verify": ["verify", server.url],
            "copy": ["copy", server.url, here / "copy"],
            "plan from": ["plan", here, "--from", source, "--world-size", "3"],
            "apply from": ["apply", here, "--from", source, "--world-size", "3"],
        }
        return several[kind or drawn.choice(sorted(several))], here


@pytest.fixture(scope="module")
def scene(tmp_path_factory):
    folder = tmp_path_factory.mktemp("scene")
    tree = make_tree(folder / "tree", data_parallel=3, model_parallel=1, steps=[Step(1, 8)], parameters={"w": 30_000})
    save_manifests(tree)
    for manifest in (tree / "ckpt_dir2").glob("*.manifest.json"):
        manifest.unlink()  # this one is compared by its bytes
    slices = {path.read_bytes() for path in tree.rglob("*.ckpt")}
    [behind] = split(tree, folder, behind=(1, 2))
    with serving(behind) as [server]:
        yield Scene(folder, slices, server.port)


def run(command, peak):
    """Run the command line; return its exit code, what it printed, CPU seconds, bytes of memory, and seconds."""
    began = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, *map(str, command)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={**os.environ, **LIMITS, "PEAK": str(peak)},
    )
    timer = threading.Timer(WALL_S, lambda: process.send_signal(signal.SIGABRT))
    timer.start()
    try:
        said = process.stdout.read().decode(errors="replace")
        _, status, used = os.wait4(process.pid, 0)
    finally:
        timer.cancel()
        process.stdout.close()
    process.returncode = os.waitstatus_to_exitcode(status)
    memory = int(peak.read_text()) << 10 if peak.exists() else 0
    return process.returncode, said, used.ru_utime + used.ru_stime, memory, time.monotonic() - began


def check(scene, seed, *, kind=None, **what):
    """Let a server lie to one command; return how often it was asked."""
    drawn = Random(seed)
    what = {"ours": drawn.random() < 0.6, "honest": drawn.choice((0, 0, 1, 2, 3, 5, 8)), **what}
    with LyingServer(scene.port, seed, **what) as server:
        command, here = scene.command(drawn, server, kind)
        code, said, cpu, memory, wall = run(command, here / "peak")
    took = f"{code} after {wall:.1f} s, {cpu:.1f} s of CPU, {memory >> 20} MiB"
    about = f"{seed}, {what}: {' '.join(map(str, command))}\n{server.lies[:40]}\n{took}\n{said[-3000:]}"
    assert code in (0, 1, 3, 4, 5) or (code == 2 and "the world size is given" in said), about
    assert "Traceback" not in said, about
    assert said.strip(), about
    assert cpu < CPU_S + BEGIN_S, about
    assert memory < MEMORY + 3 * server.inventory_bytes, about
    for path in here.rglob("*.ckpt"):
        assert path.read_bytes() in scene.slices, about
    assert command[0] == "copy" or not leftovers(here), about
    return len(server.lies)


@pytest.mark.parametrize("name", sorted(LIES))
def test_each_lie_costs_little_and_is_answered_with_its_reason(scene, name):
    check(scene, f"1 {name}", only=name)


def test_an_inventory_costs_at_most_twice_its_length_more(scene):
    for number in range(min(examples(3), 40)):
        check(scene, f"{number} large", kind="plan from", ours=True, honest=0, only="large_inventory")


def test_a_server_that_lies_at_random_costs_little(scene):
    answers, seed, most = 0, 0, examples(12)
    while answers < most:
        answers += check(scene, seed, share=(0.1, 0.4, 1.0)[seed % 3])
        seed += 1
