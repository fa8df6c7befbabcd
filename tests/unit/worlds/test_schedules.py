import pytest

from ms_recover.worlds import schedules

SIZES = range(1, 18)


@pytest.mark.parametrize("size", SIZES)
def test_chunks_cover_everything_evenly(size):
    for count in (0, 1, size - 1, size, 1000):
        bounds = schedules.chunks(count, size)
        assert len(bounds) == size
        assert [number for start, stop in bounds for number in range(start, stop)] == list(range(count))
        assert max(b - a for a, b in bounds) - min(b - a for a, b in bounds) <= 1


def test_segments_cover_a_range():
    assert schedules.segments(3, 10, 4) == [(3, 7), (7, 10)]
    assert schedules.segments(3, 3, 4) == [(3, 3)]


@pytest.mark.parametrize("size", SIZES)
def test_the_tree_reaches_every_rank_once(size):
    for root in range(size):
        reached = [root]
        for rank in reached:
            reached += schedules.children(rank, size, root)
        assert sorted(reached) == list(range(size))
        assert schedules.parent(root, size, root) is None
        for rank in range(size):
            for child in schedules.children(rank, size, root):
                assert schedules.parent(child, size, root) == rank


@pytest.mark.parametrize("size", SIZES)
def test_every_rank_has_arrived_after_the_rounds_of_a_barrier(size):
    known = [{rank} for rank in range(size)]
    rounds = [list(schedules.barrier(rank, size)) for rank in range(size)]
    for number in range(len(rounds[0])):
        told = [(rounds[rank][number][0], set(known[rank])) for rank in range(size)]
        for rank, (to, what) in enumerate(told):
            assert rounds[to][number][1] == rank
            known[to] |= what
    assert all(len(heard) == size for heard in known)


@pytest.mark.parametrize("size", SIZES)
def test_ring_reduces_and_gathers(size):
    chunks = [[{(rank, chunk)} for chunk in range(size)] for rank in range(size)]
    steps = [[*schedules.ring(rank, size, 0), *schedules.ring(rank, size, 1)] for rank in range(size)]
    for number in range(len(steps[0])):
        sent = [set(chunks[rank][steps[rank][number][0]]) for rank in range(size)]
        for rank in range(size):
            left = (rank - 1) % size
            assert steps[left][number][0] == steps[rank][number][1]
            chunks[rank][steps[rank][number][1]] |= sent[left]
    assert all(chunk == {(rank, c) for rank in range(size)} for row in chunks for c, chunk in enumerate(row))
