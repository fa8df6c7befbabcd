"""What the acceptance tests share."""

import pytest

from tests.support.acceptance import Tree, run_forked


@pytest.fixture
def tmp_path(tmp_path_factory):
    """A folder whose name says nothing: it stands in every output, where words are looked for."""
    return tmp_path_factory.mktemp("at")


@pytest.fixture
def recover_ckpt(tmp_path_factory):
    """Run the command line in a process of its own; quick, because it is forked with everything imported."""
    folder = tmp_path_factory.mktemp("command")

    def run(*arguments, **options):
        return run_forked(folder, *arguments, **options)

    return run


@pytest.fixture
def tree_of(tmp_path):
    """Make a tree below the test's own directory."""

    def make(name="tree", **options):
        return Tree(tmp_path / name, **options)

    return make
