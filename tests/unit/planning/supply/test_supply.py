"""What the slices of a step can give, as a whole."""

from dataclasses import replace

import pytest

from tests.unit.planning.supply.test_parameters import CUT, SHAPES, file_of, of, supply_of_slices

COUNTERS = {"global_step": ()}


@pytest.mark.parametrize(
    ("shapes", "few"),
    [
        (SHAPES, False),
        ({**SHAPES, "local": (20,)}, True),
        ({"w": (2, 3), "local": (6,)}, False),
        ({"w": (2, 3), "local": (7,)}, True),
    ],
)
def test_a_strategy_file_that_names_less_than_half_of_the_bytes_is_of_another_network(shapes, few):
    slices = [file_of(rank, shapes) for rank in range(4)]
    assert supply_of_slices(slices).names_too_few(0) == few


def test_of_dealt_slices_the_list_of_all_counts():
    """Most of them may have counters alone, which no strategy file names."""
    whole = replace(CUT, device_matrix=(4,), tensor_map=((), ()))
    slices = [file_of(0, {"w": (2, 3), **COUNTERS}), *(file_of(rank, COUNTERS) for rank in (1, 2, 3))]
    assert not supply_of_slices(slices, [whole], stages=(0,)).names_too_few(0)


@pytest.mark.parametrize(("name", "few"), [("w", False), ("local", True)])
def test_without_a_slice_the_list_that_one_had_counts(name, few):
    supply = supply_of_slices([file_of(rank, SHAPES) for rank in (2, 3)])
    assert supply.names_too_few(0, [of(name)]) == few
    assert supply.names_too_few(0, [of("w")]) is False
    assert supply.names_too_few(0, [of("w"), of("local", (6,))]) is False
    assert supply.names_too_few(0, [of("w"), of("local", (7,))]) is True


def test_who_gives_a_parameter_or_why_nobody_does():
    supply = supply_of_slices([file_of(rank, SHAPES) for rank in (1, 2, 3)])
    assert supply.who(0, of("bias")).ranks == (1,)
    lost = supply.who(0, of("w"))
    assert (lost.ranks, [one.reason for one in lost.missing]) == ((), ["no sound slice has it"])


def test_the_ranks_of_a_group_with_a_sound_slice_can_be_copied():
    slices = [file_of(rank, SHAPES) for rank in (0, 1, 3)]
    pairs = {rank: [rank % 2, rank % 2 + 2] for rank in range(4)}
    supply = supply_of_slices(slices, stages=(), lists=pairs)
    assert [supply.copies(rank) for rank in range(4)] == [(0,), (1, 3), (0,), (1, 3)]
    assert supply_of_slices(slices).copies(0) == ()
