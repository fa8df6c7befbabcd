"""Time load_slice against plain reads of the same file and against mindspore.load_checkpoint.

In one process, one after the other and over and over: a plain read, load_slice, a plain read, load_checkpoint. A figure
is the median of the ratios to the mean of the plain reads just before and just after. There are two plain reads:
``open(path, "rb").read()``, into new memory as loading needs it, and ``readinto`` of memory that was used before, which
leaves out what the kernel takes to give new memory. Processor time is that of all threads, likewise against the plain
reads: other programs change it less. Cold files are dropped from the cache before
(``POSIX_FADV_DONTNEED``); beside them ``dd iflag=direct``. Peak memory is that over what was used before the call.
"""

from __future__ import annotations

import argparse
import gc
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import mindspore as ms
import numpy as np

from ms_recover import load_slice
from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.formats.image import ckpt_image, default_pieces, safetensors_image
from ms_recover.model.provenance import SAVED
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step

MIB = 1 << 20
TABLE = Path(__file__).with_name("load.md")
Call = Callable[[], Any]


def build(folder: Path, mib: int, form: str) -> Path:
    """Write a slice of about so many MiB with its manifest: layers of 4 x 1 and 4 x 4 thousand, and small norms."""
    listed = []
    for layer in range(mib // 20):
        for name, shape in (("down", (4096, 1024)), ("gate", (1024, 1024)), ("norm", (1024,)), ("bias", (4096,))):
            listed.append(Parameter(f"layers.{layer}.{name}", "Float32", shape, 4 * int(np.prod(shape))))
    path = folder / "rank_0" / f"test-1_8.{form}"
    path.parent.mkdir(exist_ok=True)
    if form == "ckpt":
        image = ckpt_image(listed, [default_pieces(one.nbytes) for one in listed])
    else:
        image = safetensors_image(listed, [("format", "ms")])
    noise = os.urandom(MIB)
    with path.open("wb") as file:
        for at, literal in image.literals:
            os.pwrite(file.fileno(), literal, at)
        for place in (piece for pieces in image.contents for piece in pieces):
            for start in range(0, place.length, MIB):
                os.pwrite(file.fileno(), noise[: min(MIB, place.length - start)], place.start + start)
        os.fsync(file.fileno())
    write_manifest(str(path), replace(make_manifest(str(path), 0, Step(1, 8), 1, (0,), "run"), provenance=SAVED))
    return path


def status(field: str) -> int:
    """Return a size in bytes of this process, such as its most memory so far (``VmHWM``)."""
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(field)) << 10


class Cost(NamedTuple):
    """Of one call: seconds, seconds of processor time, and peak memory in bytes over that before."""

    seconds: float
    processor: float
    peak: int


def timed(call: Call) -> Cost:
    """Return the cost of a call; what it returns goes afterwards."""
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    begin, processor = time.perf_counter(), time.process_time()
    result = call()
    cost = Cost(time.perf_counter() - begin, time.process_time() - processor, status("VmHWM") - before)
    del result
    return cost


def drop(path: Path) -> None:
    """Drop a file from the cache."""
    with path.open("rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def touched(path: Path) -> Any:
    """Load safetensors as MindSpore does, which maps the file, and read a byte of each page."""
    values = ms.load_checkpoint(str(path), format="safetensors")
    for value in values.values():
        value.asnumpy().reshape(-1).view(np.uint8)[::4096].sum()
    return values


class Plain:
    """The two plain reads of a file."""

    def __init__(self, path: Path) -> None:
        self._path, self._memory = path, memoryview(bytearray(path.stat().st_size))

    def new(self) -> bytes:
        return self._path.read_bytes()

    def used(self) -> None:
        with self._path.open("rb", buffering=0) as file:
            at = 0
            while count := file.readinto(self._memory[at:]):
                at += count


def warm(path: Path, calls: dict[str, Call], rounds: int) -> list[str]:
    """Return the lines of the table of a file that is cached."""
    size, plain = path.stat().st_size, Plain(path)
    ratios: dict[str, list[tuple[float, float, float]]] = {name: [] for name in calls}
    seconds: dict[str, list[float]] = {name: [] for name in (*calls, "read", "readinto")}
    peaks = dict.fromkeys(calls, 0)

    def base() -> tuple[Cost, Cost]:
        found = timed(plain.new), timed(plain.used)
        seconds["read"].append(found[0].seconds)
        seconds["readinto"].append(found[1].seconds)
        return found

    for call in calls.values():
        timed(call)
    base()
    before = base()
    for _ in range(rounds):
        for name, call in calls.items():
            took = timed(call)
            after = base()
            new, used = (before[0].seconds + after[0].seconds) / 2, (before[1].seconds + after[1].seconds) / 2
            processor = (before[1].processor + after[1].processor) / 2
            ratios[name].append((took.seconds / new, took.seconds / used, took.processor / processor))
            seconds[name].append(took.seconds)
            peaks[name] = max(peaks[name], took.peak)
            before = after
    lines = [
        f"| plain read, new memory | {statistics.median(seconds['read']):.3f} | 1 | | | |",
        f"| plain read, used memory | {statistics.median(seconds['readinto']):.3f} | | 1 | 1 | |",
    ]
    for name in calls:
        shown = []
        for each in zip(*ratios[name], strict=True):
            shown.append(f"**{statistics.median(each):.2f}** ({min(each):.2f} - {max(each):.2f})")
        lines.append(
            f"| {name} | {statistics.median(seconds[name]):.3f} | {' | '.join(shown)} | {peaks[name] / size:.2f} |"
        )
    return lines


def cold(path: Path, calls: dict[str, Call], rounds: int) -> list[str]:
    """Return the lines of the table of a file that is not cached."""

    def dd() -> None:
        words = ["dd", f"if={path}", "of=/dev/null", "bs=4M", "iflag=direct", "status=none"]
        subprocess.run(words, check=True, timeout=300)

    seconds: dict[str, list[float]] = {name: [] for name in ("dd", *calls)}
    ratios: dict[str, list[float]] = {name: [] for name in calls}
    drop(path)
    before = timed(dd).seconds
    for _ in range(rounds):
        for name, call in calls.items():
            drop(path)
            took = timed(call).seconds
            drop(path)
            after = timed(dd).seconds
            seconds[name].append(took)
            seconds["dd"].append(after)
            ratios[name].append(2 * took / (before + after))
            before = after
    lines = [f"| dd iflag=direct | {statistics.median(seconds['dd']):.2f} | 1 |"]
    for name in calls:
        each = ratios[name]
        shown = f"**{statistics.median(each):.2f}** ({min(each):.2f} - {max(each):.2f})"
        lines.append(f"| {name} | {statistics.median(seconds[name]):.2f} | {shown} |")
    return lines


METHOD = """\
# Loading a slice

`python benchmarks/bench_load.py --write`; {cores} cores, {rounds} rounds, a slice of {mib} MiB with its manifest;
load of the machine beside it, in running processes, at the start: {load}.

load_slice digests every byte and compares each parameter and the file with the manifest; load_checkpoint compares
nothing. A plain read is `open(path, "rb").read()`, into new memory as loading needs it, or `readinto` of memory that
was used before, for which the kernel has no pages to clear. Ratios are to the mean of the plain reads before and after
(lowest and highest in brackets). Processor time is that of all threads; other programs disturb it less. Peak
memory is over that before the call, in sizes of the file. load_checkpoint of safetensors maps the file, and reads
nothing until a parameter is used; the line below it reads a byte of each page. Its parameters change with the file.

Goals: load_slice takes 1.3 of a plain read of the cached file, and 1.1 times the file in memory.
"""


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=1024, help="MiB of the slice; default: 1024")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--cold-rounds", type=int, default=3)
    parser.add_argument("--directory", help="where to work, on the file system to measure; default: temporary files'")
    parser.add_argument("--write", action="store_true", help=f"write {TABLE.name}")
    options = parser.parse_args()
    load = Path("/proc/loadavg").read_text().split()[0]
    text = METHOD.format(load=load, cores=os.cpu_count(), rounds=options.rounds, mib=options.mib)
    for form in ("ckpt", "safetensors"):
        with tempfile.TemporaryDirectory(prefix="bench_load.", dir=options.directory) as name:
            path = build(Path(name), options.mib, form)
            calls: dict[str, Call] = {
                "load_slice": lambda path=path: load_slice(path),
                "load_slice, verify=False": lambda path=path: load_slice(path, verify=False),
                "load_checkpoint": lambda path=path, form=form: ms.load_checkpoint(str(path), format=form),
            }
            if form == "safetensors":
                calls["load_checkpoint, every page read"] = lambda path=path: touched(path)
            text += f"\n## .{form}\n\nCached:\n\n"
            text += (
                "| what | seconds | of a read into new memory | of one into used memory | processor time of that | "
                "peak memory |\n"
            )
            text += "|---|---|---|---|---|---|\n" + "\n".join(warm(path, calls, options.rounds))
            if form == "safetensors":
                del calls["load_checkpoint"]
            text += "\n\nNot cached:\n\n| what | seconds | of dd |\n|---|---|---|\n"
            text += "\n".join(cold(path, calls, options.cold_rounds)) + "\n"
    print(text)
    if options.write:
        TABLE.write_text(text)


if __name__ == "__main__":
    main()
