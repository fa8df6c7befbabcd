"""The tree of another node, with requests answered in this process."""

import os
import shutil

import pytest

from ms_recover.engine.node_store import NodeStore
from ms_recover.engine.requests import MOST_BYTES, answer
from ms_recover.engine.roots import look_at
from ms_recover.engine.workers import Node
from ms_recover.errors import StorageError, VerificationError
from ms_recover.stores.store import never
from ms_recover.testing.store_suite import StoreSuite


def node_of(tree, label="n2"):
    return Node(label=label, root="/data", workers=(), identities=frozenset({look_at(str(tree), {}).identity}))


class TestNodeStore(StoreSuite):
    @pytest.fixture
    def store(self, tree):
        return NodeStore(node_of(tree), lambda node, request, stop: answer(request, {"/data": str(tree)}))


@pytest.fixture
def tree(tmp_path):
    (tmp_path / "tree").mkdir()
    (tmp_path / "tree" / "large").write_bytes(os.urandom(MOST_BYTES + 12345))
    (tmp_path / "outside").write_bytes(b"secret")
    return tmp_path / "tree"


def test_ranges_longer_than_one_reply_are_put_together(tree):
    asked = []

    def ask(node, request, stop):
        asked.append(request)
        return answer(request, {"/data": str(tree)})

    with NodeStore(node_of(tree), ask).open("large") as file:
        data = bytearray()
        file.read_range(10, file.size, data.extend, never)
        assert bytes(data) == (tree / "large").read_bytes()[10:]
        assert len(asked) == 3
        assert file.name == "node://n2/data/large"


def test_a_tree_that_is_another_by_now_is_not_read(tree, tmp_path):
    node, other = node_of(tree), tmp_path / "other"
    shutil.copytree(tree, other)
    store = NodeStore(node, lambda node, request, stop: answer(request, {"/data": str(other)}))
    with pytest.raises(VerificationError, match=r"n2: .* is another tree"):
        store.stat("large")


def test_links_out_of_the_tree_are_not_followed(tree):
    (tree / "link").symlink_to("../outside")
    (tree / "folder").symlink_to("..")
    store = NodeStore(node_of(tree), lambda node, request, stop: answer(request, {"/data": str(tree)}))
    for path in ("link", "folder/outside"):
        with pytest.raises(VerificationError, match="leads out of the tree"):
            store.open(path)
    with pytest.raises(VerificationError, match="leads out of the tree"):
        store.list("folder")


def test_a_file_that_is_replaced_while_it_is_read_fails(tree):
    store = NodeStore(node_of(tree), lambda node, request, stop: answer(request, {"/data": str(tree)}))
    with store.open("large") as file:
        status = (tree / "large").stat()
        (tree / "new").write_bytes((tree / "large").read_bytes())
        os.utime(tree / "new", ns=(status.st_atime_ns, status.st_mtime_ns))
        os.replace(tree / "new", tree / "large")
        with pytest.raises(VerificationError, match="not what the plan saw"):
            file.read_at(0, 10)


def test_errors_name_the_node(tree):
    def ask(node, request, stop):
        raise StorageError("no worker of the node answers")

    with pytest.raises(StorageError, match="n2: no worker"):
        NodeStore(node_of(tree), ask).open("large")
