"""load_full of the folder that MindSpore's unified_safetensors writes: parts, a map of names, what no layout names."""

import json
import logging

import numpy as np
import pytest

from ms_recover import load_full
from ms_recover.errors import FormatError, MissingInputError, MsRecoverError, UsageError
from ms_recover.file_names import MERGED_INDEX, MERGED_REST
from ms_recover.formats.image import safetensors_image
from ms_recover.model.slices import Parameter

NUMBERS = np.random.default_rng(5)
PARTS = (
    {"a.weight": NUMBERS.random((4, 6), np.float32), "a.bias": NUMBERS.random((6,), np.float32)},
    {"b.weight": NUMBERS.random((3, 2), np.float32)},
)
REST = {"global_step": np.array([7], np.int32), "accu_grads.a.weight": NUMBERS.random((2, 6), np.float32)}
TYPES = {"float32": "Float32", "int32": "Int32"}


def write_file(path, arrays):
    parameters = [Parameter(name, TYPES[str(one.dtype)], one.shape, one.nbytes) for name, one in arrays.items()]
    image = safetensors_image(parameters, [("format", "ms")])
    data = bytearray(image.size)
    for offset, literal in image.literals:
        data[offset : offset + len(literal)] = literal
    for parameter, (piece,) in zip(image.parameters, image.contents, strict=True):
        data[piece.start : piece.end] = arrays[parameter.name].tobytes()
    path.write_bytes(bytes(data))


@pytest.fixture
def folder(tmp_path):
    for number, arrays in enumerate(PARTS):
        write_file(tmp_path / f"part{number}.safetensors", arrays)
    write_file(tmp_path / MERGED_REST, REST)
    write_map(tmp_path)
    return tmp_path


def write_map(folder, *, bare=False):
    names = {name: f"part{number}.safetensors" for number, arrays in enumerate(PARTS) for name in arrays}
    index = names if bare else {"metadata": {"total_size": 1}, "weight_map": names}
    (folder / MERGED_INDEX).write_text(json.dumps(index, indent=4))


@pytest.mark.parametrize("bare", [False, True])
@pytest.mark.parametrize("verify", [False, True])
def test_every_parameter_that_a_layout_names_is_there(folder, bare, verify, caplog):
    write_map(folder, bare=bare)
    caplog.set_level(logging.WARNING)
    with load_full(folder, verify=verify) as found:
        whole = {name: array for arrays in PARTS for name, array in arrays.items()}
        assert set(found) == {*whole, "global_step"}
        assert all(np.array_equal(found[name], array) for name, array in whole.items())
        assert found["global_step"].item() == 7
    assert "the index does not list 'accu_grads.a.weight': passed over" in caplog.text


def test_a_folder_without_the_other_parameters_is_whole(folder):
    (folder / MERGED_REST).unlink()
    assert set(load_full(folder)) == {name for arrays in PARTS for name in arrays}


def test_what_may_be_a_part_is_not_given(folder):
    with pytest.raises(UsageError, match=r"has no 'accu_grads.a.weight'"):
        load_full(folder, "accu_grads.a.weight")


def test_a_part_that_is_gone_costs_its_own_parameters(folder):
    (folder / "part1.safetensors").unlink()
    found = load_full(folder)
    assert np.array_equal(found["a.bias"], PARTS[0]["a.bias"])
    with pytest.raises(MsRecoverError, match=r"part1.safetensors: it is not there"):
        found["b.weight"]
    assert set(load_full(folder, "a.bias")) == {"a.bias"}


def test_parts_without_their_map_are_unfinished(folder):
    (folder / MERGED_INDEX).unlink()
    with pytest.raises(MissingInputError, match=r"holds .*\.safetensors, but no param_name_map.json"):
        load_full(folder)


@pytest.mark.parametrize(
    "text",
    ["", "[]", "{}", '{"weight_map": {}}', '{"a": 1}', '{"a": "../b"}', '{"weight_map": {"a": "x/y"}}', "{" * 9_999],
)
def test_a_damaged_map_is_refused(folder, text):
    (folder / MERGED_INDEX).write_text(text)
    with pytest.raises(FormatError, match=MERGED_INDEX):
        load_full(folder)


def test_two_checkpoints_in_one_folder_are_refused(folder):
    write_file(folder / "model.safetensors", PARTS[0])
    with pytest.raises(UsageError, match=r"holds param_name_map.json and model.safetensors"):
        load_full(folder)
