"""Plans over this tree and others."""

import shutil
import threading
from http.server import BaseHTTPRequestHandler, HTTPServer

import pytest

from ms_recover import api
from ms_recover.errors import AnswerError, FormatError, OlderStepError, SlowSourceError
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree
from ms_recover.verbs.several_trees import SeveralTrees
from tests.support.distant import DistantStore


@pytest.mark.parametrize(("left_out", "recovered"), [(False, [3]), (True, [])])
def test_a_rank_without_files_is_recovered_here_unless_it_may_live_on_a_node_that_is_left_out(
    tmp_path, left_out, recovered
):
    here, there = make_tree(tmp_path / "here"), make_tree(tmp_path / "there")
    for tree, ranks in ((here, (0, 2, 3)), (there, (1, 3))):
        for rank in ranks:
            shutil.rmtree(tree / f"ckpt_dir{rank}")
    with SeveralTrees([f"file://{there}"]) as trees:
        if left_out:
            trees.left_out.append(FormatError("another node sent no inventory"))
        plan = trees.plan(api.scan(here)).plan
    assert [action.rank for action in plan.actions] == recovered
    assert any("it is left out" in text for text in plan.warnings) == left_out


@pytest.mark.parametrize("beside", [False, True])
def test_a_source_that_is_too_slow_is_passed_over_where_there_are_others(tmp_path, beside):
    """Ranks 0 and 2 are here, and 1 and 3, which hold the same, at one source each."""
    folders = [make_tree(tmp_path / name) for name in ("here", "slow", "other")]
    for tree, ranks in zip(folders, ((0, 2), (1,), (3,)), strict=True):
        for rank in {0, 1, 2, 3}.difference(ranks):
            shutil.rmtree(tree / f"ckpt_dir{rank}")
    here, *sources = folders
    with SeveralTrees([f"file://{tree}" for tree in (sources if beside else sources[:1])]) as trees:
        error = SlowSourceError("it comes too slowly")
        trees.stores[0] = DistantStore(sources[0], fails={"ckpt_dir1/test-1_8.ckpt": error})
        options = PlanOptions(ranks=frozenset(range(4)))
        if not beside:
            with pytest.raises(SlowSourceError):
                trees.plan(api.scan(here), options)
            return
        joint = trees.plan(api.scan(here), options)
    taken = {action.rank: [replica.path for replica in action.replicas] for action in joint.plan.actions}
    assert taken == {rank: ["ckpt_dir3/test-1_8.ckpt"] for rank in (1, 3)}
    assert "it comes too slowly" in joint.plan.ranks[1].reason
    assert joint.sources["ckpt_dir3/test-1_8.ckpt"] is trees.stores[1]


def test_a_plan_with_other_nodes_is_refused_where_it_goes_back_and_the_newest_step_is_required(tmp_path):
    steps = (Step(1, 8), Step(2, 8))
    here, there = make_tree(tmp_path / "here", steps=steps), make_tree(tmp_path / "there", steps=steps)
    for tree in (here, there):
        for rank in (1, 3):
            (tree / f"ckpt_dir{rank}" / "test-2_8.ckpt").unlink()
    with SeveralTrees([f"file://{there}"]) as trees:
        assert trees.plan(api.scan(here)).plan.step == Step(1, 8)
        with pytest.raises(OlderStepError):
            trees.plan(api.scan(here), PlanOptions(require_newest=True))


def test_a_plan_says_that_nothing_is_recoverable_also_where_a_node_is_left_out(tmp_path):
    here, there = make_tree(tmp_path / "here"), make_tree(tmp_path / "there")
    for tree, left in ((here, 0), (there, 2)):
        for rank in {0, 1, 2, 3} - {left}:
            shutil.rmtree(tree / f"ckpt_dir{rank}")
    with SeveralTrees([f"file://{there}"]) as trees:
        trees.left_out.append(FormatError("another node sent no inventory"))
        plan = trees.plan(api.scan(here), PlanOptions(world_size=4)).plan
    assert (plan.step, [rank.rank for rank in plan.ranks if rank.verdict == "unrecoverable"]) == (None, [1, 3])


class Nonsense(BaseHTTPRequestHandler):
    """Answers like recover-ckpt serve, and with what is no inventory."""

    def do_GET(self):
        self.send_response(200)
        self.send_header("X-Ms-Recover", "1")
        self.send_header("Content-Length", "1")
        self.end_headers()
        self.wfile.write(b"{")

    def log_message(self, *_):
        pass


def test_a_source_without_an_inventory_is_left_out_where_there_are_others(tmp_path):
    with HTTPServer(("127.0.0.1", 0), Nonsense) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            source = f"127.0.0.1:{server.server_port}"
            with pytest.raises((FormatError, AnswerError)), SeveralTrees([source]):
                pass
            with SeveralTrees([source, f"file://{make_tree(tmp_path / 'whole')}"]) as trees:
                assert ([len(found.slices) for found in trees.inventories], len(trees.left_out)) == ([4], 1)
        finally:
            server.shutdown()
            thread.join()
