"""How calls are put together into tasks."""

from concurrent.futures import Future

from ms_recover.engine.dask_calls import MOST_CALLS, Call, Seat, Team


def call(progress=None):
    return Call(Future(), print, (), None, progress)


def team(calls, **threads):
    made = Team(None, {address: Seat(count) for address, count in threads.items()})
    made.waiting.extend(call() for _ in range(calls))
    return made


def test_many_calls_go_together_and_the_last_ones_alone():
    many = team(10_240, a=2, b=2)
    sizes = []
    while many.waiting:
        sizes.append(len(many.take()))
    assert sizes[0] == MOST_CALLS
    assert sizes[-1] == 1
    assert sizes == sorted(sizes, reverse=True)
    assert sum(sizes) == 10_240
    assert len(sizes) < 300


def test_the_worker_with_most_room_comes_next_and_a_full_one_never():
    some = team(3, a=1, b=2)
    assert some.next_seat() == "b"
    some.seats["b"].chunks |= {1, 2, 3}
    assert some.next_seat() == "a"
    some.seats["a"].chunks |= {4, 5}
    assert some.next_seat() == "b"
    some.seats["b"].chunks.add(6)
    assert some.next_seat() is None
    assert team(0, a=1).next_seat() is None
    assert team(1).next_seat() is None


def test_bytes_are_counted_once_though_a_call_begins_anew():
    seen = []
    one = call(seen.append)
    for total in (5, 9, 0, 4, 9, 12):
        one.count(total)
    assert seen == [5, 4, 3]
