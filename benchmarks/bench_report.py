"""Size of the report page, seconds to make it, and its first paint in Chromium, for worlds of many ranks.

The inventory is made in memory, so that no disk is measured: slices with a few parameters, of several steps, ranks r
and r + half the world in a group. First paint is that of the browser's own performance API, from the start of loading
a file on this disk.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from statistics import median

from ms_recover.model.options import PlanOptions
from ms_recover.model.report import Report
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.reporting.page.report import report_html
from ms_recover.verbs.report import describe

sys.path.insert(0, str(Path(__file__).parents[1]))  # for tests.support
from tests.support.browser import Browser, open_browser
from tests.support.inventories import pairs, slice_file, tree

RANKS_PER_HOST = 8
_WHEN = """
const done = arguments[0];
const seen = new PerformanceObserver((list) => {
  const [first] = list.getEntriesByName("first-contentful-paint");
  if (first) done([first.startTime, performance.getEntriesByType("navigation")[0].domContentLoadedEventEnd]);
});
seen.observe({ type: "paint", buffered: true });
"""
"""Returns the milliseconds to the first paint and to the end of the page's script."""


def describe_world(ranks: int, steps: int, lost: frozenset[int]) -> Report:
    """Plan and judge a world of which some ranks are lost."""
    names = [Step(1, number) for number in range(1, steps + 1)]
    slices = [slice_file(rank, step) for rank in range(ranks) for step in names]
    hosts = tuple(f"node-{rank // RANKS_PER_HOST:04d}.cluster.example" for rank in range(ranks))
    racks = tuple(f"rack-{rank // RANKS_PER_HOST // 16:02d}" for rank in range(ranks))
    topology = Topology(("host", "rack"), (hosts, racks), "a topology file")
    options = PlanOptions(quick=True, lost=lost, world_size=ranks)
    report = describe(tree(slices, pairs(ranks)), options, topology)
    command = "recover-ckpt apply /checkpoints --lost ..." if report.plan.changes_anything else ""
    return replace(report, next_command=command)


def paint(browser: Browser, page: Path, times: int) -> tuple[float, float]:
    """Return the median first paint and end of the script, in seconds."""
    painted, done = [], []
    for _ in range(times):
        browser.open(page)
        first, loaded = browser.driver.execute_async_script(_WHEN)
        painted.append(first / 1000)
        done.append(loaded / 1000)
    return median(painted), median(done)


def main() -> None:
    """Print a table; with --keep write the pages there."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--ranks", type=int, nargs="+", default=[8, 1024, 10240])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--times", type=int, default=5)
    parser.add_argument("--keep", type=Path)
    options = parser.parse_args()
    print("| ranks | steps | lost | plan and judge, s | page, s | size, MB | first paint, s | script done, s |")
    print("|---|---|---|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, open_browser(Path(folder)) as browser:
        for ranks in options.ranks:
            host = range(ranks // 2, ranks // 2 + RANKS_PER_HOST) if ranks > RANKS_PER_HOST else range(3, 4)
            for name, lost in (("one host", host), ("a third", range(0, ranks, 3))):
                began = time.process_time()
                report = describe_world(ranks, options.steps, frozenset(lost))
                planned = time.process_time() - began
                began = time.process_time()
                text = report_html(report, made="2026-01-01 00:00 UTC", version="0")
                written = time.process_time() - began
                page = (options.keep or Path(folder)) / f"report-{ranks}-{name.replace(' ', '-')}.html"
                page.write_text(text)
                first, done = paint(browser, page, options.times)
                size = len(text.encode()) / 1e6
                print(
                    f"| {ranks} | {len(report.steps)} | {name} | {planned:.2f} | {written:.2f} | {size:.2f} "
                    f"| {first:.2f} | {done:.2f} |",
                    flush=True,
                )


if __name__ == "__main__":
    main()
