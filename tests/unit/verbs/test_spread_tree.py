"""The verbs over the disks of several nodes, with workers that are threads of this process."""

import inspect
import json
import shutil
from dataclasses import replace

import numpy as np
import pytest

from ms_recover import api
from ms_recover.engine import open_engine
from ms_recover.engine.engine import LocalEngine, Task
from ms_recover.engine.nodes import find_shared
from ms_recover.errors import (
    ContradictionError,
    MissingInputError,
    MsRecoverError,
    OlderStepError,
    UnrecoverableError,
    UsageError,
    VerificationError,
)
from ms_recover.formats.manifest import read_manifest
from ms_recover.formats.plan_json import plan_to_json
from ms_recover.formats.record import record
from ms_recover.model.options import PlanOptions, ScanOptions
from ms_recover.model.plan import GivenUpSlice
from ms_recover.model.steps import Step
from ms_recover.testing.trees import make_tree, save_manifests
from ms_recover.verbs import spread_tree
from ms_recover.verbs.spread_tree import SpreadTree
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.iteration_trees import unpack
from tests.support.mishaps import overwrite

NAME = "test-1_8.ckpt"


@pytest.fixture
def whole(tmp_path):
    return make_tree(tmp_path / "whole", data_parallel=4, model_parallel=2, steps=[Step(1, 4), Step(1, 8)])


class Disks:
    """Nodes with two ranks each; the tree of a node is ``/data/ckpt`` to its worker."""

    def __init__(self, folder, whole, nodes=4):
        self.folder, self.names = folder, [f"n{number + 1}" for number in range(nodes)]
        folders = sorted(whole.glob("ckpt_dir*")) or sorted(whole.glob("rank_*"))
        for index, name in enumerate(self.names):
            self[name].mkdir(parents=True)
            for one in folders[index * len(folders) // nodes : (index + 1) * len(folders) // nodes]:
                shutil.copytree(one, self[name] / one.name)

    def __getitem__(self, name):
        return self.folder / name / "ckpt"

    def engine(self):
        return LocalEngine(workers={name: {"/data": str(self.folder / name)} for name in self.names})


@pytest.fixture
def disks(tmp_path, whole):
    return Disks(tmp_path / "disks", whole)


@pytest.fixture
def tree(disks):
    with disks.engine() as engine:
        yield SpreadTree(engine, "node://*/data/ckpt")


def same(data, root):
    """Without free text and notes, and with the same name for the root."""
    left_out = ("reason", "notes", "root")
    text = json.dumps(data).replace(root, "ROOT")
    return json.loads(text, object_hook=lambda one: {k: v for k, v in one.items() if k not in left_out})


def plans(tree, whole):
    made, _ = tree.plan(tree.scan())
    return same(plan_to_json(made), tree.url), same(plan_to_json(api.plan(api.scan(whole))), str(whole))


def test_the_inventory_is_that_of_one_tree(tree, whole):
    found, expected = tree.scan(), api.scan(whole)
    assert [file.path for file in found.slices] == [file.path for file in expected.slices]
    assert found.ranks == expected.ranks
    assert len({id(file.parameters) for file in found.slices}) == 1
    assert len({file.inode for file in found.slices}) == 16
    assert found.root == "node://*/data/ckpt"


def test_verdicts_are_those_of_one_tree(tree, whole, disks):
    for lost in ("ckpt_dir4", "ckpt_dir5"):
        shutil.rmtree(disks["n3"] / lost)
        shutil.rmtree(whole / lost)
    ours, theirs = plans(tree, whole)
    assert ours == theirs
    found = same(record(api.verify(tree.scan(), read=tree.read)), tree.url)
    assert found == same(record(api.verify(api.scan(whole))), str(whole))


def test_manifests_of_slices_that_are_gone_count_as_in_one_tree(tree, whole, disks):
    save_manifests(whole)
    for rank in range(8):
        for path in (whole / f"ckpt_dir{rank}").glob("*.manifest.json"):
            shutil.copy(path, disks[f"n{rank // 2 + 1}"] / f"ckpt_dir{rank}")
    for root in (whole, disks["n2"]):
        (root / "ckpt_dir2" / NAME).unlink()
    assert [one.path for one in tree.scan().orphans] == [f"ckpt_dir2/{NAME}"]
    ours, theirs = plans(tree, whole)
    assert ours == theirs


@pytest.mark.parametrize("gone", ["contents", "root"])
def test_a_node_that_lost_everything_gets_it_back(tree, whole, disks, gone):
    shutil.rmtree(disks["n3"])
    if gone == "contents":
        disks["n3"].mkdir()
    counted = []
    made, explanation = tree.plan(tree.scan(), explain=4)
    assert explanation.rank == 4
    assert "at n3, fetched from n1" in made.ranks[4].reason
    tree.check(made)
    done = tree.apply(made, progress=counted.append)
    assert (done.exit_code, done.errors) == (0, ())
    assert sum(counted) == made.bytes_to_copy
    for rank in range(8):
        folder = disks[f"n{rank // 2 + 1}"] / f"ckpt_dir{rank}"
        assert (folder / NAME).read_bytes() == (whole / f"ckpt_dir{rank}" / NAME).read_bytes()
    assert (disks["n3"] / "ckpt_dir4" / "group_info.pb").exists()
    assert sorted(path.name for path in disks["n3"].iterdir()) == ["ckpt_dir4", "ckpt_dir5"]


def test_a_slice_alone_comes_back_where_nothing_else_of_its_rank_is_lost(tree, whole, disks):
    (disks["n2"] / "ckpt_dir3" / NAME).unlink()
    made, _ = tree.plan(tree.scan())
    done = tree.apply(made)
    assert (done.exit_code, [(one.rank, one.status) for one in done.results]) == (0, [(3, "copied")])
    assert (disks["n2"] / "ckpt_dir3" / NAME).read_bytes() == (whole / "ckpt_dir3" / NAME).read_bytes()


def test_a_rank_list_alone_comes_back(tree, whole, disks):
    lost = disks["n2"] / "ckpt_dir3" / "group_info.pb"
    lost.unlink()
    made, _ = tree.plan(tree.scan())
    assert (made.actions, len(made.group_files)) == ((), 1)
    done = tree.apply(made)
    assert (done.exit_code, done.group_files) == (0, ("ckpt_dir3/group_info.pb",))
    assert api.scan(disks["n2"]).group_files[1].info.sorted_ranks == (1, 3, 5, 7)


def test_slices_are_composed_from_parts_on_other_nodes(tmp_path):
    """Every part of a slice is on two of four ranks, and no other rank holds all of it."""
    source, matrix = np.random.default_rng(7), (2, 2)
    rows = CutTensor("Float32", source.random((8, 6), np.float32), cut_layout("rows", matrix, (1,), ()))
    columns = CutTensor("Float32", source.random((8, 12), np.float32), cut_layout("columns", matrix, (), (0,)))
    step = CutTensor("Int64", np.int64(8))
    parameters = {"rows": rows, "columns": columns, "global_step": step}
    whole = make_cut_tree(tmp_path / "whole", parameters, 4, manifests=True)
    disks = Disks(tmp_path / "disks", whole)
    shutil.rmtree(disks["n1"] / "ckpt_dir0")
    with disks.engine() as engine:
        tree = SpreadTree(engine, "node://*/data/ckpt")
        made, _ = tree.plan(tree.scan())
        assert [type(action).__name__ for action in made.actions] == ["ComposeAction"]
        done = tree.apply(made)
        assert (done.exit_code, done.strategy_files) == (0, ("ckpt_dir0/strategy.ckpt",)), done
    for name in (NAME, "strategy.ckpt"):
        assert (disks["n1"] / "ckpt_dir0" / name).read_bytes() == (whole / "ckpt_dir0" / name).read_bytes()


def test_files_that_options_name_lie_on_this_host(tree, disks, tmp_path):
    for name in disks.names:
        for path in disks[name].rglob("group_info.pb"):
            (tmp_path / f"list_{path.parent.name[8:]}.pb").write_bytes(path.read_bytes())
            path.unlink()
    shutil.rmtree(disks["n3"] / "ckpt_dir4")
    assert not tree.plan(tree.scan())[0].recoverable
    options = ScanOptions(group_info=(str(tmp_path / "list_{rank}.pb"),))
    assert tree.plan(tree.scan(options))[0].recoverable
    with pytest.raises(MissingInputError, match="--group-info"):
        tree.scan(ScanOptions(group_info=("/nowhere/x.pb",)))


def test_iterations_of_mindformers_come_back_with_their_documents(tmp_path):
    there = unpack("dp2_mp2_pp2", tmp_path / "there")
    names = ["n1", "n2", "n3", "n4"]
    for index, name in enumerate(names):
        shutil.copytree(there, tmp_path / name / "ckpt")
        for path in (tmp_path / name / "ckpt").rglob("*.safetensors"):
            if int(path.name.split("-")[-2]) // 2 != index:
                path.unlink()
    whole = {path.relative_to(there): path.read_bytes() for path in there.rglob("*") if path.is_file()}
    shutil.rmtree(tmp_path / "n2" / "ckpt")
    workers = {name: {"/data": str(tmp_path / name)} for name in names}
    with LocalEngine(workers=workers) as engine:
        tree = SpreadTree(engine, "node://*/data/ckpt")
        made, _ = tree.plan(tree.scan())
        step = made.step
        done = tree.apply(made)
        assert (done.exit_code, done.errors) == (0, ()), done
        folder = f"iteration_{step.step:08d}"
        for path, data in whole.items():
            if path.parts[0] == folder and path.suffix in (".safetensors", ".json") and "manifest" not in path.name:
                number = int(path.name.split("-")[-2]) // 2 if path.suffix == ".safetensors" else 1
                assert (tmp_path / names[number] / "ckpt" / path).read_bytes() == data, path
        assert api.verify(tree.scan(), PlanOptions(step=step), read=tree.read).ok


def test_two_nodes_with_one_slice_must_agree(tree, disks, tmp_path):
    shutil.copytree(disks["n1"] / "ckpt_dir0", disks["n4"] / "ckpt_dir0")
    assert api.verify(tree.scan(), read=tree.read).ok
    other = disks["n4"] / "ckpt_dir0" / NAME
    data = bytearray(other.read_bytes())
    data[-20] ^= 1
    other.chmod(0o600)
    other.write_bytes(data)
    inventory = tree.scan()
    for verb in (api.verify, api.seal, api.plan):
        with pytest.raises(ContradictionError, match=f"ckpt_dir0/{NAME} lies on n1 and on n4 with different contents"):
            verb(inventory, read=tree.read)
    shutil.rmtree(disks["n4"] / "ckpt_dir0")
    another = make_tree(tmp_path / "another", steps=[Step(1, 8)], parameters={"w": 99})
    shutil.copytree(another / "ckpt_dir0", disks["n4"] / "ckpt_dir0")
    with pytest.raises(ContradictionError, match="n4"):
        tree.scan()


def test_a_node_that_fails_keeps_no_other_from_its_slices(tree, whole, disks):
    for name, rank in (("n2", 2), ("n3", 4)):
        shutil.rmtree(disks[name] / f"ckpt_dir{rank}")
    made, _ = tree.plan(tree.scan())
    disks["n2"].rename(disks["n2"].parent / "old")
    disks["n2"].mkdir()  # another directory than the one that was seen
    done = tree.apply(made)
    assert done.exit_code == VerificationError.exit_code
    assert [(one.rank, one.status) for one in done.results] == [(2, "failed"), (4, "copied")]
    assert done.results[0].error.startswith("n2: ")
    assert (disks["n3"] / "ckpt_dir4" / NAME).read_bytes() == (whole / "ckpt_dir4" / NAME).read_bytes()


def test_a_plan_that_is_stale_is_refused(tree, disks):
    shutil.rmtree(disks["n2"] / "ckpt_dir2")
    made, _ = tree.plan(tree.scan())
    (disks["n1"] / "ckpt_dir0" / NAME).touch()
    tree.scan()
    with pytest.raises(VerificationError, match="plan again"):
        tree.check(made)
    for action in made.actions:
        for replica in action.replicas:
            (disks[f"n{replica.rank // 2 + 1}"] / replica.path).unlink()
    tree.scan()
    with pytest.raises(MissingInputError, match="is on no node"):
        tree.check(made)


def test_a_plan_that_goes_back_is_refused_where_the_newest_step_is_required(tree, disks):
    for rank in (1, 3, 5, 7):
        (disks[f"n{rank // 2 + 1}"] / f"ckpt_dir{rank}" / NAME).unlink()
    inventory = tree.scan()
    assert tree.plan(inventory)[0].step == Step(1, 4)
    with pytest.raises(OlderStepError):
        tree.plan(inventory, PlanOptions(require_newest=True))


def test_a_tree_without_slices_is_missing(tmp_path):
    (tmp_path / "n1" / "ckpt").mkdir(parents=True)
    with LocalEngine(workers={"n1": {"/data": str(tmp_path / "n1")}}) as engine:
        with pytest.raises(MissingInputError, match="holds no slices"):
            SpreadTree(engine, "node://*/data/ckpt").scan()
        assert SpreadTree(engine, "node://*/data/ckpt").scan(ScanOptions(may_be_empty=True)).ranks == ()


def test_a_path_of_this_host_is_a_tree_of_the_local_engine(whole):
    with open_engine("local") as engine:
        tree = SpreadTree(engine, str(whole))
        assert api.verify(tree.scan(), read=tree.read).ok
        assert tree.url == str(whole)


def test_engines_are_named():
    for name in ("ray://x", "dask", ""):
        with pytest.raises(UsageError, match="dask://HOST:PORT"):
            open_engine(name)


def test_tasks_end_in_their_order_and_an_error_is_that_of_all_or_of_one(whole):
    with LocalEngine(threads=2) as engine:
        node = find_shared(engine.look(str(whole)), str(whole), None)
        assert engine.run([Task(node, pow, (2, power)) for power in range(5)]) == [1, 2, 4, 8, 16]
        tasks = [Task(node, divmod, (1, 0)), Task(node, pow, (2, 2))]
        with pytest.raises(MsRecoverError, match="ZeroDivisionError"):
            engine.run(tasks)
        failed, done = engine.run_each(tasks)
        assert isinstance(failed, MsRecoverError)
        assert done == 4
        assert engine.run([]) == []


def test_slices_are_dealt_out_to_the_workers_of_a_node_by_their_bytes(whole):
    sizes = (50, 10, 10, 10, 10, 10)
    files = [replace(file, size=size) for file, size in zip(api.scan(whole).slices, sizes, strict=False)]
    shares = spread_tree._shares(files, 2)
    assert sorted(sum(file.size for file in share) for share in shares) == [50, 50]
    assert sorted(file.path for share in shares for file in share) == sorted(file.path for file in files)
    assert spread_tree._shares(files[:1], 3) == [files[:1]]


def test_ranks_live_on_the_node_that_has_their_files_or_that_the_others_leave_for_them(tree, disks):
    assert tree.topology(8).hosts == ("n1", "n1", "n2", "n2", "n3", "n3", "n4", "n4")
    shutil.rmtree(disks["n3"])
    tree.scan()
    assert tree.topology(8).hosts[4:6] == ("n3", "n3")
    shutil.rmtree(disks["n4"])
    tree.scan()
    with pytest.raises(UsageError, match="--home"):
        tree.topology(8)


def test_a_directory_that_workers_share_says_nothing_about_hosts(whole):
    with LocalEngine() as engine:
        assert SpreadTree(engine, str(whole)).topology(8) is None


def test_slices_are_set_aside_on_the_nodes_that_have_them(tree, whole, disks):
    old = overwrite_last(disks["n2"] / "ckpt_dir2" / NAME)
    made, _ = tree.plan(tree.scan())
    assert [(one.rank, one.set_aside) for one in made.actions] == [(2, f"ckpt_dir2/{NAME}.outvoted")]
    older = [f"ckpt_dir{rank}/test-1_4.ckpt" for rank in (2, 7)]
    given_up = tuple(GivenUpSlice(rank=int(path[8]), path=path, state=None, reason="") for path in older)
    outcome = tree.apply(replace(made, set_aside=given_up))
    assert (outcome.exit_code, outcome.set_aside) == (0, tuple(f"{path}.superseded" for path in older))
    assert [one.set_aside for one in outcome.results] == [f"ckpt_dir2/{NAME}.outvoted"]
    assert (disks["n2"] / "ckpt_dir2" / f"{NAME}.outvoted").read_bytes() == old
    assert (disks["n2"] / "ckpt_dir2" / NAME).read_bytes() == (whole / "ckpt_dir2" / NAME).read_bytes()
    assert (disks["n4"] / "ckpt_dir7" / "test-1_4.ckpt.superseded").exists()
    assert len([*disks.folder.rglob("*.outvoted")]) + len([*disks.folder.rglob("*.superseded")]) == 3


def test_nothing_is_set_aside_on_any_node_while_a_slice_is_missing(tree, disks):
    shutil.rmtree(disks["n3"] / "ckpt_dir4")
    made, _ = tree.plan(tree.scan())
    given_up = GivenUpSlice(rank=7, path="ckpt_dir7/test-1_4.ckpt", state=None, reason="")
    (disks["n3"] / "ckpt_dir4").write_text("in the way")
    outcome = tree.apply(replace(made, set_aside=(given_up,)))
    assert outcome.failed
    assert outcome.set_aside == ()
    assert (disks["n4"] / "ckpt_dir7" / "test-1_4.ckpt").exists()


def overwrite_last(path):
    """Flip a bit of the last parameter, which no checksum shows; return the bytes."""
    data = path.read_bytes()
    overwrite(path, data[:-1] + bytes([data[-1] ^ 1]))
    return path.read_bytes()


def test_each_node_says_what_is_in_the_way_of_its_part_and_follows_links_where_it_may(tree, disks, tmp_path):
    home, disk = disks["n2"] / "ckpt_dir2", tmp_path / "disk"
    shutil.rmtree(home)
    (disk / "ckpt_dir2").mkdir(parents=True)
    home.symlink_to(disk / "ckpt_dir2")
    shutil.rmtree(disks["n3"] / "ckpt_dir4")
    (disks["n3"] / "ckpt_dir4").write_text("no directory")
    homes = SpreadTree(tree._engine, tree.url, homes=[({2}, "n2"), ({4}, "n3")])
    found = homes.scan()
    made, _ = homes.plan(found)
    kinds = {one.rank: (one.kind, one.reason.partition(": ")[0]) for one in made.obstacles}
    assert kinds == {2: ("elsewhere", "n2"), 4: ("in the way", "n3")}
    assert homes.apply(made).exit_code == VerificationError.exit_code
    (disks["n3"] / "ckpt_dir4").unlink()
    made, _ = homes.plan(homes.scan(), PlanOptions(follow=(str(disk),)))
    assert made.obstacles == ()
    assert homes.apply(made).exit_code == 0
    assert (disk / "ckpt_dir2" / NAME).read_bytes() == (disks["n1"] / "ckpt_dir0" / NAME).read_bytes()


def test_documents_are_written_on_the_nodes_alone_that_have_slices(tmp_path):
    there = unpack("dp2_mp4", tmp_path / "n1" / "ckpt")
    (tmp_path / "n2" / "ckpt").mkdir(parents=True)
    common = there / "iteration_00000200" / "common.json"
    lost = common.read_bytes()
    common.unlink()
    with LocalEngine(workers={name: {"/data": str(tmp_path / name)} for name in ("n1", "n2")}) as engine:
        tree = SpreadTree(engine, "node://*/data/ckpt")
        made, _ = tree.plan(tree.scan())
        assert [write.target for write in made.documents] == ["iteration_00000200/common.json"]
        done = tree.apply(made)
        assert (done.exit_code, done.documents) == (0, ("iteration_00000200/common.json",))
        assert common.read_bytes() == lost
        assert not list((tmp_path / "n2" / "ckpt").iterdir())
        common.unlink()
        made, _ = tree.plan(tree.scan())
        common.mkdir()
        done = tree.apply(made)
    assert (done.documents, [error.partition(": ")[0] for error in done.errors]) == ((), ["n1"])
    assert done.exit_code


def test_a_plan_without_a_step_is_not_carried_out(tree, disks):
    for name, rank in (("n1", 1), ("n2", 3), ("n3", 5), ("n4", 7)):
        for path in (disks[name] / f"ckpt_dir{rank}").glob("*.ckpt"):
            path.unlink()
    made, _ = tree.plan(tree.scan())
    assert made.step is None
    for refused in (tree.check, tree.apply):
        with pytest.raises(UnrecoverableError):
            refused(made)


def test_slices_are_sealed_on_their_nodes_and_named_once(tree, disks):
    sealed, found = api.seal(tree.scan(), read=tree.read, write=tree.write_manifests)
    paths = {f"ckpt_dir{rank}/test-1_{step}.ckpt" for rank in range(8) for step in (4, 8)}
    assert (set(sealed), len(sealed)) == (paths, 16)
    assert found.ok
    assert read_manifest(disks["n2"] / "ckpt_dir2" / f"{NAME}.manifest.json").group == (0, 2, 4, 6)
    manifest = disks["n2"] / "ckpt_dir2" / f"{NAME}.manifest.json"
    manifest.unlink()
    assert api.seal(tree.scan(), read=tree.read, write=tree.write_manifests)[0] == (f"ckpt_dir2/{NAME}",)
    assert manifest.exists()


def test_what_survives_of_a_lost_slice_is_written_where_that_is_asked_for(tmp_path):
    """Ranks 0 and 1 hold the same rows, and 0 and 2 the same columns; both of the rows are lost."""
    source, matrix = np.random.default_rng(7), (2, 2)
    rows = CutTensor("Float32", source.random((8, 6), np.float32), cut_layout("rows", matrix, (1,), ()))
    columns = CutTensor("Float32", source.random((8, 12), np.float32), cut_layout("columns", matrix, (), (0,)))
    whole = make_cut_tree(tmp_path / "whole", {"rows": rows, "columns": columns}, 4, manifests=True)
    disks = Disks(tmp_path / "disks", whole)
    for name, rank in (("n1", 0), ("n2", 1)):
        (disks[name] / f"ckpt_dir{rank}" / NAME).unlink()
    with disks.engine() as engine:
        tree = SpreadTree(engine, "node://*/data/ckpt")
        made, _ = tree.plan(tree.scan())
        assert (made.step, sorted(action.rank for action in made.partials)) == (None, [0, 1])
        done = tree.apply(made, partial=True)
    assert done.exit_code == UnrecoverableError.exit_code
    assert all((disks[name] / one.target).exists() for name, one in zip(("n1", "n2"), done.results, strict=True))
    assert not (disks["n1"] / "ckpt_dir0" / NAME).exists()


def test_defaults_are_those_of_the_verbs_of_one_tree():
    def defaults(function):
        return {name: one.default for name, one in inspect.signature(function).parameters.items()}

    for name in ("scan", "plan", "apply"):
        ours, theirs = defaults(getattr(SpreadTree, name)), defaults(getattr(api, name))
        shared = ours.keys() & theirs.keys() - {"jobs"}
        assert {key: ours[key] for key in shared} == {key: theirs[key] for key in shared}
    assert defaults(SpreadTree.read)["from_device"] is defaults(api.verify)["deep"] is False
