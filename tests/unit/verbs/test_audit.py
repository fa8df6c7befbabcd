"""The verb audit where it reads more than a plan of the tree does."""

from pathlib import Path

import pytest

from ms_recover import api
from ms_recover.errors import StorageError
from ms_recover.model.topology import Topology
from ms_recover.scanning.read import read_contents
from ms_recover.verbs.session import Session
from tests.support.audit_law import hosts_of, scene_of
from tests.support.law_files import make

SEED = 1116
"""A tree whose audit reads slices of an older step."""


def test_a_tree_that_cannot_be_read_any_more_ends_the_audit(tmp_path: Path) -> None:
    """It is no answer to the question whether a loss is fatal."""
    scene = scene_of(SEED)
    make(scene, tmp_path / "tree")
    inventory = api.scan(tmp_path / "tree")
    session = Session(inventory, scene.options)
    assert session.planned.plan.recoverable

    def read(files):
        if not all(map(session.contents.knows, files)):
            raise StorageError("the disk is gone")
        return read_contents(inventory.root, files)

    topology = Topology(("host",), (hosts_of(SEED, scene.job.size),), "the test")
    with pytest.raises(StorageError, match="the disk is gone"):
        api.audit(inventory, scene.options, topology, read=read)
