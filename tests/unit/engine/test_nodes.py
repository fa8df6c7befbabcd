"""Nodes, by their URLs and by what workers report."""

import pytest

from ms_recover.engine.nodes import NodeTree, find_nodes, find_shared, is_node_url, returned
from ms_recover.engine.workers import RootIdentity, RootReport, WorkerReport
from ms_recover.errors import InputError, MissingInputError, UsageError

ALL = NodeTree.parse("node://*/data")


def worker(name, *, host="", inode=None, machine="", listing=None, problem=None, path="/data", root_problem=None):
    identity = None if inode is None else RootIdentity(machine or host or name, 1, inode)
    wrong = root_problem or (None if inode is not None else f"{path} does not exist")
    root = RootReport(
        root="/data",
        path=path,
        identity=identity,
        listing=listing or f"{machine or host or name}:{inode}",
        missing=identity is None and root_problem is None,
        problem=wrong,
        free_bytes=5,
    )
    return WorkerReport(
        address=f"tcp://10.0.0.1:{name}", name=name, host=host or name, root=None if problem else root, problem=problem
    )


def labels(nodes):
    return [(node.label, [one.name for one in node.workers]) for node in nodes]


def test_each_host_with_a_tree_of_its_own_is_a_node():
    nodes = find_nodes([worker("b", inode=7), worker("a", inode=7)], ALL)
    assert labels(nodes) == [("a", ["a"]), ("b", ["b"])]
    assert nodes[0].identities == {RootIdentity("a", 1, 7)}


def test_workers_of_one_host_that_see_one_directory_are_one_node():
    nodes = find_nodes([worker("w1", host="h", inode=7), worker("w2", host="h", inode=7)], ALL)
    assert labels(nodes) == [("h", ["w1", "w2"])]


def test_workers_of_one_host_that_see_different_directories_are_two_nodes_by_the_names_of_workers():
    nodes = find_nodes([worker("w1", host="h", inode=7), worker("w2", host="h", inode=8)], ALL)
    assert labels(nodes) == [("w1", ["w1"]), ("w2", ["w2"])]


def test_hosts_that_share_a_file_system_are_one_node():
    shared = [worker(name, inode=7, listing="same") for name in ("a", "b")]
    assert labels(find_nodes(shared, ALL)) == [("a", ["a", "b"])]
    alike = [worker("a", inode=7, listing="same"), worker("b", inode=8, listing="same")]
    assert len(find_nodes(alike, ALL)) == 2


def test_a_host_without_the_root_is_a_node_that_is_gone():
    nodes = find_nodes([worker("a", inode=7), worker("b")], ALL)
    assert [(node.label, node.gone) for node in nodes] == [("a", False), ("b", True)]
    several = [worker("a", inode=7), worker("b", host="h"), worker("c", host="h")]
    assert labels(find_nodes(several, ALL)) == [("a", ["a"]), ("h", ["b", "c"])]


def test_nobody_has_the_root_or_there_is_nobody():
    with pytest.raises(MissingInputError, match="does not exist on any of 1 workers"):
        find_nodes([worker("a")], ALL)
    with pytest.raises(MissingInputError, match="the workers are: none"):
        find_nodes([], ALL)
    with pytest.raises(MissingInputError, match="no worker of c is there; the workers are: a"):
        find_nodes([worker("a", inode=7)], NodeTree.parse("node://{a,c}/data"))


def test_a_worker_that_takes_no_part_is_an_error_unless_other_nodes_are_named():
    reports = [worker("a", inode=7), worker("b", problem="has no ms_recover")]
    with pytest.raises(InputError, match="worker b: has no ms_recover; nothing is known about its tree"):
        find_nodes(reports, ALL)
    assert labels(find_nodes(reports, NodeTree.parse("node://a/data"))) == [("a", ["a"])]
    with pytest.raises(InputError, match="cannot be read"):
        find_nodes([worker("a", inode=7), worker("b", root_problem="cannot be read")], ALL)


def test_a_path_without_hosts_is_one_tree():
    shared = [worker(name, inode=7, listing="same") for name in ("a", "b")]
    here = RootReport(root="/data", path="/data", identity=RootIdentity("client", 3, 7), listing="same")
    assert labels([find_shared([*shared, worker("head")], "/data", here)]) == [("a", ["a", "b"])]
    assert find_shared(shared, "/data", None).label == "a"
    with pytest.raises(UsageError, match=r"another tree on each of a, b: name the trees of the nodes: node://\*/data"):
        find_shared([worker("a", inode=7), worker("b", inode=7)], "/data", None)
    other = RootReport(root="/data", path="/data", identity=RootIdentity("client", 3, 9), listing="other")
    with pytest.raises(UsageError, match="on this host"):
        find_shared(shared, "/data", other)


def test_a_worker_comes_back_to_its_tree_and_to_no_other():
    node, gone = find_nodes([worker("a", inode=7), worker("b")], ALL)
    assert returned(node, worker("a2", machine="a", inode=7)).name == "a2"
    assert returned(node, worker("a", inode=8)) is None
    assert returned(node, worker("a")) is None
    assert returned(node, worker("a", problem="old")) is None
    assert returned(gone, worker("b")).name == "b"
    assert returned(gone, worker("c")) is None


@pytest.mark.parametrize(
    ("text", "hosts", "root", "shown"),
    [
        ("node://*/data/ckpt", ("*",), "/data/ckpt", "node://*/data/ckpt"),
        ("node://node3/data//ckpt/", ("node3",), "/data/ckpt", "node://node3/data/ckpt"),
        ("node://{a, b,a}/d", ("a", "b"), "/d", "node://{a,b}/d"),
        ("node://10.0.0.2:4000/d", ("10.0.0.2:4000",), "/d", "node://10.0.0.2:4000/d"),
        ("node://n[1-3]/d", ("n[1-3]",), "/d", "node://n[1-3]/d"),
    ],
)
def test_a_url_names_hosts_and_a_path(text, hosts, root, shown):
    tree = NodeTree.parse(text)
    assert (tree.hosts, tree.root, str(tree)) == (hosts, root, shown)
    assert NodeTree.parse(shown) == tree


@pytest.mark.parametrize(
    "text", ["node://", "node://a", "node://a/", "node:///data", "node://{a,}/d", "node://a/../b", "node://a/./b", "/x"]
)
def test_anything_else_is_refused_with_an_example(text):
    with pytest.raises(UsageError, match=r"node://\*/data/ckpt"):
        NodeTree.parse(text)


def test_hosts_are_names_or_patterns():
    some = NodeTree.parse("node://{node1,gpu-*}/d")
    assert some.takes({"node1", "tcp://x"})
    assert some.takes({"gpu-7"})
    assert not some.takes({"node10"})
    assert some.missing({"node1"}) == ("gpu-*",)
    assert not some.takes_all
    assert NodeTree.parse("node://*/d").takes_all
    assert is_node_url("node://x/y")
    assert not is_node_url("/node://x")
