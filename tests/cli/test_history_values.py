"""recover-ckpt history --read: values that are no finite numbers."""

import struct

import pytest

from ms_recover.execution.rank_lists import write_group_info
from ms_recover.testing.trees import record, save_manifests

COUNT = 20_000


def write(tree, change=lambda rank, step, name, values: None, *, steps=8, dtype="Float32", code="f", finish=True):
    """Write two replicas of a tree in which every value changes with the step."""
    for rank in range(2):
        folder = tree / f"rank_{rank}"
        folder.mkdir(parents=True)
        write_group_info(folder / "group_info.pb", [0, 1])
        for step in range(1, steps + 1):
            data = b""
            for name in ("w", "bias"):
                values = [float(step)] * COUNT
                change(rank, step, name, values)
                data += record(name, struct.pack(f"<{COUNT}{code}", *values), [COUNT], dtype)
            (folder / f"net-1_{step}.ckpt").write_bytes(data)
    if finish:
        save_manifests(tree)
    return tree


def read(recover_ckpt, tree, *options):
    done = recover_ckpt("history", tree, "--read", "--json", *options)
    rows = [(one["kind"], one["parameter"], one["first"]["step"], one["ranks"]) for one in done.json["values"]]
    return done, rows


@pytest.mark.parametrize(("dtype", "code"), [("Float32", "f"), ("Float16", "e"), ("Float64", "d")])
def test_nan_and_inf_are_named_with_step_parameter_rank_and_number(tmp_path, recover_ckpt, dtype, code):
    def change(rank, step, name, values):
        if name == "w" and step >= 5:
            values[7] = values[COUNT - 1] = float("nan")
        if name == "bias" and step == 6:
            values[0] = float("-inf")

    done, rows = read(recover_ckpt, write(tmp_path / "tree", change, dtype=dtype, code=code))
    assert rows == [("nan", "w", 5, [0, 1]), ("inf", "bias", 6, [0, 1])]
    assert [one["count"] for one in done.json["values"]] == [2, 1]
    assert [one["steps"] for one in done.json["values"]] == [4, 1]
    assert (done.code, done.json["ok"]) == (5, False)
    assert done.json["clean"]["step"] == 8  # replicas agree


def test_equal_contents_are_read_once(tmp_path, recover_ckpt):
    done, rows = read(recover_ckpt, write(tmp_path / "tree"))
    assert (done.code, rows) == (0, [])
    assert done.json["read_bytes"] == 8 * 4 * COUNT  # both parameters are equal, and both ranks
    done, _ = read(recover_ckpt, tmp_path / "tree", "--last", "3")
    assert done.json["read_bytes"] == 3 * 4 * COUNT


def test_what_became_all_zero_is_told_from_what_always_was(tmp_path, recover_ckpt):
    def change(rank, step, name, values):
        if (name == "w" and step >= 6) or name == "bias":
            values[:] = [0.0] * COUNT

    done, rows = read(recover_ckpt, write(tmp_path / "tree", change))
    assert (done.code, rows, done.json["zeros"]) == (0, [("zero", "w", 6, [0, 1])], ["bias"])


def test_damage_on_the_disk_is_no_value_of_the_training(tmp_path, recover_ckpt):
    tree = write(tmp_path / "tree")
    for rank, value in ((0, "nan"), (1, "inf")):
        path = tree / f"rank_{rank}" / f"net-1_{4 + rank}.ckpt"
        data = bytearray(path.read_bytes())
        struct.pack_into("<f", data, 1000, float(value))
        path.write_bytes(data)
    done, rows = read(recover_ckpt, tree)
    assert rows == [("damaged", "w", 4, [0])]  # what rank 1 should hold is read from rank 0
    assert done.code == 5


def test_a_slice_that_cannot_be_read_is_said_and_its_replica_read(tmp_path, recover_ckpt):
    tree = write(tmp_path / "tree", lambda rank, step, name, values: values.__setitem__(0, float("nan")))
    (tree / "rank_0" / "net-1_3.ckpt").write_bytes(b"")
    done, rows = read(recover_ckpt, tree)
    assert [row[:3] for row in rows] == [("nan", "bias", 1), ("nan", "w", 1)]
    assert [one["steps"] for one in done.json["values"]] == [8, 8]
    assert "rank_0/net-1_3.ckpt" in done.json["unread"][0]
    assert "Not judged: rank_0/net-1_3.ckpt" in recover_ckpt("history", tree, "--read").out


def test_last_without_read_is_refused(tmp_path, recover_ckpt):
    assert recover_ckpt("history", tmp_path, "--last", "3").code == 2
