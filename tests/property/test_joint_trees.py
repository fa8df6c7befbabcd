"""Several inventories are one tree: one whose ranks are dealt out to nodes is planned as on one disk."""

import json
import re
import shutil
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.errors import MsRecoverError
from ms_recover.formats.plan_json import plan_to_json
from ms_recover.joint.union import HERE, unite
from ms_recover.model.contents import Contents
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import ScanOptions
from ms_recover.scanning.read import read_contents
from tests.support.examples import examples
from tests.support.recorded_answers import KINDS

LEFT_OUT = ("root", "notes", "replaces", "obstacles")
"""What follows from the place of a tree, or of what lies on one node."""
MAY_BE_EMPTY = ScanOptions(may_be_empty=True)


def deal(whole: Path, folder: Path, chance: Random) -> list[Path]:
    """Copy what names a rank to one of some nodes, and the rest to all of them."""
    nodes = [folder / f"node{number}" for number in range(chance.choice((2, 3)))]
    homes = [chance.randrange(len(nodes)) for _ in range(64)]
    for path in sorted(one for one in whole.rglob("*") if one.is_file()):
        name = path.relative_to(whole)
        rank = re.search(r"(?:rank_|ckpt_dir|-)(\d+)(?:/|-\d+\.safetensors)", str(name))
        for number, node in enumerate(nodes):
            if rank is None or homes[int(rank[1])] == number:
                (node / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(path, node / name)
    for node in nodes:
        node.mkdir(exist_ok=True)
    return nodes


def said(inventory, options, names, read=None):
    """What a plan says, or the class of its error, without the names of trees and nodes."""
    try:
        text = json.dumps(plan_to_json(api.plan(inventory, options, read=read)))
    except MsRecoverError as error:
        return type(error).__name__
    for name in names:
        text = text.replace(f" at {name}", "").replace(str(name), "ROOT")
    return json.loads(text, object_hook=lambda one: {key: value for key, value in one.items() if key not in LEFT_OUT})


def as_read_from(union, nodes):
    """A reader of the slices of a union, each where it lies."""

    def read(files):
        contents = Contents()
        for number, node in nodes.items():
            theirs = [file for file in files if union.holder(file.path) == number]
            contents = contents.merged(read_contents(str(node), theirs)) if theirs else contents
        return contents

    return read


def answers(kind, seed):
    """What is said of a tree, of the nodes that its ranks are dealt out to, and of these seen from the first."""
    with TemporaryDirectory() as name:
        folder, chance = Path(name), Random(f"{kind} {seed}")
        options = KINDS[kind](seed, folder / "tree", chance)
        (whole,) = (one for one in folder.iterdir() if one.is_dir())
        nodes = deal(whole, folder, chance)
        found = [api.scan(node, MAY_BE_EMPTY) for node in nodes]
        spread = unite(Inventory(root="spread"), found, spread=True)
        peers = unite(found[0], found[1:])
        return (
            said(api.scan(whole, MAY_BE_EMPTY), options, [whole]),
            said(spread.inventory, options, ["spread", *nodes], as_read_from(spread, dict(enumerate(nodes)))),
            said(peers.inventory, options, nodes, as_read_from(peers, dict(enumerate(nodes, HERE)))),
        )


@pytest.mark.parametrize("kind", ["law", "hosts", "runs", "experiments", "iterations"])
def test_a_tree_on_several_nodes_is_planned_as_one(kind):
    @settings(max_examples=examples(16), phases=(Phase.explicit, Phase.reuse, Phase.generate))  # no seed is simpler
    @given(seed=st.integers(0, (1 << 32) - 1))
    def holds(seed):
        one, spread, peers = answers(kind, seed)
        assert spread == one
        assert peers == one

    holds()
