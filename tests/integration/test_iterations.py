"""Trees of iterations from scan to verify, where they lie, what stands beside them, and their documents."""

import json
import os
import shutil
from dataclasses import replace

import pytest
from click.testing import CliRunner

from ms_recover import api
from ms_recover.cli.main import group
from ms_recover.errors import FormatError, MissingInputError, UnrecoverableError, UsageError
from ms_recover.file_names import weights_name
from ms_recover.formats.common_info import encode_common
from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.formats.shard_metadata import encode_metadata
from ms_recover.formats.strategy import encode_strategy
from ms_recover.joint.shares import share_here
from ms_recover.joint.union import unite
from ms_recover.model.options import DEFAULT_SCAN, PlanOptions, ScanOptions
from ms_recover.model.steps import Step
from ms_recover.scanning.sent_inventory import decode_inventory
from ms_recover.serving.tree import ServedTree
from ms_recover.testing.trees import make_tree
from tests.support.iteration_trees import contents, of_rank, unpack
from tests.support.iterations import Job, file_bytes, file_shards, make_common, make_metadata, strategies, write_job

OLD, NEW = "iteration_00000100", "iteration_00000200"
TRACKER = "latest_checkpointed_iteration.txt"
MODEL2 = f"{NEW}/llama_tiny-model-0000002-0000008.safetensors"


def run(*arguments):
    return CliRunner().invoke(group, list(map(str, arguments)), standalone_mode=False)


def lose(root, *names):
    for name in names:
        (root / NEW / name).unlink()


@pytest.mark.parametrize("place", ["", "checkpoint", "output/checkpoint", "iteration"])
def test_the_tree_is_found_from_where_its_user_stands(place, tmp_path):
    top = tmp_path / "tree"
    holder = top / place if place != "iteration" else top
    unpack("dp2_mp2_pp2", holder)
    lose(holder, *of_rank("dp2_mp2_pp2", 2))
    root = holder / NEW if place == "iteration" else top
    plan = api.plan(api.scan(root))
    ahead = f"{place}/" if place not in ("", "iteration") else ""
    folder = "" if place == "iteration" else f"{ahead}{NEW}/"
    assert plan.step == Step.iteration(200)
    assert [action.target for action in plan.actions] == [f"{folder}{name}" for name in of_rank("dp2_mp2_pp2", 2)]
    assert plan_from_json(json.dumps(plan_to_json(plan)), "plan.json") == plan
    assert api.apply(plan).exit_code == 0
    assert contents(holder) == contents(unpack("dp2_mp2_pp2", tmp_path / "whole"))


def test_every_verb_of_the_command_line(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path / "tree")
    whole = contents(root)
    lose(root, *of_rank("dp2_mp2_pp2", 2), "metadata.json")
    assert json.loads(run("scan", root, "--json").stdout)["iterations"][0]["metadata"]["there"] is False
    assert run("verify", root).return_value == 5
    plan = json.loads(run("plan", root, "--json").stdout)
    assert plan["step"] == {"epoch": -1, "step": 200}
    assert [part["verdict"] for part in plan["ranks"][2]["parts"]] == ["copy", "copy"]
    assert [one["target"] for one in plan["documents"]] == [f"{NEW}/metadata.json"]
    assert run("plan", root, "-o", tmp_path / "plan.json").return_value == 0
    assert run("apply", tmp_path / "plan.json", "--dry-run").return_value == 0
    done = run("apply", tmp_path / "plan.json", "--json")
    assert (done.return_value, json.loads(done.stdout)["documents"]) == (0, [f"{NEW}/metadata.json"])
    assert contents(root) == whole
    assert run("verify", root).return_value == 0
    assert run("seal", root).stdout.startswith("30 manifests written")
    assert json.loads(run("verify", root, "--json", "--step", "200").stdout)["ok"]
    assert "adam_m.decoder.adapter.weight" in run("plan", root, "--explain", 5).stdout
    assert run("plan", root, "--step", "150").exception.exit_code == MissingInputError.exit_code
    assert "RECOVERABLE at step 100" in run("plan", root, "--step", "100", "--lost", "2").stdout


def test_manifests_prove_both_files_of_a_rank(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    api.seal(api.scan(root))
    path = root / MODEL2
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.unlink()
    path.write_bytes(data)
    wrong = api.verify(api.scan(root)).wrong
    assert [check.path for check in wrong] == [MODEL2]
    plan = api.plan(api.scan(root))
    assert (plan.ranks[2].evidence, [part.verdict for part in plan.ranks[2].files]) == ("manifest", ["copy", "keep"])
    api.apply(plan)
    assert contents(root) == whole


def test_iterations_of_another_layout_or_world_lie_beside(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path, 200)
    whole = contents(root)
    write_job(tmp_path / "other", Job(data_parallel=4, model_parallel=4, layers=1), iterations=(100,))
    (tmp_path / "other" / OLD).rename(root / OLD)
    shutil.rmtree(tmp_path / "other")
    lose(root, *of_rank("dp2_mp2_pp2", 0, 1))
    plan = api.plan(api.scan(root))
    assert (plan.world_size, plan.step, len(plan.actions)) == (8, Step.iteration(200), 4)
    older = api.plan(api.scan(root), PlanOptions(step=Step.iteration(100), lost=frozenset([13])))
    assert (older.world_size, older.ranks[13].state) == (16, "lost")
    api.apply(plan)
    assert {name: data for name, data in contents(root).items() if not name.startswith(OLD)} == whole
    with pytest.raises(UsageError, match="ranks are 0 to 7"):
        api.plan(api.scan(root), PlanOptions(lost=frozenset([13])))
    with pytest.raises(UsageError, match="given as 4"):
        api.plan(api.scan(root), PlanOptions(world_size=4))
    assert api.plan(api.scan(root), PlanOptions(world_size=16)).step == Step.iteration(100)


def spoil_shape(metadata):
    metadata["state_dict_metadata"]["embedding.word_embeddings.weight"]["global_shape"] = [47, 16]


def spoil_name(metadata):
    items = next(iter(metadata["storage_data"].values()))
    items[0]["file_name"] = "../../etc/llama_tiny-model-0000000-0000008.safetensors"


def spoil_world(metadata):
    next(iter(metadata["storage_data"].values()))[0]["rank_group"] = [0, 1 << 40]


@pytest.mark.parametrize("spoil", [spoil_shape, spoil_name, spoil_world, None])
def test_metadata_that_cannot_be_is_refused_and_written_again(spoil, tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    path = root / NEW / "metadata.json"
    if spoil is None:
        path.write_bytes(path.read_bytes()[:-30])
    else:
        metadata = json.loads(path.read_bytes())
        spoil(metadata)
        path.write_text(json.dumps(metadata, indent=4))
    lose(root, *of_rank("dp2_mp2_pp2", 3))
    found = api.verify(api.scan(root))
    (note,) = [note for note in found.documents if note.path == f"{NEW}/metadata.json"]
    assert "\n" not in note.reason
    plan = api.plan(api.scan(root))
    assert [write.target for write in plan.documents] == [f"{NEW}/metadata.json"]
    assert len(plan.actions) == 2
    api.apply(plan)
    assert contents(root) == whole


def test_metadata_of_another_layout_is_not_trusted_against_the_files(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    whole = contents(root)
    other = unpack("dp2_mp4", tmp_path / "other", 200)
    (root / NEW / "metadata.json").write_bytes((other / NEW / "metadata.json").read_bytes())
    shutil.rmtree(other)
    lose(root, *of_rank("dp2_mp2_pp2", 1))
    found = api.verify(api.scan(root))
    assert [note.path for note in found.documents][:1] == [f"{NEW}/metadata.json"]
    plan = api.plan(api.scan(root))
    assert len(plan.actions) == 2
    api.apply(plan)
    assert contents(root) == whole


def test_without_any_metadata_nothing_is_guessed(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    for folder in (OLD, NEW):
        (root / folder / "metadata.json").unlink()
    whole = api.plan(api.scan(root))
    assert whole.recoverable
    assert "no other iteration has one" in " ".join(whole.warnings)
    lose(root, *of_rank("dp2_mp2_pp2", 2))
    (root / OLD / "llama_tiny-opt-0000002-0000008.safetensors").unlink()
    plan = api.plan(api.scan(root))
    assert not plan.recoverable
    assert plan.ranks[2].verdict == "unrecoverable"


def test_without_any_metadata_equal_files_show_what_the_operator_may_state(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    for folder in (OLD, NEW):
        (root / folder / "metadata.json").unlink()
    whole = contents(root)
    lose(root, *of_rank("dp2_mp2_pp2", 2))
    at_newest = PlanOptions(step=Step.iteration(200))
    plan = api.plan(api.scan(root), at_newest)
    assert not plan.recoverable
    equal, files = plan.hints
    assert equal.startswith("ranks 0 and 2; 1 and 3 hold equal bytes at steps 200, 100")
    assert equal.endswith("say who holds the same as rank 2 with --group or --axes")
    assert files.startswith("no usable rank list or strategy file was found")
    stated = replace(at_newest, groups=(frozenset({0, 2}),))
    assert api.apply(api.plan(api.scan(root), stated)).exit_code == 0
    assert contents(root) == whole


def test_without_any_metadata_strategy_files_that_are_named_serve(tmp_path):
    job = Job(data_parallel=4, optimizer_shards=2)
    root = write_job(tmp_path / "job", job, iterations=(200,))
    whole = contents(root)
    strategy = tmp_path / "strategy.ckpt"
    (only,) = strategies(job).values()
    strategy.write_bytes(encode_strategy(only))
    lose(root, "metadata.json")
    assert "no other iteration has one" in " ".join(api.plan(api.scan(root)).warnings)
    plan = api.plan(api.scan(root, ScanOptions(strategy=(str(strategy),))))
    assert str(strategy) in plan.documents[0].sources[0]
    assert api.apply(plan).exit_code == 0
    assert contents(root) == whole
    assert api.verify(api.scan(root)).ok


def test_a_part_of_which_nothing_is_left_is_not_whole(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path, 200)
    (root / NEW / "metadata.json").write_text("{")
    lose(root, *(path.name for path in (root / NEW).glob("*-opt-0000000*")))
    assert not api.plan(api.scan(root)).recoverable
    write_job(tmp_path / "older", Job(data_parallel=4, model_parallel=2, layers=1), iterations=(100,))
    (tmp_path / "older" / OLD).rename(root / OLD)
    shutil.rmtree(tmp_path / "older")
    for path in (root / NEW).glob("*-opt-*"):
        path.unlink()
    (root / OLD / "metadata.json").unlink()
    plan = api.plan(api.scan(root))
    assert plan.step == Step.iteration(100)
    assert len(plan.given_up[0].ranks) == 8


def test_progress_is_written_again_as_far_as_it_is_known(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    (root / NEW / "common.json").write_text("{")
    plan = api.plan(api.scan(root))
    (write,) = plan.documents
    assert write.target == f"{NEW}/common.json"
    assert any("global_step" in source and "opt files" in source for source in write.sources)
    assert write.value.global_step == 200
    assert {"epoch_num", "loss_scale"} <= {*write.unknown, *write.assumed}
    assert plan_from_json(json.dumps(plan_to_json(plan)), "plan.json") == plan


def test_a_single_card_has_no_metadata(tmp_path):
    root = write_job(tmp_path, Job(data_parallel=1, model_parallel=1, layers=1))
    for folder in (OLD, NEW):
        (root / folder / "metadata.json").unlink()
    plan = api.plan(api.scan(root))
    assert (plan.world_size, plan.step, plan.documents) == (1, Step.iteration(200), ())
    assert api.verify(api.scan(root)).ok


def test_only_one_file_holds_each_shard_where_redundancy_is_removed(tmp_path):
    root = write_job(tmp_path, Job(data_parallel=2, model_parallel=2, layers=1, remove_redundancy=True))
    at = PlanOptions(step=Step.iteration(200))
    held = {
        one.name for one in api.inspect(root / NEW / "llama_tiny-model-0000001-0000004.safetensors").header.parameters
    }
    full = api.complete_iteration(api.scan(root), 1, at)
    names = [{one.name for one in api.inspect(root / result.target).header.parameters} for result in full]
    assert held < names[0]
    assert len(names[1]) == 2 * len(names[0])
    (root / NEW / "llama_tiny-model-0000001-0000004.safetensors").unlink()
    plan = api.plan(api.scan(root), at)
    assert not plan.recoverable
    assert {one.parameter for one in plan.ranks[1].missing} == held
    with pytest.raises(UnrecoverableError):
        api.complete_iteration(api.scan(root), 3, at)


def test_what_was_dealt_out_over_data_parallel_ranks_is_named_exactly(tmp_path):
    job = Job(
        data_parallel=4, model_parallel=1, stages=2, layers=3, optimizer=False, remove_redundancy=True, prefix=None
    )
    root = write_job(tmp_path, job)
    header = api.inspect(root / NEW / "model-0000006-0000008.safetensors").header
    lose(root, "model-0000006-0000008.safetensors")
    plan = api.plan(api.scan(root), PlanOptions(step=Step.iteration(200)))
    assert not plan.recoverable
    assert {one.parameter for one in plan.ranks[6].missing} == {one.name for one in header.parameters}


def test_ranks_without_a_shard_have_no_file(tmp_path):
    """With remove_redundancy the number of a file is its place among those that were written, not the rank."""
    job = Job(data_parallel=4, model_parallel=1, layers=1, remove_redundancy=True)
    metadata = make_metadata(job)
    ranks = {name: {item.storage_rank for items in held for item in items} for name, held in metadata.stored.items()}
    kept = [name for name in metadata.parameters if 1 not in ranks[name]]
    numbers = {0: 0, 2: 1, 3: 2}

    def renamed(item):
        name = weights_name(item.file_name)
        return replace(item, file_name=name._replace(file_index=numbers[item.storage_rank], file_count=3).name)

    metadata = replace(
        metadata,
        parameters={name: metadata.parameters[name] for name in kept},
        stored={name: tuple(tuple(map(renamed, items)) for items in metadata.stored[name]) for name in kept},
        order=tuple((name, index) for name, index in metadata.order if name in kept),
    )
    folder = tmp_path / NEW
    folder.mkdir()
    for name, shards in file_shards(metadata).items():
        (folder / name).write_bytes(file_bytes(shards, 200))
    (folder / "metadata.json").write_bytes(b"".join(encode_metadata(metadata)))
    (folder / "common.json").write_bytes(encode_common(make_common(job, 200)))
    (tmp_path / TRACKER).write_text("200")
    plan = api.plan(api.scan(tmp_path))
    assert (plan.step, plan.world_size, plan.actions, plan.documents) == (Step.iteration(200), 4, (), ())
    assert plan.ranks[1].files[0].path is None
    assert plan.ranks[3].files[0].path == f"{NEW}/llama_tiny-model-0000002-0000003.safetensors"
    assert plan_from_json(json.dumps(plan_to_json(plan)), "plan.json") == plan
    assert api.verify(api.scan(tmp_path)).ok
    lose(tmp_path, "llama_tiny-model-0000002-0000003.safetensors")
    (wrong,) = api.verify(api.scan(tmp_path)).wrong
    assert (wrong.rank, wrong.path) == (3, f"{NEW}/llama_tiny-model-0000002-0000003.safetensors")


@pytest.mark.parametrize(
    "change",
    [
        lambda plan: plan["actions"][0].update(target=f"{NEW}/llama_tiny-model-0000004-0000008.safetensors"),
        lambda plan: plan["actions"][0].update(target=f"{NEW}/llama_tiny-opt-0000002-0000008.safetensors"),
        lambda plan: plan["actions"][0].update(target=f"{OLD}/llama_tiny-model-0000002-0000008.safetensors"),
        lambda plan: plan["actions"][0].update(target="llama_tiny-model-0000002-0000008.safetensors"),
        lambda plan: plan["actions"][0].update(target=f"{NEW}/metadata.json"),
        lambda plan: plan["actions"][0].update(rank=3),
        lambda plan: plan["actions"][0].update(source=f"{NEW}/llama_tiny-opt-0000000-0000008.safetensors"),
        lambda plan: plan["actions"][0].update(source=f"{OLD}/llama_tiny-model-0000000-0000008.safetensors"),
        lambda plan: plan["documents"][0].update(target=f"{OLD}/metadata.json"),
        lambda plan: plan["documents"][0].update(target="../metadata.json"),
        lambda plan: plan["documents"][0].update(target=f"{NEW}/notes.json"),
        lambda plan: plan["documents"][0].update(text="{}"),
        lambda plan: plan["documents"][1].update(text="100"),
        lambda plan: plan["documents"][1].update(target=f"{NEW}/{TRACKER}"),
        lambda plan: plan["documents"].append(plan["documents"][0]),
        lambda plan: plan["group_files"].append({"rank": 2, "target": "a_2/group_info.pb", "restore_ranks": [2]}),
    ],
)
def test_a_plan_that_a_slip_of_the_hand_changed_is_refused(change, tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    lose(root, MODEL2.rpartition("/")[2], "metadata.json")
    (root / TRACKER).write_text("")
    made = plan_to_json(api.plan(api.scan(root)))
    plan = json.loads(json.dumps(made))
    change(plan)
    with pytest.raises(FormatError):
        plan_from_json(json.dumps(plan), "plan.json")


def test_documents_are_written_when_everything_else_is(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    lose(root, MODEL2.rpartition("/")[2], "metadata.json")
    (root / TRACKER).write_text("")
    plan = api.plan(api.scan(root))
    for action in plan.actions:
        path = root / action.source
        path.chmod(0o600)
        path.write_bytes(path.read_bytes()[:-1])
    outcome = api.apply(plan)
    assert (outcome.exit_code, outcome.documents) == (5, ())
    assert (root / TRACKER).read_text() == ""
    assert not (root / NEW / "metadata.json").exists()


def test_a_document_that_appeared_meanwhile_stays(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    (root / NEW / "common.json").unlink()
    (root / TRACKER).write_text("")
    plan = api.plan(api.scan(root))
    (root / NEW / "common.json").write_text("{}")
    outcome = api.apply(plan)
    assert (outcome.exit_code, outcome.documents) == (5, ())
    assert "common.json appeared or changed" in outcome.errors[0]
    assert (root / TRACKER).read_text() == ""


def test_files_of_another_save_are_noted(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path)
    data = (root / MODEL2).read_bytes()
    for name in ("other-model-0000002-0000008.safetensors", "llama_tiny-model-0000002-0000016.safetensors"):
        (root / NEW / name).write_bytes(data)
    (root / "model.safetensors.index.json").write_text("{}")
    plan = api.plan(api.scan(root))
    assert (plan.step, plan.actions, plan.world_size) == (Step.iteration(200), (), 8)
    noted = " ".join(f"{note.path}: {note.reason}" for note in plan.notes)
    assert "other-model-0000002-0000008.safetensors" in noted
    assert "llama_tiny-model-0000002-0000016.safetensors" in noted
    assert "model.safetensors.index.json" in noted


def test_iterations_without_any_file_are_no_tree(tmp_path):
    (tmp_path / OLD).mkdir()
    with pytest.raises(MissingInputError, match="no model or optimizer file"):
        api.scan(tmp_path)


@pytest.mark.parametrize(("step", "form"), [("1_200", "the iteration alone"), ("150", "no slice of step 150")])
def test_steps_that_the_tree_does_not_have(step, form, tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path, 200)
    for verb in (api.plan, api.verify, api.seal):
        with pytest.raises((UsageError, MissingInputError), match=form):
            verb(api.scan(root), PlanOptions(step=Step.parse(step)))


def test_the_format_that_was_saved_last_counts(tmp_path):
    root = unpack("dp2_mp2_pp2", tmp_path, 200)
    older = make_tree(root)
    for path in older.rglob("*.ckpt"):
        os.utime(path, (1, 1))
    found = api.scan(root)
    assert {file.step for file in found.slices} == {Step.iteration(200)}
    assert any("--pattern" in note.reason for note in found.notes)
    for path in older.rglob("*.ckpt"):
        os.utime(path, (1 << 32, 1 << 32))
    found = api.scan(root)
    assert not any(file.step.is_iteration for file in found.slices)
    assert found.iterations == ()


def served(root):
    tree = ServedTree(root, DEFAULT_SCAN)
    return decode_inventory(tree.encoded(lambda: False), "host:1")


def test_a_node_that_lost_everything_plans_over_another(tmp_path):
    there = unpack("dp2_mp2_pp2", tmp_path / "there")
    here = tmp_path / "here"
    here.mkdir()
    heard = served(there)
    assert [one.step for one in heard.iterations] == [Step.iteration(200), Step.iteration(100)]
    local = api.scan(here, replace(DEFAULT_SCAN, may_be_empty=True))
    union = unite(local, [heard])
    plan = api.plan(union.inventory, PlanOptions(quick=True))
    cut = share_here(plan, union, range(8), {})
    assert len(cut.actions) == 16
    assert {action.target for action in cut.actions} == {
        f"{NEW}/{name}" for rank in range(8) for name in of_rank("dp2_mp2_pp2", rank)
    }
    assert [write.target for write in cut.documents] == [f"{NEW}/metadata.json", f"{NEW}/common.json", TRACKER]
    assert cut.ranks[0].files[0].verdict == "copy"


def test_a_node_uses_what_only_another_has(tmp_path):
    there = unpack("dp2_mp2_pp2", tmp_path / "there")
    here = unpack("dp2_mp2_pp2", tmp_path / "here")
    lose(here, *of_rank("dp2_mp2_pp2", 5))
    (here / NEW / "metadata.json").unlink()
    union = unite(api.scan(here), [served(there)])
    plan = share_here(api.plan(union.inventory, PlanOptions(quick=True)), union, None, {})
    assert [(action.rank, action.source) for action in plan.actions] == [(5, action.target) for action in plan.actions]
    assert [write.target for write in plan.documents] == [f"{NEW}/metadata.json"]
