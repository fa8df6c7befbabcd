"""Paths in an inventory that another node sends: one that leads elsewhere leaves that node out, and no other."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ms_recover.model.options import DEFAULT_SCAN
from ms_recover.model.steps import Step
from ms_recover.serving.tree import ServedTree
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.command_line import in_this_process
from tests.support.damage import STRUCK, struck_layout_bytes
from tests.support.fault_proxy import FaultProxy, reply
from tests.support.iteration_trees import unpack
from tests.support.serving import serving, split

NAME = "test-1_8.ckpt"
Inventory = dict[str, Any]


def rank_list(path: str) -> Callable[[Inventory], None]:
    def change(sent: Inventory) -> None:
        sent["group_files"][0]["path"] = path

    return change


def rank_list_at(*place: str) -> Callable[[Inventory], None]:
    def change(sent: Inventory) -> None:
        file = sent["group_files"][0]
        file["place"], file["path"] = list(place), str(file["rank"]).join(place)

    return change


def strategy_file(path: str) -> Callable[[Inventory], None]:
    def change(sent: Inventory) -> None:
        sent["strategy_files"][0]["path"] = path

    return change


def meta_file(*place: str) -> Callable[[Inventory], None]:
    def change(sent: Inventory) -> None:
        row = {"rank": 1, "place": list(place), "epoch": 1, "step": 8, "file": NAME, "prefix": "test", "problem": None}
        sent["meta_files"] = [row]

    return change


def slice_at(*place: str) -> Callable[[Inventory], None]:
    def change(sent: Inventory) -> None:
        sent["slices"][0]["place"] = list(place)

    return change


LIES = {
    "a rank list with an absolute path": rank_list("/etc/group_info.pb"),
    "a rank list above the root": rank_list_at("../../escape", "/group_info.pb"),
    "a rank list in another rank's directory": rank_list("ckpt_dir7/group_info.pb"),
    "a rank list under another name": rank_list_at("ckpt_dir", "/x.ckpt"),
    "a rank list with a null character": rank_list_at("ckpt_dir", "/\0/group_info.pb"),
    "a strategy file above the root": strategy_file("../../escape/strategy.ckpt"),
    "a strategy file with half a character": strategy_file("ckpt_dir1/\ud800/strategy.ckpt"),
    "a strategy file with an absolute path out of the system": strategy_file("/etc/../../strategy.ckpt"),
    "a meta.json above the root": meta_file("../../escape", "/meta.json"),
    "a meta.json under another name": meta_file("ckpt_dir", "/x.ckpt"),
    "a slice above the root": slice_at("../../escape", "/test-1_8.ckpt"),
    "a slice with half a character": slice_at("ckpt_dir", "/\udfff-1_8.ckpt"),
    "a slice with a path longer than any": slice_at("d/" * 3000 + "ckpt_dir", "/test-1_8.ckpt"),
}


def inventory_of(tree: Path) -> Inventory:
    """Return what an honest node says of its tree."""
    sent: Inventory = json.loads(ServedTree(tree, DEFAULT_SCAN).encoded(lambda: False))
    return sent


def answering(data: bytes) -> Callable[[bytes], bytes | None]:
    return lambda head: reply(200, data, X_Ms_Recover="1") if b"/v1/inventory" in head else None


@pytest.fixture
def nodes(tmp_path: Path) -> tuple[Path, ...]:
    """Three ranks that hold the same: a node that lost its own, and two nodes."""
    tree = make_tree(tmp_path / "whole", data_parallel=3, model_parallel=1, steps=[Step(1, 8)], parameters=STRUCK)
    save_manifests(tree)
    for path in tree.glob("*/group_info.pb"):
        path.with_name("strategy.ckpt").write_bytes(struck_layout_bytes(3, 1))
    made: tuple[Path, ...] = split(tree, tmp_path, here=(), there=(1,), other=(2,))
    return made


def test_a_node_whose_paths_lead_elsewhere_is_left_out_and_the_others_go_on(nodes: tuple[Path, ...]) -> None:
    here, there, other = nodes
    with serving(there, other) as [behind, honest], FaultProxy(behind.port) as liar:
        for what, lie in LIES.items():
            sent = inventory_of(there)
            lie(sent["inventory"])
            liar.answer = answering(json.dumps(sent).encode())
            alone = in_this_process("plan", here, "--from", liar.address, "--ranks", "0")
            assert alone.code == 3, what
            assert f"{liar.address} sent an invalid inventory" in alone.err, what
            options = ["--from", liar.address, "--from", honest.address, "--ranks", "0"]
            planned = in_this_process("plan", here, *options)
            assert planned.code == 0, (what, planned.out, planned.err)
            assert "it is left out" in planned.out, what
            applied = in_this_process("apply", here, *options)
            assert applied.code == 0, (what, applied.out, applied.err)
            [path] = here.rglob(NAME)
            assert path == here / "ckpt_dir0" / NAME
            assert not list(here.parent.rglob("escape"))
            for written in (here / "ckpt_dir0").iterdir():
                written.unlink()
            (here / "ckpt_dir0").rmdir()


def test_where_a_node_is_left_out_only_ranks_with_files_here_are_recovered(nodes: tuple[Path, ...]) -> None:
    here, there, other = nodes
    with serving(there, other) as [behind, honest], FaultProxy(behind.port) as liar:
        sent = inventory_of(there)
        LIES["a slice above the root"](sent["inventory"])
        liar.answer = answering(json.dumps(sent).encode())
        done = in_this_process("apply", here, "--from", liar.address, "--from", honest.address, "--world-size", "3")
        assert done.code == 2  # none is known to live here: rank 1 may be the other node's
        assert "--ranks" in done.err
        assert list(here.iterdir()) == []


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("directory", "../../escape/iteration_00000200"),
        ("directory", "iteration_00000100"),
        ("metadata", "/etc/metadata.json"),
        ("metadata", "../../escape/metadata.json"),
        ("common", "iteration_00000200/x.ckpt"),
        ("tracker", "../latest_checkpointed_iteration.txt"),
        ("tracker", "iteration_00000200/model-0000000-0000008.safetensors"),
    ],
)
def test_documents_lie_in_the_directories_of_their_iterations(key: str, value: str, tmp_path: Path) -> None:
    there, here = unpack("dp2_mp2_pp2", tmp_path / "there", 200), tmp_path / "here"
    here.mkdir()
    with serving(there) as [behind], FaultProxy(behind.port) as liar:
        sent = inventory_of(there)
        documents = sent["inventory"]["documents"]
        if key == "directory":
            documents["iterations"][0]["directory"] = value
        elif key == "tracker":
            documents["tracker"]["path"] = value
        else:
            documents["iterations"][0][key]["path"] = value
        liar.answer = answering(json.dumps(sent).encode())
        planned = in_this_process("plan", here, "--from", liar.address, "--ranks", "0-7")
        assert planned.code == 3
        assert "sent an invalid inventory" in planned.err
