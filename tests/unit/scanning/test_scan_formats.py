"""What a scan makes of safetensors slices, of both formats side by side, and of strategy files."""

import json
import shutil
from dataclasses import replace

import pytest

from ms_recover import api
from ms_recover.errors import FormatError, MissingInputError, UsageError
from ms_recover.formats import strategy as strategy_files
from ms_recover.formats.header import read_header
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.manifest import Manifest
from ms_recover.model.options import ScanOptions
from ms_recover.model.strategy import Layout, Strategy
from ms_recover.scanning import strategy_files as reading_strategies
from ms_recover.scanning.sent_inventory import decode_inventory, encode_inventory
from ms_recover.stores.digest import digest_file
from tests.support.convert import as_safetensors

STAGE_1 = Strategy((1,), 2, (Layout("w", (2, 2), ((0,), ())),), operators=1)


@pytest.fixture
def tree(fixture_tree):
    return fixture_tree("dp2_mp4")


def test_safetensors_slices_are_slices(tree):
    for path in sorted(tree.rglob("test-*.ckpt")):
        as_safetensors(path)
        path.unlink()
    inventory = api.scan(tree)
    assert {file.path.rpartition(".")[2] for file in inventory.slices} == {"safetensors"}
    assert all(file.problem is None and len(file.parameters) >= 24 for file in inventory.slices)
    assert len(inventory.ranks) == 8
    assert inventory.slices[0].place.of(5) == "ckpt_dir5/test-1_77.safetensors"
    assert not inventory.notes


def test_the_metadata_say_which_safetensors_slices_were_dealt_out(tree):
    for rank, text in enumerate(("True", "False")):
        path = tree / f"ckpt_dir{rank}" / "test-1_77.ckpt"
        as_safetensors(path, (("format", "ms"), ("remove_redundancy", text)))
        path.unlink()
    inventory = api.scan(tree)
    assert [file.path for file in inventory.slices if file.dealt] == ["ckpt_dir0/test-1_77.safetensors"]
    received = decode_inventory(encode_inventory(replace(inventory, strategy_files=()), {}), "a node")
    assert [file.path for file in received.slices if file.dealt] == ["ckpt_dir0/test-1_77.safetensors"]


def test_the_same_contents_in_both_formats_count_once(tree):
    original = tree / "ckpt_dir0" / "test-1_77.ckpt"
    other = as_safetensors(original)
    inventory = api.scan(tree)
    (kept,) = [file for file in inventory.slices if (file.rank, str(file.step)) == (0, "1_77")]
    assert kept.path == "ckpt_dir0/test-1_77.ckpt"
    assert [(note.path, note.reason) for note in inventory.notes] == [
        ("ckpt_dir0/test-1_77.safetensors", "holds the same contents as ckpt_dir0/test-1_77.ckpt")
    ]
    data = bytearray(other.read_bytes())
    data[-1] ^= 1
    other.write_bytes(bytes(data))
    assert len([file for file in api.scan(tree).slices if (file.rank, str(file.step)) == (0, "1_77")]) == 2


def test_metadata_in_another_order_are_the_same_slice(tree):
    original = tree / "ckpt_dir0" / "test-1_77.ckpt"
    as_safetensors(original).rename(tree / "ckpt_dir0" / "test_1-1_77.safetensors")
    as_safetensors(original, (("remove_redundancy", "False"), ("format", "ms")))
    original.unlink()
    notes = [note.reason for note in api.scan(tree).notes]
    assert notes == ["holds the same contents as ckpt_dir0/test-1_77.safetensors"]


def test_of_two_that_are_the_same_the_one_with_a_manifest_stays(tree):
    other = as_safetensors(tree / "ckpt_dir0" / "test-1_77.ckpt")
    api.seal(api.scan(tree))
    sealed = tree / "ckpt_dir0" / "test-1_77.ckpt.manifest.json"
    manifest = json.loads(sealed.read_text())
    header = read_header(other)
    digests = digest_file(other, header.contents)
    rows = [
        {"name": p.name, "dtype": p.dtype, "shape": p.shape, "bytes": p.nbytes, "digest": digest}
        for p, digest in zip(header.parameters, digests.parameters, strict=True)
    ]
    manifest |= {"file": other.name, "size": header.size, "digest": digests.file, "parameters": rows}
    other.with_name(other.name + ".manifest.json").write_text(json.dumps(manifest))
    sealed.unlink()
    (kept,) = [file for file in api.scan(tree).slices if (file.rank, str(file.step)) == (0, "1_77")]
    assert kept.path == "ckpt_dir0/test-1_77.safetensors"
    assert isinstance(kept.manifest, Manifest)


def test_parts_and_complete_slices_are_reported_and_never_used(tree):
    original = tree / "ckpt_dir0" / "test-1_77.ckpt"
    for name in ("test-1_77.partial.ckpt", "test-1_77.complete.safetensors"):
        shutil.copyfile(original, tree / "ckpt_dir0" / name)
    for options in ({}, {"pattern": "ckpt_dir{rank}/{prefix}-{epoch}_{step}.ckpt"}):
        inventory = api.scan(tree, ScanOptions(**options))
        assert [note.path.rpartition("/")[2] for note in inventory.notes] == [
            "test-1_77.complete.safetensors",
            "test-1_77.partial.ckpt",
        ]
        assert not [file for file in inventory.slices if "partial" in file.path or "complete" in file.path]
    odd = api.scan(tree, ScanOptions(pattern="ckpt_dir{rank}/test-{epoch}_{step}.partial.ckpt"))
    assert odd.slices == ()


# --- strategy files -------------------------------------------------------------------------------------------------


def test_strategy_files_beside_slices(tree):
    inventory = api.scan(tree)
    assert [file.rank for file in inventory.strategy_files] == list(range(8))
    first = inventory.strategy_files[0]
    assert first.path == "ckpt_dir0/strategy.ckpt"
    assert (first.stages, first.devices_per_stage) == ((0,), 8)
    assert first.digest == digest_file(tree / first.path).file
    assert {layout.parameter for layout in first.strategy.layouts} >= {"blocks.0.qkv"}


def test_equal_files_are_decoded_once_and_shared(tree, monkeypatch):
    decoded = []

    def counting(data, where):
        decoded.append(where)
        return strategy_files.decode_strategy(data, where)

    monkeypatch.setattr(reading_strategies, "decode_strategy", counting)
    data = (tree / "ckpt_dir0" / "strategy.ckpt").read_bytes()
    for rank in range(8):
        (tree / f"ckpt_dir{rank}" / "strategy.ckpt").write_bytes(data)
    strategy = strategy_files.decode_strategy(data, "x")
    again = Strategy((), strategy.save_count, strategy.layouts)
    (tree / "ckpt_dir3" / "strategy.ckpt").write_bytes(encode_strategy(again))
    (tree / "ckpt_dir4" / "strategy.ckpt").write_bytes(encode_strategy(again))
    inventory = api.scan(tree)
    assert len(decoded) == 2
    assert len({id(file.strategy) for file in inventory.strategy_files}) == 2


def test_names_that_mindformers_uses(tree):
    folder = tree / "ckpt_dir2"
    (folder / "strategy.ckpt").rename(folder / "ckpt_strategy_rank_2.ckpt")
    shutil.copyfile(folder / "ckpt_strategy_rank_2.ckpt", tree / "ckpt_dir3" / "ckpt_strategy_rank_2.ckpt")
    inventory = api.scan(tree)
    assert "ckpt_dir2/ckpt_strategy_rank_2.ckpt" in [file.path for file in inventory.strategy_files]
    assert [(note.path, note.reason) for note in inventory.notes] == [
        ("ckpt_dir3/ckpt_strategy_rank_2.ckpt", "the name says rank 2, the directory says rank 3")
    ]


def test_a_damaged_one_beside_slices_is_noted(tree):
    for name, content in (("strategy.ckpt", b""), ("strategy.json", b'{"current_stage":1}')):
        (tree / "ckpt_dir1" / name).write_bytes(content)
    inventory = api.scan(tree)
    assert 1 not in [file.rank for file in inventory.strategy_files]
    assert [note.path for note in inventory.notes] == ["ckpt_dir1/strategy.ckpt", "ckpt_dir1/strategy.json"]
    assert "no operator and no parameter" in inventory.notes[1].reason


def test_strategy_files_elsewhere(tree, tmp_path, monkeypatch):
    folder = tmp_path / "strategy"
    folder.mkdir()
    for rank in range(8):
        (tree / f"ckpt_dir{rank}" / "strategy.ckpt").rename(folder / f"ckpt_strategy_rank_{rank}.ckpt")
    (folder / "stage1.ckpt").write_bytes(encode_strategy(STAGE_1))
    named = [str(folder / "ckpt_strategy_rank_{rank}.ckpt"), str(folder / "stage1.ckpt")]
    inventory = api.scan(tree, ScanOptions(strategy=tuple(named)))
    assert [(file.rank, file.path.rpartition("/")[2]) for file in inventory.strategy_files] == [
        *((rank, f"ckpt_strategy_rank_{rank}.ckpt") for rank in range(8)),
        (4, "stage1.ckpt"),  # the first rank of stage 1
    ]
    monkeypatch.chdir(tmp_path)
    assert api.scan(tree, ScanOptions(strategy=("strategy/stage1.ckpt",))).strategy_files[0].strategy == STAGE_1
    (folder / "ckpt_strategy_rank_5.ckpt").write_bytes(b"junk")
    with pytest.raises(FormatError, match=r"ckpt_strategy_rank_5\.ckpt: no strategy file"):
        api.scan(tree, ScanOptions(strategy=tuple(named)))
    with pytest.raises(MissingInputError, match=r"--strategy none\.ckpt: no such file"):
        api.scan(tree, ScanOptions(strategy=("none.ckpt",)))
    with pytest.raises(UsageError, match=r"--strategy .*only \{rank\}"):
        api.scan(tree, ScanOptions(strategy=("strategy/{step}.ckpt",)))


def test_merged_strategies_are_taken_apart(tree, tmp_path):
    layouts = [Layout(f"{stage}-{name}", (2, 2), ((), (stage,))) for stage in (0, 1) for name in ("w", "b-c")]
    merged = Strategy((0, 1), 1, tuple(layouts))
    path = tmp_path / "merged.ckpt"
    path.write_bytes(encode_strategy(merged))
    found = [
        file for file in api.scan(tree, ScanOptions(strategy=(str(path),))).strategy_files if file.path == str(path)
    ]
    assert [(file.rank, file.stages) for file in found] == [(0, (0,)), (4, (1,))]
    assert found[1].strategy.layouts == (Layout("b-c", (2, 2), ((), (1,))), Layout("w", (2, 2), ((), (1,))))
    path.write_bytes(encode_strategy(replace(merged, layouts=(*layouts, Layout("2-w", (2, 2), ())))))
    (whole,) = [
        file for file in api.scan(tree, ScanOptions(strategy=(str(path),))).strategy_files if file.path == str(path)
    ]
    assert whole.stages == (0, 1)


@pytest.mark.mindspore
def test_strategies_that_mindspore_merged(fixture_tree, tmp_path):
    mindspore = pytest.importorskip("mindspore")
    tree = fixture_tree("dp2_mp2_pp2")
    (tmp_path / "one").mkdir()
    for rank in range(8):
        shutil.copyfile(tree / f"ckpt_dir{rank}" / "strategy.ckpt", tmp_path / "one" / f"strategy_{rank}.ckpt")
    mindspore.merge_pipeline_strategys(str(tmp_path / "one"), str(tmp_path / "merged.ckpt"))
    inventory = api.scan(tree, ScanOptions(strategy=(str(tmp_path / "merged.ckpt"),)))
    beside = {file.rank: file.strategy.layouts for file in inventory.strategy_files if "merged" not in file.path}
    merged = {file.rank: file.strategy.layouts for file in inventory.strategy_files if "merged" in file.path}
    assert merged == {rank: beside[rank] for rank in (0, 4)}
