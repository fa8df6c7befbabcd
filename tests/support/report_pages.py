"""Report pages, one for each answer that a plan can give.

``python -m tests.support.report_pages DIRECTORY`` writes them, and pictures of each: light, dark, on a phone and as
printed. The pictures of ``docs/report.md`` are those that `SHOWN` names, cut at the height given there:
``python -m tests.support.report_pages docs --shown``.
"""

from __future__ import annotations

import sys
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path

from ms_recover import api
from ms_recover.cli.topology import TopologyOptions, topology_of_tree
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.report import Report
from ms_recover.model.verdicts import Answer
from ms_recover.reporting.page.report import report_html
from ms_recover.verbs.report import describe
from tests.support import page_trees
from tests.support.browser import DESK, PHONE, Browser, open_browser


@dataclass(frozen=True)
class Scene:
    """A tree of `tests.support.page_trees`, and how it is planned."""

    tree: str
    require_newest: bool = False
    denied: frozenset[int] = frozenset()
    """Ranks whose slices this user may not read; the superuser may read all."""


SCENES: dict[Answer, Scene] = {
    "COMPLETE": Scene("whole"),
    "RECOVERABLE": Scene("two_holes"),
    "BLOCKED": Scene("in_the_way"),
    "UNCERTAIN": Scene("world_size_unknown"),
    "UNDECIDED": Scene("replicas_differ"),
    "UNHEALTHY": Scene("unhealthy"),
    "PERMISSION DENIED": Scene("both_nodes_dead", denied=frozenset({0, 2})),
    "UNRECOVERABLE": Scene("no_replica_left"),
    "REFUSED": Scene("newest_lost", require_newest=True),
}
LOOKS = {
    "light": {"size": DESK},
    "dark": {"size": DESK, "dark": True},
    "phone": {"size": PHONE},
    "print": {"size": (800, 1100), "paper": True},
}
SHOWN: dict[tuple[Answer, str], int] = {
    ("RECOVERABLE", "light"): 1000,
    ("UNRECOVERABLE", "dark"): 1000,
    ("UNCERTAIN", "phone"): 1100,
}


def report_of(answer: Answer, root: Path, stack: ExitStack) -> Report:
    """Make the tree of an answer, and describe it."""
    scene = SCENES[answer]
    getattr(page_trees, scene.tree)(root, stack)
    found = deny(api.scan(root), scene.denied)
    options = PlanOptions(require_newest=scene.require_newest)
    places = topology_of_tree(found, TopologyOptions(ranks_per_host=4), options, whole=False)
    report = describe(found, options, places)
    command = f"recover-ckpt apply {root}" if report.plan.changes_anything else ""
    return replace(report, next_command=command)


def deny(inventory: Inventory, ranks: frozenset[int]) -> Inventory:
    """Return an inventory as a user sees it who may not open the slices of some ranks."""
    problem = "cannot be read by this user (uid 1000)"
    slices = tuple(
        replace(file, denied=True, problem=problem) if file.rank in ranks else file for file in inventory.slices
    )
    return replace(inventory, slices=slices)


def page_of(answer: Answer, root: Path, stack: ExitStack) -> str:
    """Return the page of an answer, about a tree that is made for it."""
    report = report_of(answer, root, stack)
    text = report_html(report, made="2026-11-22 03:00:00", version="1", refused=SCENES[answer].require_newest)
    return text.replace(str(root.parent), "")


def write_pictures(browser: Browser, folder: Path, stack: ExitStack, *, shown: bool) -> None:
    """Write the pages and their pictures; with `shown` the pictures of the documentation alone."""
    with tempfile.TemporaryDirectory() as work:
        for answer in SCENES:
            name = answer.lower().replace(" ", "-")
            page = Path(work if shown else folder) / f"report-{name}.html"
            page.write_text(page_of(answer, Path(work) / name / "checkpoints", stack))
            for look, options in LOOKS.items():
                if shown and (answer, look) not in SHOWN:
                    continue
                opened = browser.open(page, **options)
                picture = opened.picture(SHOWN[answer, look] if shown else None)
                (folder / f"report-{name}-{look}.png").write_bytes(picture)


def main(folder: Path, *, shown: bool) -> None:
    """Write the pictures."""
    folder.mkdir(parents=True, exist_ok=True)
    with ExitStack() as stack, tempfile.TemporaryDirectory() as profile, open_browser(Path(profile)) as browser:
        write_pictures(browser, folder, stack, shown=shown)


if __name__ == "__main__":
    main(Path(sys.argv[1]), shown="--shown" in sys.argv)
