"""Every kind of contradiction that a ``metadata.json`` may have, each as one change of a sound one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

NAME = "decoder.layers.0.mlp.linear_fc1.weight"
WHOLE = "decoder.layers.0.input_layernorm.weight"
FILE = "llama_tiny-model-0000000-0000008.safetensors"

Change = Callable[[dict[str, Any]], object]


def entry(value: dict[str, Any], name: str = NAME) -> dict[str, Any]:
    """Return the entry of a parameter."""
    found: dict[str, Any] = value["state_dict_metadata"][name]
    return found


def layout(value: dict[str, Any]) -> dict[str, Any]:
    """Return the layout of a parameter."""
    found: dict[str, Any] = entry(value)["layout"]
    return found


def shard(value: dict[str, Any], index: int = 0, name: str = NAME) -> list[dict[str, Any]]:
    """Return the files of a shard."""
    found: list[dict[str, Any]] = value["storage_data"][f"('{name}', ({index},))"]
    return found


def _rename(new: str, index: int = 0) -> Change:
    def change(value: dict[str, Any]) -> None:
        value["storage_data"][new] = value["storage_data"].pop(f"('{NAME}', ({index},))")

    return change


def _name_all(new: str) -> Change:
    def change(value: dict[str, Any]) -> None:
        for items in value["storage_data"].values():
            for item in items:
                if item["file_name"] == FILE:
                    item["file_name"] = new

    return change


def _rename_parameter(new: str) -> Change:
    def change(value: dict[str, Any]) -> None:
        value["state_dict_metadata"][new] = value["state_dict_metadata"].pop(NAME)

    return change


def _count_more(value: dict[str, Any]) -> None:
    for items in value["storage_data"].values():
        for item in items:
            item["file_name"] = item["file_name"].replace("-0000008.", "-0000016.")


CONTRADICTIONS: dict[str, tuple[Change, str]] = {
    "no state": (lambda v: v.pop("state_dict_metadata"), "no state_dict_metadata"),
    "no storage": (lambda v: v.pop("storage_data"), "no storage_data"),
    "empty": (lambda v: (v["state_dict_metadata"].clear(), v["storage_data"].clear()), "names no parameter"),
    "parameter without a name": (_rename_parameter(""), "no name of a parameter"),
    "parameter with a name that is too long": (_rename_parameter("w" * 4097), "no name of a parameter"),
    "entry is a list": (lambda v: v["state_dict_metadata"].update({NAME: []}), "no object"),
    "no layout": (lambda v: entry(v).pop("layout"), "no layout"),
    "layout null": (lambda v: entry(v).update(layout=None), "have no layout"),
    "dtype unknown": (lambda v: entry(v)["properties"].update(dtype="float33"), "float33"),
    "dtype no text": (lambda v: entry(v)["properties"].update(dtype=[]), "no type"),
    "replica_id short": (lambda v: entry(v)["properties"]["replica_id"].pop(), "replica_id"),
    "replica_id text": (lambda v: entry(v)["properties"].update(replica_id="0"), "replica_id"),
    "flag no flag": (lambda v: entry(v)["properties"].update(allow_to_save=1), "neither true nor false"),
    "shape does not divide": (lambda v: entry(v).update(global_shape=[33, 16]), "does not divide"),
    "shape of other length": (lambda v: entry(v).update(global_shape=[32]), "differ in length"),
    "shape zero": (lambda v: entry(v).update(global_shape=[0, 16]), "global_shape"),
    "shape negative": (lambda v: entry(v).update(global_shape=[-32, 16]), "global_shape"),
    "shape absurd": (lambda v: entry(v).update(global_shape=[1 << 40, 1 << 40]), "too many elements"),
    "shape true": (lambda v: entry(v).update(global_shape=[32, True]), "global_shape"),
    "pieces differ from layout": (lambda v: entry(v).update(axis_fragmentations=[4, 1]), "local_shape"),
    "device matrix too large": (lambda v: layout(v).update(device_matrix=[1 << 30, 1 << 30]), "rank_list"),
    "device matrix differs": (lambda v: layout(v).update(device_matrix=[4, 1]), "contradict layout"),
    "axis twice": (lambda v: layout(v).update(tensor_map=[0, 0]), "twice"),
    "axis outside": (lambda v: layout(v).update(tensor_map=[7, -1]), "does not have"),
    "axis -1 in a list": (lambda v: layout(v).update(tensor_map=[[0, -1], -1]), "neither"),
    "axes empty": (lambda v: layout(v).update(tensor_map=[[], -1]), "neither"),
    "tensor_map short": (lambda v: layout(v).update(tensor_map=[0]), "contradict layout"),
    "alias_name short": (lambda v: layout(v).update(alias_name=["a"]), "alias_name"),
    "alias_name twice": (lambda v: layout(v).update(alias_name=["a", "a"]), "twice"),
    "interleaved no flag": (lambda v: layout(v).update(interleaved_parallel=None), "interleaved"),
    "layout with a sixth member": (lambda v: layout(v).update(more=1), "'more'"),
    "rank_list short": (lambda v: layout(v)["rank_list"].pop(), "rank_list"),
    "rank_list shifted": (lambda v: layout(v).update(rank_list=[1, 2, 3, 4]), "pipeline stage"),
    "rank_list shuffled": (lambda v: layout(v).update(rank_list=[0, 2, 1, 3]), "pipeline stage"),
    "rank_list of another stage": (lambda v: layout(v).update(rank_list=[4, 5, 6, 7]), "contradicts layout"),
    "rank_list far out": (lambda v: layout(v).update(rank_list=[r + (1 << 40) for r in range(4)]), "pipeline stage"),
    "chunk outside": (lambda v: entry(v)["chunk"][1].update(global_offset=[2]), "outside the grid"),
    "chunk twice": (lambda v: entry(v)["chunk"][1].update(global_offset=[0]), "overlap"),
    "chunk missing": (lambda v: entry(v)["chunk"].pop(), "gap"),
    "chunk in elements": (lambda v: entry(v)["chunk"][1].update(global_offset=[16, 0]), "one index"),
    "chunk of another shape": (lambda v: entry(v)["chunk"][1].update(local_shape=[8, 16]), "local_shape"),
    "no chunk": (lambda v: entry(v).update(chunk=[]), "chunk"),
    "shard missing": (lambda v: v["storage_data"].pop(f"('{NAME}', (1,))"), "fragment 1"),
    "shard of no parameter": (_rename("('other', (0,))"), "'other'"),
    "shard outside": (_rename(f"('{NAME}', (9,))", 1), "fragment 1"),
    "shard id without a comma": (_rename(f"('{NAME}', (0))"), "shard id"),
    "shard id negative": (_rename(f"('{NAME}', (-1,))"), "shard id"),
    "shard id with a zero before it": (_rename(f"('{NAME}', (00,))"), "shard id"),
    "shard id of two numbers": (_rename(f"('{NAME}', (0, 0))"), "shard id"),
    "shard id that calls": (_rename("(__import__('os'), (0,))"), "shard id"),
    "shard id in other quotes": (_rename(f'("{NAME}", (0,))'), "shard id"),
    "shard id escaped": (_rename(r"('\x64ecoder', (0,))"), "shard id"),
    "shard without files": (lambda v: shard(v).clear(), "no list of files"),
    "file listed twice": (lambda v: shard(v).append(shard(v)[0]), "twice"),
    "file no text": (lambda v: shard(v)[0].update(file_name=7), "no file of an iteration"),
    "file above": (_name_all("../model-0000000-0000008.safetensors"), "no file of an iteration"),
    "file absolute": (_name_all("/tmp/model-0000000-0000008.safetensors"), "no file of an iteration"),
    "file in a directory": (_name_all("a/model-0000000-0000008.safetensors"), "no file of an iteration"),
    "file with a null": (_name_all("a\0-model-0000000-0000008.safetensors"), "no file of an iteration"),
    "file with a line feed": (_name_all("a\n-model-0000000-0000008.safetensors"), "no file of an iteration"),
    "file with an escape": (_name_all("\x1b[2J-model-0000000-0000008.safetensors"), "no file of an iteration"),
    "file of another grammar": (_name_all("model-0-8.safetensors"), "no file of an iteration"),
    "file of another prefix": (_name_all("x-model-0000000-0000008.safetensors"), "prefixes"),
    "file of another count": (_name_all("llama_tiny-model-0000000-0000016.safetensors"), "count 8 and 16"),
    "files of more ranks": (_count_more, "count 16 ranks, and it names 8"),
    "file of another index": (_name_all("llama_tiny-model-0000007-0000008.safetensors"), "rank"),
    "file of another kind": (_name_all("llama_tiny-opt-0000000-0000008.safetensors"), "model file and in an opt file"),
    "two ranks for a file": (lambda v: shard(v)[0].update(storage_rank=2), "twice"),
    "rank outside its group": (lambda v: shard(v)[0].update(storage_rank=1), "not in its rank_group"),
    "rank no number": (lambda v: shard(v)[0].update(storage_rank="0"), "no rank"),
    "rank absurd": (lambda v: shard(v)[0].update(storage_rank=1 << 62), "impossible"),
    "rank behind the last": (lambda v: shard(v)[0].update(storage_rank=1 << 24), "impossible"),
    "group behind the last": (lambda v: [item.update(rank_group=[0, 2, 1 << 24]) for item in shard(v)], "impossible"),
    "group empty": (lambda v: shard(v)[0].update(rank_group=[]), "empty"),
    "group not ascending": (lambda v: [item.update(rank_group=[2, 0]) for item in shard(v)], "ascending"),
    "group of other ranks": (lambda v: [item.update(rank_group=[0, 2, 3]) for item in shard(v)], "contradicts layout"),
    "group outside the stage": (lambda v: [item.update(rank_group=[0, 2, 5]) for item in shard(v)], "contradicts"),
    "groups differ": (lambda v: shard(v)[0].update(rank_group=[0, 2, 4]), "differ"),
    "groups not all stated": (lambda v: [item.pop("rank_group") for item in shard(v)], "of some shards"),
}
"""By name: a change of the metadata of ``dp2_mp2_pp2``, and a part of the reason that is given."""
