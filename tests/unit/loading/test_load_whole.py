"""load_full of checkpoints that are whole already: one file, or pieces and their index."""

import json
import logging
import os
import shutil
import tempfile
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from ms_recover import api, load_full
from ms_recover.errors import (
    FormatError,
    MissingInputError,
    UnrecoverableError,
    UsageError,
    VerificationError,
)
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.image import safetensors_image
from ms_recover.model.reshard import ReshardOptions
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step
from tests.support.cuts import cut_layout, fill
from tests.support.reshard import COUNTER, Job, flip_parameter, make_job_tree
from tests.support.unprivileged import NOBODY

SHAPES = {"rows": (16, 12), "columns": (8, 24), "norm": (8,)}
EACH = 16 * 12 * 4
"""Bytes of the largest; with pieces of so many each of the two large ones has a file, and the last both small ones."""


@pytest.fixture(scope="module")
def arrays():
    numbers = np.random.default_rng(3)
    return {name: numbers.random(shape, np.float32) for name, shape in SHAPES.items()} | {COUNTER: np.int8(8)}


@pytest.fixture(scope="module")
def tree(tmp_path_factory, arrays):
    cuts = {"rows": ((0,), ()), "columns": ((), (0,)), "norm": ((),)}
    job = Job(4, [{name: cut_layout(name, (2, 2), *axes) for name, axes in cuts.items()}])
    return make_job_tree(tmp_path_factory.mktemp("tree") / "source", job, arrays, manifests=True)


def write(tree, folder, form="safetensors", size=EACH):
    wanted = ReshardOptions(full=True, shard_size=size, form=form)
    api.reshard(api.plan_reshard(api.scan(tree), folder, wanted), verify=False)
    return folder


@pytest.fixture
def pieces(tree, tmp_path):
    folder = write(tree, tmp_path / "whole")
    assert {path.name for path in folder.glob("model*.safetensors")} == {
        f"model-0000{number}-of-00003.safetensors" for number in (1, 2, 3)
    }
    return folder


def places(folder):
    return json.loads((folder / "model.safetensors.index.json").read_text())["weight_map"]


def change_index(folder, **files):
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"metadata": {"total_size": 1.5e3}, "weight_map": {**places(folder), **files}}))


def without_manifests(folder):
    for path in folder.glob(f"*{MANIFEST_SUFFIX}"):
        path.unlink()


@pytest.mark.parametrize("form", ["ckpt", "safetensors"])
@pytest.mark.parametrize("size", [0, EACH])
@pytest.mark.parametrize("verify", [False, True])
def test_what_reshard_writes_whole_is_loaded_like_the_tree(tree, tmp_path, arrays, caplog, form, size, verify):
    folder = write(tree, tmp_path / "whole", form, size)
    with load_full(tree) as slices, load_full(folder, verify=verify) as found:
        assert (set(found), found.step, found.missing) == (set(slices), Step(1, 8), {})
        assert form == "safetensors" or list(found) == list(slices)  # that format has an order of its own
        assert repr(found) == f"<4 whole parameters of step 1_8 of {folder}>"
        for name, array in arrays.items():
            assert (found.dtype(name), found.shape(name)) == (slices.dtype(name), slices.shape(name))
            assert found[name].tobytes() == array.tobytes()
    assert not caplog.messages


def test_nothing_is_read_until_it_is_asked_for_and_no_file_without_need(pieces, arrays, monkeypatch):
    (pieces / places(pieces)["rows"]).unlink()
    read, preadv = [], os.preadv
    monkeypatch.setattr(os, "preadv", lambda *args: read.append(preadv(*args)) or read[-1])
    with load_full(pieces, names=["norm", "columns"]) as found:
        assert list(found) == ["norm", "columns"]
        assert not found.missing
        assert not read
        assert found["norm"].tobytes() == arrays["norm"].tobytes()
        assert sum(read) == arrays["norm"].nbytes


def test_a_plain_folder_of_safetensors_is_loaded(tmp_path, caplog):
    """As tools of Hugging Face write it: no manifests, another order of names, bfloat16."""
    for name, dtype, size in (("b", "BFloat16", 2), ("a", "Float32", 4)):
        listed = [Parameter(f"{name}.weight", dtype, (3,), 3 * size)]
        image = safetensors_image(listed, [("format", "pt")])
        values = np.array([1, -2, 3], np.float32)
        data = values.tobytes() if size == 4 else values.view(np.uint16)[1::2].tobytes()
        (tmp_path / f"model-{name}.safetensors").write_bytes(fill(image, {f"{name}.weight": data}))
    index = {"metadata": {"total_size": 18.0}, "weight_map": {f"{x}.weight": f"model-{x}.safetensors" for x in "ba"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    with load_full(str(tmp_path)) as found:
        assert {name: found[name].astype(np.float32).tolist() for name in found} == {
            "a.weight": [1, -2, 3],
            "b.weight": [1, -2, 3],
        }
        assert (found.step, found.dtype("b.weight")) == (None, "BFloat16")
        assert repr(found) == f"<2 whole parameters of {tmp_path}>"
        with pytest.raises(KeyError, match="no such parameter in /"):
            found["c"]
    assert len(caplog.messages) == 1
    assert "2 of 2 files have no manifest" in caplog.text
    with pytest.raises(UsageError, match="nothing states of which step"):
        load_full(tmp_path, step="1_8")


@pytest.mark.parametrize("keep", [True, False])
def test_what_lies_in_a_piece_that_is_gone_is_missing(pieces, arrays, caplog, keep):
    gone = pieces / places(pieces)["rows"]
    gone.unlink()
    if not keep:
        without_manifests(pieces)
    with load_full(pieces) as found:
        assert set(found) == set(arrays)
        assert set(found.missing) == {"rows"}
        assert found["columns"].tobytes() == arrays["columns"].tobytes()
        region = r"region \[0:16, 0:12\], 768 bytes \(" if keep else ""
        with pytest.raises(UnrecoverableError, match=rf"'rows': {region}{gone.name}: it is not there\)?; bring that"):
            found["rows"]
        if keep:
            assert found.shape("rows") == (16, 12)
        else:
            with pytest.raises(UnrecoverableError, match="it is not there"):
                found.shape("rows")
    assert f"{pieces}: 'rows' cannot be had: {gone.name}: it is not there" in caplog.messages


def cut_off(path):
    os.truncate(path, path.stat().st_size - 1)


@pytest.mark.parametrize(
    ("damage", "said"),
    [
        (cut_off, "it has .* bytes, its manifest says|contents end behind the end of the file"),
        (lambda path: path.write_bytes(b""), "the file is empty"),
        (lambda path: (path.unlink(), path.mkdir()), "it is not there"),
        (lambda path: (path.parent / (path.name + MANIFEST_SUFFIX)).write_text("{"), "its manifest"),
    ],
)
def test_of_a_piece_that_is_damaged_nothing_is_taken(pieces, arrays, damage, said):
    damage(pieces / places(pieces)["rows"])
    with load_full(pieces) as found:
        assert set(found.missing) == {"rows"}
        with pytest.raises(UnrecoverableError, match=said):
            found["rows"]
        assert found["norm"].tobytes() == arrays["norm"].tobytes()


def test_other_contents_than_the_manifest_says_are_never_given(pieces, arrays):
    flip_parameter(pieces / places(pieces)["norm"], "norm")
    with load_full(pieces) as found:
        with pytest.raises(VerificationError, match="holds other contents of 'norm' than its manifest"):
            found["norm"]
        assert found["rows"].tobytes() == arrays["rows"].tobytes()
    with load_full(pieces, verify=True) as found:
        assert set(found.missing) == {"norm"}
        assert found[COUNTER].tobytes() == arrays[COUNTER].tobytes()


def test_a_file_that_changes_behind_the_opening_is_noticed(pieces):
    without_manifests(pieces)
    with load_full(pieces) as found:
        path = pieces / places(pieces)["rows"]
        path.write_bytes(path.read_bytes())
        with pytest.raises(VerificationError, match="chang"):
            found["rows"]


@pytest.mark.parametrize(
    ("damage", "error", "said"),
    [
        (cut_off, FormatError, r"model.ckpt: .*, so nothing was loaded; bring that file back"),
        (lambda path: path.with_name("model.safetensors").touch(), UsageError, "nothing says which of them counts"),
    ],
)
def test_one_file_that_cannot_be_used_is_an_error(tree, tmp_path, damage, error, said):
    folder = write(tree, tmp_path / "whole", "ckpt", 0)
    damage(folder / "model.ckpt")
    with pytest.raises(error, match=said):
        load_full(folder)


@contextmanager
def without_rights():
    root = os.geteuid() == 0
    if root:
        os.seteuid(NOBODY)
    try:
        yield
    finally:
        if root:
            os.seteuid(0)


def test_files_that_may_not_be_read_are_named_with_the_user(tree, arrays, caplog):
    with tempfile.TemporaryDirectory() as name:  # below folders that everybody may enter
        os.chmod(name, 0o755)
        one, pieces = write(tree, Path(name) / "one", "ckpt", 0), write(tree, Path(name) / "pieces")
        for path in (*one.iterdir(), *pieces.iterdir()):
            path.chmod(0o644)
        for path in (one / "model.ckpt", pieces / places(pieces)["rows"]):
            path.chmod(0)
        with without_rights():
            with pytest.raises(PermissionError, match=r"model.ckpt: permission denied for user .*; check who owns it"):
                load_full(one)
            with load_full(pieces) as found:
                assert found["norm"].tobytes() == arrays["norm"].tobytes()
                with pytest.raises(UnrecoverableError, match="permission denied for user"):
                    found["rows"]
    assert [text for text in caplog.messages if "have no manifest" in text] == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("{", "it is cut or damaged"),
        ("[]", "it is not a JSON object"),
        ('{"weight_map": {}}', "it has no weight_map"),
        ('{"weight_map": {"a": "../x"}}', "'a' should lie in '../x', which is no name of a file"),
        ('{"weight_map": {"a": 5}}', "'a' should lie in '5'"),
        ('{"weight_map": {"": "x"}}', "'' is no name of a parameter"),
        ('{"weight_map": {"a": "x", "a": "y"}}', "'a' occurs twice"),
        ('{"weight_map": [' + "[" * 2000, "too many entries"),
    ],
)
def test_an_index_that_is_damaged_is_refused(tmp_path, text, said):
    (tmp_path / "model.safetensors.index.json").write_text(text)
    with pytest.raises(FormatError, match=rf"model.safetensors.index.json: .*{said}"):
        load_full(tmp_path)


def test_an_index_and_files_that_contradict_each_other(pieces, caplog):
    change_index(pieces, rows=places(pieces)["norm"])
    with load_full(pieces) as found, pytest.raises(UnrecoverableError, match="does not hold it, although the index"):
        found["rows"]
    files = places(pieces)
    del files["norm"]
    (pieces / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with load_full(pieces) as found:
        assert "norm" not in found
    assert f"{pieces}: the index does not list 'norm': passed over" in caplog.messages


@pytest.mark.parametrize("size", [0, EACH])
def test_what_was_written_partly_is_loaded_and_says_so(tree, tmp_path, arrays, caplog, size):
    left = tmp_path / "tree"
    shutil.copytree(tree, left)
    for rank in (1, 3):
        shutil.rmtree(left / f"ckpt_dir{rank}")
    wanted = ReshardOptions(full=True, shard_size=size, form="safetensors")
    api.reshard(api.plan_reshard(api.scan(left), tmp_path / "whole", wanted), verify=False, partial=True)
    with load_full(tmp_path / "whole") as found:
        assert {name: value.tobytes() for name, value in found.items()} == {
            name: arrays[name].tobytes() for name in ("norm", COUNTER)
        }
    assert (
        f"{tmp_path / 'whole'}: it is partial: nobody held the other parameters when it was written" in caplog.messages
    )


def test_pieces_without_their_index_are_an_unfinished_checkpoint(pieces):
    (pieces / "model.safetensors.index.json").unlink()
    with pytest.raises(MissingInputError, match=r"but no model.safetensors.index.json, .* run recover-ckpt reshard"):
        load_full(pieces)


def test_pieces_of_two_checkpoints_are_refused(pieces):
    path = pieces / (places(pieces)["norm"] + MANIFEST_SUFFIX)
    path.write_text(path.read_text().replace('"step": 8', '"step": 9'))
    with pytest.raises(VerificationError, match=r"files of several checkpoints, .* step 1_8, .* 1_9"):
        load_full(pieces)


@pytest.mark.parametrize(
    ("options", "error", "said"),
    [
        ({"step": "1_9"}, MissingInputError, "is of step 1_8, and holds nothing of step 1_9"),
        ({"names": ["cols"]}, UsageError, "has no 'cols'; it has 'columns', 'global_step'"),
        ({"pattern": "rank_{rank}/{step}"}, UsageError, "holds whole parameters, and pattern, group_info"),
    ],
)
def test_arguments_that_cannot_be_meant(pieces, options, error, said):
    with pytest.raises(error, match=said):
        load_full(pieces, **options)


def test_slices_of_ranks_go_before_whole_files_beside_them_and_that_is_said(tree, tmp_path, caplog):
    write(tree, tmp_path / "both")
    (tmp_path / "both" / "ckpt_dir0").symlink_to(tree / "ckpt_dir0")
    for rank in (1, 2, 3):
        (tmp_path / "both" / f"ckpt_dir{rank}").symlink_to(tree / f"ckpt_dir{rank}")
    caplog.set_level(logging.WARNING)
    with load_full(tmp_path / "both") as found:
        assert len(found) == 4
    assert "the whole parameters in it are passed over" in caplog.text
