"""The classic trap and the placement that mends it, as trees."""

import shutil

import pytest

from ms_recover import api
from ms_recover.cli.topology import TopologyOptions, find_topology
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.formats.topology.placing import share_hosts
from ms_recover.model.axes import Axes
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.planning.audit.placement import propose_placement
from ms_recover.testing.trees import PARAMETERS, SLICE_MODE, save_manifests, slice_bytes
from ms_recover.verbs.audit import audit_claims

STEP = Step(1, 8)
GROUPS = [[8 * stage + part, 8 * stage + part + 4] for stage in range(2) for part in range(4)]
"""2 pipeline stages, in each dp 2 and tp 4: 8 cards a host, so both replicas of a slice are on one."""


def save(root, hosts):
    for number, group in enumerate(GROUPS):
        for rank in group:
            folder = root / f"ckpt_dir{rank}"
            folder.mkdir(parents=True)
            write_group_info(folder / "group_info.pb", group)
            path = folder / f"test-{STEP}.ckpt"
            path.write_bytes(slice_bytes(PARAMETERS, number))
            path.chmod(SLICE_MODE)
    save_manifests(root, hosts=hosts)
    return root


def recoverable_without(root, topology, host, scratch):
    """Delete what lies on a host, and plan."""
    left = shutil.copytree(root, scratch)
    for rank, home in enumerate(topology.hosts):
        if home == host:
            shutil.rmtree(left / f"ckpt_dir{rank}")
    return api.plan(api.scan(str(left))).recoverable


@pytest.fixture
def trap(tmp_path):
    return save(tmp_path / "trap", ["node1"] * 8 + ["node2"] * 8)


def test_the_trap_is_fatal_and_the_proposed_placement_survives(trap, tmp_path):
    before = find_topology(api.scan(str(trap)), TopologyOptions())
    assert before.hosts == ("node1",) * 8 + ("node2",) * 8
    assert not recoverable_without(trap, before, "node1", tmp_path / "1")
    found = propose_placement([frozenset(group) for group in GROUPS], before)
    mended = save(tmp_path / "mended", found.topology.hosts)
    after = find_topology(api.scan(str(mended)), TopologyOptions())
    assert after.hosts == found.topology.hosts
    assert all(len({after.hosts[rank] for rank in range(first, first + 4)}) == 1 for first in range(0, 16, 4))
    for host in ("node1", "node2"):
        assert recoverable_without(mended, after, host, tmp_path / f"mended-{host}")


@pytest.mark.parametrize(
    ("order", "neighbour"), [(("tp", "cp", "ep", "dp", "pp"), 1), (("dp", "tp", "cp", "ep", "pp"), 2)]
)
def test_tensor_parallel_ranks_stay_on_one_host(order, neighbour):
    """Whatever the order of axes; before the first checkpoint."""
    options = PlanOptions(axes=Axes.parse("dp=2,tp=4,pp=2"), order=order, world_size=16)
    before = share_hosts(8, 16, "--ranks-per-host")
    made = audit_claims(Inventory(""), options, before)
    (found,) = [one for one in made.findings if one.kind == "placement"]
    after = found.topology.hosts
    groups = [
        [first + neighbour * at for at in range(4)] for first in ((0, 4, 8, 12) if neighbour == 1 else (0, 1, 8, 9))
    ]
    assert after != before.hosts
    assert all(len({after[rank] for rank in group}) == 1 for group in groups)
    assert audit_claims(Inventory(""), options, found.topology).survived == 1
