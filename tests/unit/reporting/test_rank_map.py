"""The picture of all ranks for a terminal."""

import pytest

from ms_recover.model.topology import Topology
from ms_recover.reporting.rank_map import (
    MOST_ROWS,
    SIGNS,
    coloured_signs,
    rank_map,
    states_of_inventory,
    worst,
)
from tests.support.inventories import OLDER, slice_file, tree


def hosts(world, ranks_per_host, form="node{}"):
    return Topology(("host",), (tuple(form.format(rank // ranks_per_host) for rank in range(world)),), "a hostfile")


def test_one_cell_a_rank_by_host():
    states = dict.fromkeys(range(8), "keep") | {3: "copy", 6: "unrecoverable"}
    assert rank_map(states, hosts(8, 4), title="Ranks at step 2_8").split("\n") == [
        "Ranks at step 2_8, by host (a hostfile):",
        "  node0 │■■■◆│   node1 │■■X■│",
        "  ■ keep 6   ◆ copy 1   X unrecoverable 1",
    ]


def test_without_hosts_cells_stand_in_the_order_of_ranks():
    states = dict.fromkeys(range(12), "sound") | {11: "missing"}
    assert rank_map(states).split("\n")[1] == "  rank 0 │■■■■■■■■ ■■■□│"


def test_hosts_that_share_ranks_out_of_order_keep_their_own():
    topology = Topology(("host",), (("b", "a", "b", "a"),), "x")
    states = {0: "sound", 1: "missing", 2: "damaged", 3: "sound"}
    assert rank_map(states, topology).split("\n")[1] == "  b │■▲│   a │□■│"


@pytest.mark.parametrize("width", [None, 40, 80, 200])
@pytest.mark.parametrize("placed", [True, False])
@pytest.mark.parametrize("world", [1, 8, 100, 1000, 10_240])
def test_every_world_fits_a_screen_and_no_bad_rank_is_folded_away(world, placed, width):
    states = dict.fromkeys(range(world), "keep") | {world // 2: "unrecoverable"}
    text = rank_map(states, hosts(world, 8) if placed else None, width)
    rows = [line for line in text.split("\n") if "│" in line]
    assert len(rows) <= MOST_ROWS
    assert len(text.split("\n")) <= 30
    assert sum(row.count("X") for row in rows) == 1
    assert all(len(row) <= (width or 80) for row in rows)
    assert "X unrecoverable 1" in text


def test_a_folded_world_names_the_hosts_that_are_not_well():
    states = dict.fromkeys(range(10_240), "keep") | dict.fromkeys(range(136, 144), "copy")
    text = rank_map(states, hosts(10_240, 8))
    assert "shows its worst rank" in text
    assert "◆ copy: node17, ranks 136-143" in text
    many = rank_map(dict.fromkeys(range(10_240), "keep") | dict.fromkeys(range(0, 800, 8), "copy"), hosts(10_240, 8))
    assert "and on 97 more hosts" in many


def test_ascii_draws_the_same_states_apart():
    states = dict(enumerate(SIGNS))
    text = rank_map(states, ascii_only=True, width=200)
    assert text.isascii()
    assert (
        len({SIGNS[state].ascii for state in ("keep", "copy", "compose", "missing", "damaged", "unrecoverable")}) == 6
    )


def test_names_of_hosts_are_short_and_act_on_no_terminal():
    name = "a\x1b[31m\u202e" + "x" * 60
    text = rank_map({0: "sound", 1: "sound"}, Topology(("host",), ((name, "b"),), "\x1b[2J"))
    assert "\x1b" not in text
    assert "\u202e" not in text
    assert max(map(len, text.split("\n"))) <= 80


def test_ranks_that_no_source_places_are_shown_all_the_same():
    assert "unknown │□│" in rank_map({0: "sound", 1: "sound", 2: "missing"}, hosts(2, 2))


def test_the_states_of_a_scan_are_those_of_its_newest_step():
    slices = [slice_file(0), slice_file(1, problem="cut off"), slice_file(2, OLDER), slice_file(0, OLDER)]
    found = states_of_inventory(tree(slices, {0: [0, 3]}))
    assert found == {0: "sound", 1: "damaged", 2: "missing", 3: "missing"}
    assert states_of_inventory(tree([], {0: [0]})) == {}


def test_the_worst_state_wins_and_every_sign_has_one_colour():
    assert worst(["keep", "copy", "unrecoverable"]) == "unrecoverable"
    assert worst(["sound", "missing"]) == "missing"
    assert coloured_signs()["■"] == "green"
