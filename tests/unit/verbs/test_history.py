"""The verb history: trees of iterations, and what is read."""

from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import MissingInputError
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.verbs.history import history
from tests.support.inventories import tree
from tests.support.iteration_trees import unpack

MANIFESTS_ONLY = ScanOptions(headers=False)


def sealed(tmp_path):
    """Return the inventory of a MindFormers tree with manifests."""
    root = unpack("dp2_mp4", tmp_path / "tree")
    api.seal(api.scan(root))
    return api.scan(root, MANIFESTS_ONLY)


def changed(inventory, rank, number, name):
    """Return the inventory of the same tree in which a rank saved other values of a parameter in an iteration."""

    def change(file):
        names = [one.name for one in file.manifest.parameters]
        if (file.rank, file.step.step) != (rank, number) or name not in names:
            return file
        digests = list(file.manifest.digests.parameters)
        digests[names.index(name)] = f"xxh3_128:{7:032x}"
        stated = replace(file.manifest.digests, file=f"xxh3_128:{8:032x}", parameters=tuple(digests))
        return replace(file, manifest=replace(file.manifest, digests=stated))

    return replace(inventory, slices=tuple(map(change, inventory.slices)))


def shared_parameter(inventory):
    """Return a parameter that two ranks hold, and the two."""
    holders = {}
    for file in inventory.slices:
        if file.step.step == 200:
            for parameter, digest in zip(file.parameters, file.manifest.digests.parameters, strict=True):
                holders.setdefault((parameter.name, digest), []).append(file.rank)
    return next((name, ranks) for (name, _), ranks in sorted(holders.items()) if len(ranks) == 2)


def test_iterations_have_a_history(tmp_path):
    inventory = sealed(tmp_path)
    found = history(inventory)
    assert [one.step for one in found.steps] == [Step.iteration(100), Step.iteration(200)]
    assert found.clean == Step.iteration(200)
    assert [(one.first, one.last) for one in found.runs] == [(Step.iteration(100), Step.iteration(200))]


def test_a_rank_that_differs_in_an_iteration_is_named_with_the_file(tmp_path):
    inventory = sealed(tmp_path)
    name, ranks = shared_parameter(inventory)
    found = history(changed(inventory, ranks[1], 200, name))
    (one,) = found.disagreements
    assert (one.parameter, one.first, one.agreed_until) == (name, Step.iteration(200), Step.iteration(100))
    assert one.ranks == tuple(ranks)
    assert one.kind in ("model", "opt")
    assert found.clean == Step.iteration(100)
    assert found.steps[-1].state == "disagreed"
    full = api.scan(tmp_path / "tree")
    assert api.plan(changed(full, ranks[1], 200, name), PlanOptions(clean=True, quick=True)).step == Step.iteration(100)


@pytest.mark.parametrize("read", [False, True])
def test_slices_are_read_where_that_is_asked_for_alone(tmp_path, read):
    inventory, seen = sealed(tmp_path), []
    found = history(inventory, progress=seen.append, **({"read": True} if read else {}))
    assert (found.read, found.read_bytes > 0) == (read, read)
    assert sum(seen) == found.read_bytes


def test_of_a_tree_that_is_named_no_slice_is_opened(tmp_path):
    expected = history(sealed(tmp_path))
    for path in (tmp_path / "tree").rglob("*.safetensors"):
        path.chmod(0o600)
        path.write_bytes(b"\0" * path.stat().st_size)
    assert history(tmp_path / "tree") == expected


@pytest.mark.parametrize("empty", [Inventory(root="/tree"), tree([], {0: [0, 1], 1: [0, 1]})], ids=["all", "slices"])
def test_a_tree_without_slices_and_manifests_has_no_history(empty):
    with pytest.raises(MissingInputError, match="no slice and no manifest"):
        history(empty)
