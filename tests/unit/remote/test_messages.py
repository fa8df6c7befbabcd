"""What client and server say, and what they refuse to hear."""

import json
import os
from dataclasses import replace

import numpy as np
import pytest

from ms_recover.errors import FormatError
from ms_recover.model.actions import FileState
from ms_recover.model.contents import Contents
from ms_recover.model.manifest import DIGEST, Digests
from ms_recover.model.options import ScanOptions
from ms_recover.model.steps import Step
from ms_recover.remote import messages
from ms_recover.remote.inventories import inventory_from_json, inventory_to_json
from ms_recover.remote.messages import RefusedError, Request, SliceRequest
from ms_recover.remote.served import ServedTree
from ms_recover.scanning.scan import scan
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.cuts import CutTensor, cut_layout, make_cut_tree
from tests.support.inventories import slice_file
from tests.support.mindformers_tree import make_mindformers_tree, write_health

STATE = FileState(100, 7)
CUT = {"w": CutTensor("Float32", np.zeros((8,), np.float32), cut_layout("w", (2, 2), (0,)))}
SOME = f"{DIGEST}:{'0123456789abcdef' * 2}"


def test_requests_are_read_as_they_were_asked():
    file = slice_file(3, mtime=7)
    assert messages.read_request(messages.ask_inventory()) == Request("inventory")
    assert messages.read_request(messages.ask_to_leave()) == Request("leave")
    wanted = messages.read_request(messages.ask_slice(file.path, STATE, 40))
    assert wanted == Request("slice", (SliceRequest(file.path, STATE, 40),))
    wanted = messages.read_request(messages.ask_slice(file.path, STATE, 40, 50))
    assert wanted == Request("slice", (SliceRequest(file.path, STATE, 40, 50),))
    digests = messages.read_request(messages.ask_digests([file, slice_file(4, mtime=7)]))
    assert [one.path for one in digests.slices] == [file.path, "ckpt_dir4/test-2_8.ckpt"]


@pytest.mark.parametrize(
    "change",
    [
        {"path": "../etc/passwd"},
        {"path": "/etc/passwd"},
        {"path": "a//b"},
        {"path": "a\0b"},
        {"path": 5},
        {"bytes": -1},
        {"bytes": True},
        {"bytes": 1 << 70},
        {"offset": 101},
        {"offset": -1},
        {"mtime_ns": "now"},
        {"ask": "everything"},
        {"ask": None},
        {"version": 2},
    ],
)
def test_requests_that_cannot_be_are_refused(change):
    told = json.loads(messages.ask_slice("a/b", STATE, 40))
    with pytest.raises(FormatError):
        messages.read_request(json.dumps({**told, **change}).encode())
    del told[next(iter(change))]
    with pytest.raises(FormatError):
        messages.read_request(json.dumps(told).encode())


@pytest.mark.parametrize("end", [39, 101, -1, "50"])
def test_an_end_before_the_offset_or_behind_the_file_is_refused(end):
    request = json.loads(messages.ask_slice("a/b", STATE, 40, 50))
    with pytest.raises(FormatError):
        messages.read_request(json.dumps({**request, "end": end}).encode())


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"\xff\xfe", b'{"ask":' * 9000, b'{"a":1,"a":2}', b'{"a":1.5}'])
def test_what_is_no_json_object_is_refused(data):
    with pytest.raises(FormatError):
        messages.read_request(data)


def test_contents_are_read_as_they_were_said():
    files = [slice_file(0), slice_file(1)]
    contents = Contents({files[0].path: Digests(SOME, (SOME,) * 4)}, {files[1].path: "cannot be read"})
    assert messages.read_contents(messages.say_contents(contents), "x", files) == contents
    assert messages.read_contents(messages.say_working(5), "x", files) == 5
    assert messages.read_mode(messages.say_mode(0o100640), "x") == 0o640
    with pytest.raises(RefusedError, match="because"):
        messages.read_mode(messages.say_refused("because"), "x")


@pytest.mark.parametrize(
    "told",
    [
        {},
        {"digests": {}, "problems": {}},
        {"digests": {"ckpt_dir0/test-2_8.ckpt": [SOME]}, "problems": {}},
        {"digests": {"ckpt_dir0/test-2_8.ckpt": ["xxh3_128:1"] * 5}, "problems": {}},
        {"digests": {"ckpt_dir0/test-2_8.ckpt": []}, "problems": {}},
        {"digests": [], "problems": {}},
        {"digests": {}, "problems": {"ckpt_dir0/test-2_8.ckpt": 1}},
        {"working": -1},
        {"mode": 0o4000},
    ],
)
def test_answers_that_cannot_be_are_refused(told):
    data = json.dumps(told).encode()
    with pytest.raises(FormatError):
        messages.read_contents(data, "x", [slice_file(0)])
    with pytest.raises(FormatError):
        messages.read_mode(data, "x")


def said(tree):
    """Return what a server would send of a tree, as plain JSON."""
    return json.loads(messages.say_inventory(ServedTree(str(tree), ScanOptions()).to_json()))


def heard(told, root="host:1"):
    data = json.dumps(told).encode()
    return messages.read_inventory(data, "host:1", lambda inner: inventory_from_json(inner, root))


def without_inodes(inventory):
    return replace(inventory, slices=tuple(replace(file, inode=None) for file in inventory.slices))


def test_slices_that_are_one_file_on_a_node_are_one_file_for_its_client(tmp_path):
    tree = make_tree(tmp_path / "tree")
    (tree / "ckpt_dir2" / "test-1_8.ckpt").unlink()
    os.link(tree / "ckpt_dir0" / "test-1_8.ckpt", tree / "ckpt_dir2" / "test-1_8.ckpt")
    one = {file.rank: file.inode for file in heard(said(tree), "a:1").slices}
    two = {file.rank: file.inode for file in heard(said(tree), "b:1").slices}
    assert one[0] == one[2]
    assert len({*one.values(), *two.values(), *(file.inode for file in scan(tree).slices)}) == 9


def test_inventories_are_read_as_they_were_found(tmp_path):
    tree = make_tree(tmp_path / "plain", crc=True, name="test_rank_{rank}-{step}.ckpt")
    save_manifests(tree)
    damaged = next((tree / "ckpt_dir3").glob("*.ckpt"))
    damaged.chmod(0o600)
    damaged.write_bytes(damaged.read_bytes()[:-3])
    (tree / "ckpt_dir2" / "group_info.pb").write_bytes(b"")
    (tree / "ckpt_dir1" / "test_rank_1-1_8.ckpt").unlink()
    assert without_inodes(heard(said(tree), str(tree))) == without_inodes(scan(tree))
    assert scan(tree).orphans
    cut = make_cut_tree(tmp_path / "cut", CUT, 4)
    found = heard(said(cut), str(cut))
    assert without_inodes(found) == without_inodes(scan(cut))
    assert found.strategy_files


@pytest.mark.parametrize(
    ("part", "change"),
    [
        ("slices", {"place": ["../", "/x"]}),
        ("slices", {"place": ["/ckpt_dir", "/x"]}),
        ("slices", {"place": []}),
        ("slices", {"place": ["a", "b"] * 50}),
        ("slices", {"rank": -1}),
        ("slices", {"rank": 1 << 30}),
        ("slices", {"rank": 77}),
        ("slices", {"epoch": -1}),
        ("slices", {"bytes": 1 << 64}),
        ("slices", {"parameters": 5}),
        ("slices", {"crc": 1 << 40}),
        ("slices", {"manifest": "{}"}),
        ("slices", {"problem": 5}),
        ("group_files", {"place": ["../", "/group_info.pb"]}),
        ("group_files", {"info": {"restore_ranks": [], "groups": []}}),
        ("group_files", {"info": {"restore_ranks": [1, 1], "groups": []}}),
        ("group_files", {"info": {"restore_ranks": [-1], "groups": []}}),
        ("strategy_files", {"digest": SOME}),
        ("strategy_files", {"rank": "0"}),
    ],
)
def test_inventories_that_cannot_be_are_refused(tmp_path, part, change):
    told = said(make_cut_tree(tmp_path / "cut", CUT, 4))
    told["inventory"][part][0].update(change)
    with pytest.raises(FormatError, match="host:1"):
        heard(told)


def test_more_that_cannot_be(tmp_path):
    told = said(make_tree(tmp_path / "tree"))
    for change in (
        {"parameters": [[["w", "Float32", [4], 15]]]},
        {"parameters": [[["w", "Float32", [-4], 16]]]},
        {"parameters": [[["w", "Float32", [4]]]]},
        {"slices": told["inventory"]["slices"] * 2},
        {"strategies": {SOME: "AAAA"}},
        {"strategies": {SOME: "not base64!"}},
        {"notes": [["one"]]},
        {"ranks": ["0"]},
    ):
        with pytest.raises(FormatError):
            heard({**told, "inventory": {**told["inventory"], **change}})
    with pytest.raises(FormatError, match="version"):
        heard({**told, "version": 9})


def test_equal_parameters_travel_once(tmp_path):
    inventory = scan(make_tree(tmp_path / "tree", data_parallel=4))
    assert len(inventory_to_json(inventory, {})["parameters"]) == 1


def test_records_of_mindformers_travel(fixtures, tmp_path):
    output = make_mindformers_tree(fixtures / "dp2_mp4", tmp_path)
    write_health(output / "health_ckpts.json", {"CKP_rank_0-2_77.ckpt": 1})
    (output / "checkpoint/rank_3/meta.json").write_text("{")
    found = scan(output)
    back = inventory_from_json(json.loads(json.dumps(inventory_to_json(found, {}))), "there:1")
    assert back.meta_files == found.meta_files
    assert [(one.prefix, one.step) for one in back.unhealthy] == [("CKP", Step(2, 77))]
    assert back.unhealthy[0].path == "there:1: health_ckpts.json"
    sent = inventory_to_json(found, {})
    for place in (["../rank_", "/meta.json"], ["/rank_", "/meta.json"]):
        sent["meta_files"][0]["place"] = place
        with pytest.raises(ValueError, match="matching regex"):
            inventory_from_json(json.loads(json.dumps(sent)), "there:1")
