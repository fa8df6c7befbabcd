"""Trees on nodes, by their URLs."""

import pytest

from ms_recover.engine.node_urls import NodeTree, is_node_url
from ms_recover.errors import UsageError


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
