"""Slices put together from pieces of several others, by the command line, on real files."""

import json
import os

import numpy as np
import pytest

from ms_recover import api
from ms_recover.errors import UsageError, VerificationError
from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.model.compose import ComposeAction
from ms_recover.model.options import PlanOptions
from ms_recover.stores.urls import open_plain
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree, slice_of

NAME = "test-1_8"
MATRIX = (2, 2)


def tensors(seed=0, rows=8):
    """Return parameters of which no other rank holds all, though every part is on two ranks."""
    source = np.random.default_rng(seed)

    def of(name, shape, *tensor_map, dtype="Float32", shards=0):
        kinds = {"Float32": np.float32, "BFloat16": np.uint16, "Int64": np.int64, "Int8": np.int8, "Bool": np.bool_}
        array = source.integers(0, 2 if dtype == "Bool" else 100, shape).astype(kinds[dtype])
        return name, CutTensor(dtype, array, cut_layout(name, MATRIX, *tensor_map, shards=shards))

    named = dict(
        [
            of("columns", (rows, 12), (), (0,)),  # split over neighbours: 0 and 2 hold the same
            of("rows", (rows, 6), (1,), ()),  # split over replicas: 0 and 1 hold the same
            of("scale", (16,), (), shards=2, dtype="BFloat16"),
            of("flags", (rows, 2), (0,), (), dtype="Bool"),
            of("empty", (0, 4), (), ()),
            of("bytes", (4, 4), (1,), (), dtype="Int8"),
        ]
    )
    named["learning_rate"] = CutTensor("Float32", np.float32(0.125))
    named["global_step"] = CutTensor("Int64", np.int64(8))
    return named


def with_text(named):
    return {**named, "note": CutTensor("str", np.frombuffer("runs äöü".encode("utf-32-le"), np.uint8))}


CASES = {
    "ckpt": (with_text(tensors()), {}),
    "crc": (with_text(tensors(1)), {"crc": True}),
    "pieces": (tensors(2), {"pieces": {"columns": [100, 60, 32], "rows": [96, 0]}}),
    "safetensors": (tensors(3), {"form": "safetensors"}),
    "redundancy mark": (
        tensors(4),
        {"form": "safetensors", "metadata": (("format", "ms"), ("remove_redundancy", "False"))},
    ),
}


@pytest.mark.parametrize("manifests", [False, True])
@pytest.mark.parametrize("case", CASES)
def test_every_rank_is_put_together_byte_for_byte(tmp_path, case, manifests):
    named, options = CASES[case]
    suffix = options.get("form", "ckpt")
    for rank in range(4):
        tree = make_cut_tree(tmp_path / str(rank), named, 4, manifests=manifests, **options)
        path = tree / f"ckpt_dir{rank}" / f"{NAME}.{suffix}"
        truth = path.read_bytes()
        lose(tree, rank)
        path.parent.rmdir()
        plan = api.plan(api.scan(tree), PlanOptions(world_size=4))
        [action] = plan.actions
        assert isinstance(action, ComposeAction)
        assert set(action.source_ranks) >= {(rank + 2) % 4, rank ^ 1}
        assert api.apply(plan_from_json(json.dumps(plan_to_json(plan)), "plan")).exit_code == 0
        assert path.read_bytes() == truth
        assert path.stat().st_mode & 0o777 == 0o400
        manifest = json.loads((path.parent / f"{path.name}.manifest.json").read_text())
        assert manifest["provenance"]["kind"] == "composed"
        assert not api.verify(api.scan(tree)).wrong
        assert not api.plan(api.scan(tree)).actions
        assert not [name for name in os.listdir(path.parent) if name.endswith(".tmp")]


def test_the_command_line_puts_together_what_it_planned(tmp_path, recover_ckpt):
    tree = make_cut_tree(tmp_path / "tree", tensors(), 4)
    path = tree / "ckpt_dir3" / f"{NAME}.ckpt"
    truth = path.read_bytes()
    lose(tree, 3)
    found = recover_ckpt("plan", tree, "-o", tmp_path / "plan.json", "--json")
    assert found.code == 0
    assert found.json["actions"][0]["kind"] == "compose"
    assert found.json["ranks"][3]["verdict"] == "compose"
    text = recover_ckpt("apply", tree, "--dry-run")
    assert "1 slice to put together" in text.out
    done = recover_ckpt("apply", tmp_path / "plan.json")
    assert done.code == 0
    assert "1 composed" in done.out
    assert path.read_bytes() == truth
    assert recover_ckpt("verify", tree).code == 0


def lose(tree, *ranks):
    for rank in ranks:
        for file in (tree / f"ckpt_dir{rank}").iterdir():
            file.unlink()


def damage(path, part, flip=0x10):
    """Flip a bit of what the file holds at the end of some bytes."""
    data = bytearray(path.read_bytes())
    place = data.index(part) + len(part) - 1
    data[place] ^= flip
    path.chmod(0o600)
    status = path.stat()
    path.write_bytes(data)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    path.chmod(0o400)


def test_a_source_that_turns_bad_is_dropped_for_another(tmp_path, recover_ckpt):
    """Three replicas of each part: one goes bad, unseen by size and time, between plan and apply."""
    source = np.random.default_rng(5)
    whole = {name: source.integers(0, 255, (16, 8)).astype(np.float32) for name in ("columns", "rows")}
    named = {
        "columns": CutTensor("Float32", whole["columns"], cut_layout("columns", (4, 2), (), (0,))),
        "rows": CutTensor("Float32", whole["rows"], cut_layout("rows", (4, 2), (1,), ())),
    }
    tree = make_cut_tree(tmp_path / "tree", named, 8, manifests=True)
    truth = (tree / "ckpt_dir0" / f"{NAME}.ckpt").read_bytes()
    lose(tree, 0)
    assert recover_ckpt("plan", tree, "--world-size", 8, "-o", tmp_path / "plan.json").code == 0
    [action] = json.loads((tmp_path / "plan.json").read_text())["actions"]
    giver = action["sources"][action["parameters"][0]["pieces"][0]["source"]]
    damage(tree / giver["path"], named["columns"].of(0).tobytes())
    done = recover_ckpt("apply", tmp_path / "plan.json", "--json")
    assert done.code == VerificationError.exit_code
    [result] = done.json["results"]
    assert "columns" in result["dropped"][0]
    assert giver["path"] in result["dropped"][0]
    assert (tree / "ckpt_dir0" / f"{NAME}.ckpt").read_bytes() == truth


def test_no_source_left_leaves_nothing_under_the_final_name(tmp_path, recover_ckpt):
    named = tensors()
    tree = make_cut_tree(tmp_path / "tree", named, 4, manifests=True)
    lose(tree, 0)
    assert recover_ckpt("plan", tree, "--world-size", 4, "-o", tmp_path / "plan.json").code == 0
    damage(tree / "ckpt_dir2" / f"{NAME}.ckpt", named["columns"].of(0).tobytes())
    done = recover_ckpt("apply", tmp_path / "plan.json", "--json")
    assert done.code == VerificationError.exit_code
    assert "columns" in done.json["results"][0]["error"]
    assert not list((tree / "ckpt_dir0").glob("*.ckpt*"))
    planned = recover_ckpt("plan", tree, "--world-size", 4, "--json")
    assert planned.code == 4
    assert {gone["parameter"] for gone in planned.json["ranks"][0]["missing"]} == {"columns"}
    assert planned.json["ranks"][2]["verdict"] == "unrecoverable"


def test_a_flipped_bit_costs_one_parameter_only(tmp_path, recover_ckpt):
    """Everything but the damaged parameter comes from the rank's own slice, which its manifest proves."""
    named = tensors()
    tree = make_cut_tree(tmp_path / "tree", named, 4, manifests=True)
    path = tree / "ckpt_dir1" / f"{NAME}.ckpt"
    truth = path.read_bytes()
    damage(path, named["columns"].of(1).tobytes())
    found = recover_ckpt("plan", tree, "--json")
    assert found.code == 0
    [action] = found.json["actions"]
    givers = {
        item["name"]: action["sources"][item["pieces"][0]["source"]]["rank"]
        for item in action["parameters"]
        if item["pieces"]
    }
    assert givers.pop("columns") == 3
    assert set(givers.values()) == {1}
    assert recover_ckpt("apply", tree).code == 0
    assert path.read_bytes() == truth


def test_holders_that_disagree_stop_the_plan(tmp_path, recover_ckpt):
    named = tensors()
    source = np.random.default_rng(9)
    array = source.integers(0, 100, (8, 4)).astype(np.float32)
    named["rows"] = CutTensor("Float32", array, cut_layout("rows", (2, 2), (), ()))
    tree = make_cut_tree(tmp_path / "tree", named, 4)
    lose(tree, 0)
    damage(tree / "ckpt_dir1" / f"{NAME}.ckpt", array.tobytes())
    found = recover_ckpt("plan", tree, "--world-size", 4, "--json")
    assert found.code == 0, "two of three agree"
    lose(tree, 2)
    found = recover_ckpt("plan", tree, "--world-size", 4, "--json")
    assert found.code == VerificationError.exit_code
    assert "'rows'" in found.json["disagreements"][0]


def test_what_survives_is_written_beside_under_another_name(tmp_path, recover_ckpt):
    named = with_text(tensors())
    tree = make_cut_tree(tmp_path / "tree", named, 4)
    gone = {"columns": [[0, 8], [0, 6]], "scale": [[0, 8]], "flags": [[0, 4], [0, 2]]}
    survives = slice_of({name: one for name, one in named.items() if name not in gone}, 0)
    lose(tree, 0, 2)
    planned = recover_ckpt("plan", tree, "--world-size", 4, "--json")
    assert planned.code == 4
    rank = planned.json["ranks"][0]
    assert {missing["parameter"]: missing["region"] for missing in rank["missing"]} == gone
    total = sum(one.of(0).nbytes for one in named.values())
    assert rank["missing_share"] == (8 * 6 * 4 + 8 * 2 + 4 * 2) / total
    done = recover_ckpt("apply", tree, "--world-size", 4, "--partial", "--json")
    assert (done.code, done.json["partial"]) == (4, True)
    partial = tree / "ckpt_dir0" / f"{NAME}.partial.ckpt"
    assert not (tree / "ckpt_dir0" / f"{NAME}.ckpt").exists()
    assert partial.read_bytes() == survives


def test_a_strategy_file_of_other_slices_is_not_believed(tmp_path, recover_ckpt):
    named = tensors()
    tree = make_cut_tree(tmp_path / "tree", named, 4, manifests=True)
    other = {name: CutTensor(one.dtype, one.array, None) for name, one in named.items()}
    other["rows"] = CutTensor("Float32", named["rows"].array, cut_layout("rows", (2, 2), (0,), ()))
    stale = make_cut_tree(tmp_path / "other", other, 4)
    lose(tree, 0)
    for rank in (1, 2, 3):
        (tree / f"ckpt_dir{rank}" / "strategy.ckpt").write_bytes((stale / "ckpt_dir0" / "strategy.ckpt").read_bytes())
    found = recover_ckpt("plan", tree, "--world-size", 4, "--json")
    assert found.code == 4
    assert "not tried" in found.json["ranks"][0]["reason"]


def test_without_a_strategy_file_the_plan_says_what_was_not_tried(tmp_path, recover_ckpt):
    tree = make_cut_tree(tmp_path / "tree", tensors(), 4)
    lose(tree, 0)
    for rank in (1, 2, 3):
        (tree / f"ckpt_dir{rank}" / "strategy.ckpt").unlink()
    found = recover_ckpt("plan", tree, "--world-size", 4)
    assert found.code == 4
    assert "parameter by parameter was not tried: no strategy file states how parameters are cut" in found.out


def test_explain_tells_who_holds_what(tmp_path, recover_ckpt):
    tree = make_cut_tree(tmp_path / "tree", tensors(), 4)
    lose(tree, 0)
    found = recover_ckpt("plan", tree, "--world-size", 4, "--explain", 0, "--json")
    rows = {row["name"]: row for row in found.json["explanation"]["parameters"]}
    assert rows["columns"]["holders"] == [2]
    assert rows["rows"]["holders"] == [1]
    assert rows["columns"]["region"] == [[0, 8], [0, 6]]
    assert rows["learning_rate"]["holders"] == [1, 2, 3]
    assert rows["learning_rate"]["region"] is None
    text = recover_ckpt("plan", tree, "--world-size", 4, "--explain", 0)
    assert "[0:8, 0:6]" in text.out
    assert recover_ckpt("plan", tree, "--world-size", 4, "--explain", 4).code == 2


def dealt(named, rank):
    """Return what ``remove_redundancy=True`` leaves to a rank: parameters by name, in turn, among those alike."""
    alike = {"columns": (rank % 2, rank % 2 + 2), "rows": (rank - rank % 2, rank - rank % 2 + 1)}
    kept = {}
    for index, name in enumerate(sorted(named)):
        group = alike.get(name)
        if group is None or group[index % 2] == rank:
            kept[name] = None
    return {name: one for name, one in named.items() if name in kept}


@pytest.fixture
def dealt_tree(tmp_path):
    """Four ranks of which each part of ``columns`` and ``rows`` lies with one only."""
    named = {name: one for name, one in tensors().items() if one.dtype != "BFloat16" and name not in ("empty", "flags")}
    tree = make_cut_tree(tmp_path / "tree", named, 4)
    for rank in range(4):
        path = tree / f"ckpt_dir{rank}" / f"{NAME}.ckpt"
        path.chmod(0o600)
        path.write_bytes(slice_of(dealt(named, rank), rank))
    return tree, named


def test_a_full_slice_is_put_together_from_dealt_out_parts(dealt_tree, recover_ckpt, tmp_path):
    tree, named = dealt_tree
    for rank in range(4):
        done = recover_ckpt("complete", tree, rank, "--json")
        assert done.code == 0, done.err
        path = tree / f"ckpt_dir{rank}" / f"{NAME}.complete.ckpt"
        full = slice_of(named, rank)
        assert sorted(path.read_bytes()) == sorted(full)
        listed = recover_ckpt("inspect", path, "--json").json
        assert {one["name"] for one in listed["parameters"]} == set(named)
        assert recover_ckpt("complete", tree, rank).code == 2, "nothing is overwritten"
    assert recover_ckpt("complete", tree, 0, "-o", tmp_path / "full.ckpt").code == 0
    assert (tmp_path / "full.ckpt").exists()
    assert recover_ckpt("scan", tree, "--json").json["ranks"] == [0, 1, 2, 3]


def test_a_full_slice_is_put_together_at_urls(dealt_tree, tmp_path):
    pytest.importorskip("fsspec")
    tree, named = dealt_tree
    url, other = "memory://dealt/run", "memory://dealt/full"
    with open_plain(url) as store:
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                with store.create(str(path.relative_to(tree))) as file:
                    file.write(path.read_bytes())
                    file.commit()

    def contents(url, path):
        with open_plain(url) as store, store.open(path) as file:
            return sorted(file.read_at(0, file.size))

    done = api.complete(api.scan(url), 1)
    assert contents(url, done.target) == sorted(slice_of(named, 1))
    with pytest.raises(UsageError, match="there already"):
        api.complete(api.scan(url), 1)
    api.complete(api.scan(url), 2, output=str(tmp_path / "full.ckpt"))
    assert sorted((tmp_path / "full.ckpt").read_bytes()) == sorted(slice_of(named, 2))
    for source, name in ((url, "one.ckpt"), (tree, "two.ckpt")):
        done = api.complete(api.scan(source), 3, output=f"{other}/{name}")
        assert done.target == f"{other}/{name}"
        assert contents(other, name) == sorted(slice_of(named, 3))


def test_what_only_the_lost_rank_had_is_named(dealt_tree, recover_ckpt):
    tree, named = dealt_tree
    own = {name for name in ("columns", "rows") if name in dealt(named, 0)}
    lose(tree, 0)
    found = recover_ckpt("plan", tree, "--world-size", 4, "--json")
    assert found.code == 4
    assert {gone["parameter"] for gone in found.json["ranks"][0]["missing"]} == own
    done = recover_ckpt("complete", tree, 0, "--world-size", 4)
    assert done.code == 4
    assert all(repr(name) in done.err for name in own)
