"""Whatever another node sends: a plan that ends with 0 is applied with 0, and nothing is written out of the root."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.cli.tree import plan_code
from ms_recover.errors import MsRecoverError, UsageError
from ms_recover.model.options import DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.scanning.sent_inventory import decode_inventory
from ms_recover.serving.tree import ServedTree
from ms_recover.stores.local_store import LocalStore
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.verbs.several_trees import SeveralTrees
from tests.support.damage import STRUCK, struck_layout_bytes
from tests.support.examples import examples
from tests.support.iteration_trees import unpack
from tests.support.mindformers_tree import make_mindformers_tree

FIXTURES = Path(__file__).parents[1] / "data" / "fixtures"
NASTY = (
    "/etc/x.ckpt",
    "../../escape/x.ckpt",
    "..",
    ".",
    "",
    "/",
    "a//b",
    "a/./b",
    "a\0b",
    "\ud800",
    "\udc80",
    "n" * 300,
    "d/" * 3000 + "x",
    "ckpt_dir1/../../x",
    ".ms_recover.journal",
    "group_info.pb",
    "strategy.ckpt",
    "latest_checkpointed_iteration.txt",
    "ckpt_dir9/group_info.pb",
    "rank_9/strategy.ckpt",
    "iteration_00000007",
    "\u202e\x1b[2J",
    "%2e%2e/x",
    "C:\\x",
)
NUMBERS = (-1, 0, 1, 7, 1 << 20, 1 << 31, 1 << 62, (1 << 63) - 1, 1 << 63, -(1 << 63), 1 << 200)


def places(data: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the place of every text and number but those of parameters, contents and digests."""
    if isinstance(data, dict):
        for key, value in data.items():
            if key not in ("parameters", "strategies", "texts", "manifest", "digest"):
                yield from places(value, (*path, key))
    elif isinstance(data, list):
        for index, value in enumerate(data):
            yield from places(value, (*path, index))
    elif data is None or isinstance(data, str | int):
        yield path


def change(data: Any, path: tuple[Any, ...], chance: Random) -> None:
    """Put something else in a place: a nasty text or number, what stands elsewhere, or a mixture."""
    for key in path[:-1]:
        data = data[key]
    old = data[path[-1]]
    if isinstance(old, bool) or old is None:
        data[path[-1]] = chance.choice([None, True, False, 0, "x", *NASTY])
    elif isinstance(old, int):
        data[path[-1]] = chance.choice([*NUMBERS, old + 1, max(old - 1, 0)])
    else:
        nasty = chance.choice(NASTY)
        data[path[-1]] = chance.choice(
            [nasty, f"{nasty}/{old}", f"{old}{nasty}", f"{old}/{nasty}", old.replace("0", "1")]
        )


def node(top: Path, kind: str) -> Path:
    """Make the tree of another node."""
    if kind == "iterations":
        return unpack("dp2_mp2_pp2", top, 200)
    if kind == "records":
        return make_mindformers_tree(FIXTURES / "dp2_mp4", top)
    make_tree(top, parameters=STRUCK)
    for path in top.glob("*/group_info.pb"):
        path.with_name("strategy.ckpt").write_bytes(struck_layout_bytes(2, 2))
    if kind == "manifests":
        save_manifests(top)
    return top


def outside(top: Path, root: Path) -> dict[str, bytes | None]:
    return {
        str(path): path.read_bytes() if path.is_file() else None
        for path in sorted(top.rglob("*"))
        if root not in (path, *path.parents)
    }


@settings(max_examples=examples(40))
@given(
    st.sampled_from(["manifests", "no manifests", "records", "iterations"]),
    st.integers(0, 3),
    st.booleans(),
    st.booleans(),
    st.randoms(use_true_random=False),
)
def test_an_inventory_that_lies_writes_nowhere_else_and_a_plan_over_it_keeps_its_promise(
    kind: str, changes: int, named: bool, quick: bool, chance: Random
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        top = Path(folder) / "a" / "b" / "c"
        there, root = node(top / "there", kind), top / "here"
        sent = json.loads(ServedTree(there, DEFAULT_SCAN).encoded(lambda: False))
        every = list(places(sent["inventory"]))
        for _ in range(changes):
            change(sent["inventory"], chance.choice(every), chance)
        if kind != "iterations" and chance.random() < 0.5:
            shutil.copytree(there, root, ignore=lambda where, names: {n for n in names if n[-1] in "01"})
        root.mkdir(exist_ok=True)
        before = outside(Path(folder), root)
        try:
            trees = SeveralTrees([])
            trees.stores, trees.inventories = [LocalStore(there)], [decode_inventory(json.dumps(sent).encode(), "node")]
            local = api.scan(root, ScanOptions(may_be_empty=True))
            ranks = frozenset(range(8 if kind in ("records", "iterations") else 4)) if named else None
            planned = trees.plan(local, PlanOptions(ranks=ranks, quick=quick))
        except MsRecoverError as error:
            event(f"refused: {type(error).__name__}")
            if changes or isinstance(error, UsageError):  # which is that of an empty root without --ranks
                return
            raise
        code = plan_code(planned.plan)
        event(f"planned: {code}")
        if planned.plan.recoverable and code == 0:
            outcome = api.apply(planned.plan, sources=planned.sources)
            faults = [*(one.error for one in outcome.results if one.error), *outcome.errors]
            # a node may still lie about files that it has not, or that are others
            assert outcome.exit_code == 0 or all(str(there) in str(fault) for fault in faults), faults
        elif planned.plan.recoverable:
            with suppress(MsRecoverError):
                assert api.apply(planned.plan, sources=planned.sources).exit_code != 0
        assert outside(Path(folder), root) == before
        if not changes:
            assert code == 0
