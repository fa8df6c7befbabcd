"""The order of a training step's operations."""

import random

import pytest

from ms_recover.splitting.training.schedule import DEPTH, Op, Schedule, order_of, slot_of


def finish(schedule, holders, drawn):
    """Let devices answer in random order, each its own oldest operation first; return the operations by device."""
    queues = {device: [] for device in holders}
    done = {device: [] for device in holders}
    while not schedule.finished:
        for device, op in schedule.assign(holders):
            queues[device].append(op)
        assert all(len(queue) <= DEPTH for queue in queues.values())
        busy = [device for device, queue in queues.items() if queue]
        assert busy, "no device works, and the step is not done"
        device = drawn.choice(busy)
        op = queues[device].pop(0)
        schedule.done(device, op)
        done[device].append(op)
    return done


@pytest.mark.parametrize("parts", [2, 3, 4])
@pytest.mark.parametrize("chunks", [1, 2, 5, 16])
def test_every_chunk_goes_forward_and_back_in_order_with_few_activations(parts, chunks):
    for seed in range(20):
        done = finish(Schedule(parts, range(chunks)), {part: [part] for part in range(parts)}, random.Random(seed))
        for part, ops in done.items():
            assert ops == list(order_of(part, parts, range(chunks)))
            for kind in ("forward", "backward", "both"):
                of_kind = [op.chunk for op in ops if op.kind == kind]
                assert of_kind in ([], list(range(chunks)))
            held = most = 0
            for op in ops:
                held += {"forward": 1, "backward": -1, "both": 0}[op.kind]
                most = max(most, held)
            assert held == 0
            assert most <= min(parts - part, chunks)


@pytest.mark.parametrize("held", [{0: [0], 1: [1], 2: [2]}, {0: [0, 2], 1: [1]}, {0: [0, 1], 1: [2]}])
def test_no_piece_of_memory_is_written_before_it_was_read(held):
    parts, chunks = 3, range(9)
    for seed in range(50):
        unread = {}
        schedule, drawn, queues = Schedule(parts, chunks), random.Random(seed), {device: [] for device in held}
        while not schedule.finished:
            for device, op in schedule.assign(held):
                queues[device].append(op)
            device = drawn.choice([device for device, queue in queues.items() if queue])
            op = queues[device].pop(0)
            behind = "both" if op.part + 2 == parts else "backward"
            for read in (Op("forward", op.part - 1, op.chunk), Op(behind, op.part + 1, op.chunk)):
                slot = slot_of(read, parts, read.chunk) if 0 <= read.part < parts else None
                if slot and (op.kind == "backward") == (read.part > op.part):
                    assert unread.pop(slot) == read
            if slot := slot_of(op, parts, op.chunk):
                assert slot not in unread, f"{op} replaces what {unread[slot]} left"
                unread[slot] = op
            schedule.done(device, op)
        assert not unread


def test_what_a_neighbour_needs_has_a_piece_of_memory_and_nothing_else_has():
    for kind, part, needed in [("forward", 0, True), ("forward", 1, True), ("backward", 1, True), ("both", 2, True)]:
        assert (slot_of(Op(kind, part, 0), 3, 0) is not None) == needed
    assert slot_of(Op("backward", 0, 0), 3, 0) is None
    assert slot_of(Op("both", 0, 0), 1, 0) is None


def test_a_device_goes_back_before_it_goes_forward():
    schedule, held = Schedule(3, range(5)), {0: [0, 1], 1: [2]}
    forward, backward = (lambda part, chunk, kind=kind: Op(kind, part, chunk) for kind in ("forward", "backward"))
    assert schedule.assign(held) == [(0, forward(0, 0)), (0, forward(0, 1))]
    for device, op, sent in [
        (0, forward(0, 0), [(0, forward(1, 0))]),
        (0, forward(0, 1), [(0, forward(1, 1))]),
        (0, forward(1, 0), [(0, forward(0, 2)), (1, Op("both", 2, 0))]),
        (1, Op("both", 2, 0), []),
        (0, forward(1, 1), [(0, backward(1, 0)), (1, Op("both", 2, 1))]),
    ]:
        schedule.done(device, op)
        assert set(schedule.assign(held)) == set(sent)
    schedule.done(0, backward(1, 0))
    schedule.done(0, forward(0, 2))
    assert schedule.assign(held) == [(0, backward(0, 0)), (0, forward(1, 2))]


def test_a_device_with_two_parts_does_both():
    done = finish(Schedule(3, range(4)), {0: [0, 2], 1: [1]}, random.Random(0))
    for part in range(3):
        assert [op for ops in done.values() for op in ops if op.part == part] == list(order_of(part, 3, range(4)))


def test_the_chunks_of_a_single_part_go_to_all_devices_one_each():
    sent = Schedule(1, range(4)).assign({device: [0] for device in range(4)})
    assert sent == [(chunk, Op("both", 0, chunk)) for chunk in range(4)]


def test_what_a_lost_device_had_goes_to_another():
    schedule = Schedule(1, range(2))
    schedule.assign({0: [0], 1: [0]})
    schedule.lost(0, Op("both", 0, 0))
    assert not schedule.finished
    assert schedule.assign({1: [0]}) == [(1, Op("both", 0, 0))]
    schedule.done(1, Op("both", 0, 1))
    schedule.done(1, Op("both", 0, 0))
    assert schedule.finished


def test_what_lost_devices_had_goes_on_in_chunk_order():
    schedule = Schedule(1, range(4))
    schedule.assign({0: [0], 1: [0], 2: [0]})
    schedule.lost(1, Op("both", 0, 1))
    schedule.lost(0, Op("both", 0, 0))
    sent = schedule.assign({2: [0], 3: [0]})
    assert [op.chunk for _, op in sent] == [0, 1]


def test_what_is_dropped_is_not_sent():
    schedule = Schedule(1, range(2))
    schedule.assign({0: [0], 1: [0]})
    schedule.lost(1, Op("both", 0, 1))
    schedule.drop(Op("both", 0, 1))
    assert schedule.assign({0: [0]}) == []
    schedule.done(0, Op("both", 0, 0))
    assert schedule.finished


def test_a_part_waits_for_the_one_before_and_the_gradient_behind():
    schedule = Schedule(2, range(2))
    holders = {0: [0], 1: [1]}
    assert schedule.assign(holders) == [(0, Op("forward", 0, 0)), (0, Op("forward", 0, 1))]
    schedule.done(0, Op("forward", 0, 0))
    assert schedule.assign(holders) == [(1, Op("both", 1, 0))]
    schedule.done(0, Op("forward", 0, 1))
    assert schedule.assign(holders) == [(1, Op("both", 1, 1))]
    schedule.done(1, Op("both", 1, 0))
    assert schedule.assign(holders) == [(0, Op("backward", 0, 0))]
