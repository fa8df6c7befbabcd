"""What a splitter does about what happens: each test a short story of events and instructions."""

import pytest

from ms_recover.splitting.instructions import (
    EmitEvent,
    EndWorker,
    FailForward,
    FinishForward,
    LoadPart,
    Loss,
    RunChunk,
    StartWorker,
)
from ms_recover.splitting.state import DEPTH, IN_A_ROW, SplitterState

LINE = ([0], [1], [2])
WHOLE = ([0], [0], [0])


def made(policy, holders=LINE, costs=None, max_restarts=3):
    """A splitter that has not begun."""
    parts = 1 + max(part for held in holders for part in held)
    return SplitterState(holders, costs or [1.0] * parts, policy, max_restarts)


def come(state, device):
    """Let the process of a device be there and hold its parts; return what that leads to."""
    generation = state.devices[device].generation
    done = state.ready(device, generation)
    for load in [one for one in done if isinstance(one, LoadPart)]:
        done += state.held(device, generation, load.part)
    return done


def at_work(policy, holders=LINE, costs=None, max_restarts=3):
    """A splitter whose devices are all at work."""
    state = made(policy, holders, costs, max_restarts)
    state.begun()
    for device in range(len(holders)):
        come(state, device)
    return state


def ran(state, device, chunk, part):
    return state.ran(device, state.devices[device].generation, chunk, part)


def raised(state, device, chunk, part):
    return state.raised(device, state.devices[device].generation, chunk, part, "ValueError: no")


def kill(state, device, cause="eof"):
    return state.lost(device, state.devices[device].generation, cause, "killed by SIGKILL")


def of(kind, instructions):
    """The instructions of a kind, or the notes of one."""
    if isinstance(kind, str):
        return [one for one in instructions if isinstance(one, EmitEvent) and one.kind == kind]
    return [one for one in instructions if isinstance(one, kind)]


def go_through(state, chunks, outcome=None):
    """Let the devices compute what they are sent until the forward ends; return everything that was said."""
    said = state.asked(chunks)
    sent = of(RunChunk, said)
    while sent:
        run = sent.pop(0)
        more = ran(state, run.device, run.chunk, run.part)
        sent += of(RunChunk, more)
        said += more
    assert [one for one in said if isinstance(one, FinishForward | FailForward)] == [outcome or FinishForward()]
    assert not state.forward.busy
    return said


# --- starting ---------------------------------------------------------------------------------------------------


def test_devices_start_load_and_are_ready():
    state = made("plain", ([0], [1, 2]))
    assert not any(device.serving for device in state.devices)
    assert state.begun() == [StartWorker(0, 1), StartWorker(1, 1)]
    assert not state.settled
    assert state.ready(1, 1) == [LoadPart(1, 1), LoadPart(1, 2)]
    assert state.held(1, 1, 2) == []
    assert not state.devices[1].alive
    assert state.held(1, 1, 1) == [EmitEvent(kind="ready", device=1)]
    assert state.devices[1].alive
    assert not state.settled
    assert come(state, 0) == [LoadPart(0, 0), EmitEvent(kind="ready", device=0)]
    assert state.settled
    assert state.start_fault() is None


@pytest.mark.parametrize("policy", ["plain", "raise", "skip"])
def test_a_device_that_does_not_start_fails_the_start(policy):
    state = made(policy)
    state.begun()
    come(state, 0), come(state, 2)
    assert state.lost(1, 1, "start", "no memory")[:2] == [
        EndWorker(1, 1),
        EmitEvent(kind="lost", device=1, part=None, chunk=None, cause="start", words="no memory"),
    ]
    assert state.settled
    assert state.start_fault() == FailForward(kind="start", device=1, part=None, cause="start", words="no memory")


def test_a_device_that_does_not_start_tries_again_and_then_leaves_its_part_to_another():
    state = made("recover", max_restarts=1)
    state.begun()
    come(state, 0)
    assert state.lost(1, 1, "start", "no")[-1] == StartWorker(1, 2)
    assert not state.settled
    said = state.lost(1, 2, "start", "still no")
    assert of("retired", said) == [
        EmitEvent(kind="retired", device=1, part=None, chunk=None, cause="start", words="still no")
    ]
    assert not of(StartWorker, said)
    assert of("moved", said) == [EmitEvent(kind="moved", device=0, part=1, chunk=None, cause="", words="from device 1")]
    assert said[-1] == LoadPart(0, 1)
    come(state, 2)
    assert state.settled
    assert state.start_fault() is None
    state.held(0, 1, 1)
    go_through(state, range(4))


def test_starting_ends_when_no_device_ever_starts():
    state = made("recover", max_restarts=5)
    starts = of(StartWorker, state.begun())
    tried = 0
    while starts:
        start = starts.pop()
        starts += of(StartWorker, state.lost(start.device, start.generation, "start", "no"))
        tried += 1
    assert tried == 3 * (1 + IN_A_ROW)
    assert state.settled
    assert state.start_fault() == FailForward(kind="start", device=0, part=None, cause="start", words="no")
    assert [(fail.kind, fail.cause) for fail in state.asked([0])] == [("none left", "start")]


# --- chunks and parts -------------------------------------------------------------------------------------------


def test_chunks_go_through_the_parts_in_order_all_parts_at_work():
    state = at_work("plain")
    assert state.asked([0, 1, 2]) == [RunChunk(0, 0, 0), RunChunk(0, 0, 1)]
    assert ran(state, 0, 0, 0) == [RunChunk(1, 1, 0), RunChunk(0, 0, 2)]
    assert ran(state, 0, 1, 0) == [RunChunk(1, 1, 1)]
    assert ran(state, 1, 0, 1) == [RunChunk(2, 2, 0)]
    assert ran(state, 2, 0, 2) == []
    assert ran(state, 0, 2, 0) == [RunChunk(1, 1, 2)]
    assert ran(state, 1, 1, 1) == [RunChunk(2, 2, 1)]
    assert ran(state, 1, 2, 1) == [RunChunk(2, 2, 2)]
    assert ran(state, 2, 1, 2) == []
    assert state.forward.busy
    assert ran(state, 2, 2, 2) == [FinishForward()]
    assert not state.forward.busy
    assert (state.forward.dropped, state.forward.lost, state.forward.redone) == ({}, [], 0)


def test_a_device_gets_no_more_than_it_computes_and_one_on_its_way():
    state = at_work("plain", ([0],))
    assert len(of(RunChunk, state.asked(range(5)))) == DEPTH == 2
    assert ran(state, 0, 0, 0) == [RunChunk(0, 0, 2)]


def test_the_whole_model_everywhere_spreads_the_chunks():
    state = at_work("plain", WHOLE)
    assert [(run.device, run.chunk) for run in state.asked(range(7))] == [
        (0, 0),
        (1, 1),
        (2, 2),
        (0, 3),
        (1, 4),
        (2, 5),
    ]
    assert ran(state, 1, 1, 0) == [RunChunk(1, 0, 6)]


def test_a_part_held_twice_works_twice():
    state = at_work("plain", ([0], [1], [1]))
    state.asked([0, 1])
    assert ran(state, 0, 0, 0) == [RunChunk(1, 1, 0)]
    assert ran(state, 0, 1, 0) == [RunChunk(2, 1, 1)]


def test_older_chunks_go_first():
    state = at_work("plain", ([0, 1],))
    assert state.asked([0, 1, 2]) == [RunChunk(0, 0, 0), RunChunk(0, 0, 1)]
    assert ran(state, 0, 0, 0) == [RunChunk(0, 1, 0)]
    assert ran(state, 0, 1, 0) == [RunChunk(0, 1, 1)]
    assert ran(state, 0, 0, 1) == [RunChunk(0, 0, 2)]


def test_no_chunks_are_done_at_once():
    assert at_work("plain").asked([]) == [FinishForward()]


def test_a_chunk_waits_for_a_device_that_is_on_its_way():
    state = made("skip")
    state.begun()
    assert state.asked([0]) == []
    assert come(state, 0) == [LoadPart(0, 0), EmitEvent(kind="ready", device=0), RunChunk(0, 0, 0)]


def test_a_part_without_any_device_fails_without_naming_one():
    state = SplitterState([[0]], [1.0, 1.0], "plain")
    state.begun()
    come(state, 0)
    assert state.asked([0]) == [FailForward(kind="lost", device=None, part=1, cause="", words="no device holds it")]


# --- plain and raise --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["plain", "raise"])
def test_work_that_is_lost_raises(policy):
    state = at_work(policy)
    state.asked([0, 1, 2])
    ran(state, 0, 0, 0)
    assert kill(state, 1) == [
        EndWorker(1, 1),
        EmitEvent(kind="lost", device=1, part=1, chunk=0, cause="eof", words="killed by SIGKILL"),
        FailForward(kind="lost", device=1, part=1, cause="eof", words="killed by SIGKILL"),
    ]
    assert not state.forward.busy
    assert state.forward.lost == [1]
    assert [device.alive for device in state.devices] == [True, False, True]
    assert state.settled


@pytest.mark.parametrize("policy", ["plain", "raise"])
def test_a_lost_device_that_every_chunk_still_needs_fails_the_forward_at_once(policy):
    state = at_work(policy)
    state.asked([0, 1])
    assert kill(state, 2)[-1] == FailForward(kind="lost", device=2, part=2, cause="eof", words="killed by SIGKILL")


@pytest.mark.parametrize("policy", ["plain", "raise"])
def test_a_lost_device_that_no_chunk_needs_any_more_fails_nothing(policy):
    state = at_work(policy)
    state.asked([0])
    ran(state, 0, 0, 0)
    assert kill(state, 0) == [
        EndWorker(0, 1),
        EmitEvent(kind="lost", device=0, part=None, chunk=None, cause="eof", words="killed by SIGKILL"),
    ]
    ran(state, 1, 0, 1)
    assert ran(state, 2, 0, 2) == [FinishForward()]
    assert state.asked([1]) == [FailForward(kind="lost", device=0, part=0, cause="eof", words="killed by SIGKILL")]


@pytest.mark.parametrize("policy", ["plain", "raise"])
def test_others_that_hold_the_part_do_without_an_idle_device(policy):
    state = at_work(policy, WHOLE)
    kill(state, 1)
    assert state.forward.lost == []
    said = go_through(state, range(6))
    assert {run.device for run in of(RunChunk, said)} == {0, 2}


def test_plain_raises_and_keeps_the_device():
    state = at_work("plain")
    state.asked([0, 1])
    assert raised(state, 0, 0, 0) == [
        FailForward(kind="part", device=0, part=0, cause="raised", words="ValueError: no")
    ]
    assert state.devices[0].alive
    assert state.forward.lost == []
    assert raised(state, 0, 1, 0) == []
    go_through(state, [2, 3])


def test_raise_loses_a_device_that_raises():
    state = at_work("raise")
    state.asked([0, 1])
    assert raised(state, 0, 0, 0) == [
        EndWorker(0, 1),
        EmitEvent(kind="lost", device=0, part=0, chunk=0, cause="raised", words="ValueError: no"),
        FailForward(kind="lost", device=0, part=0, cause="raised", words="ValueError: no"),
    ]
    assert not state.devices[0].alive


# --- skip -------------------------------------------------------------------------------------------------------


def test_skip_leaves_out_what_a_device_was_at():
    state = at_work("skip", WHOLE)
    state.asked(range(6))
    said = kill(state, 1)
    why = Loss(1, 0, "eof", "killed by SIGKILL")
    assert of("dropped", said) == [
        EmitEvent(kind="dropped", device=1, part=0, chunk=chunk, cause="eof", words="killed by SIGKILL")
        for chunk in (1, 4)
    ]
    assert not of(StartWorker, said)
    for device, chunk in ((0, 0), (2, 2), (0, 3)):
        assert ran(state, device, chunk, 0) == []
    assert ran(state, 2, 5, 0) == [FinishForward()]
    assert state.forward.dropped == {1: why, 4: why}
    assert state.forward.lost == [1]


def test_skip_loses_a_device_that_raises_and_does_not_try_again():
    state = at_work("skip", WHOLE)
    state.asked(range(3))
    said = raised(state, 1, 1, 0)
    assert said[0] == EndWorker(1, 1)
    assert state.forward.dropped == {1: Loss(1, 0, "raised", "ValueError: no")}
    ran(state, 0, 0, 0)
    assert ran(state, 2, 2, 0) == [FinishForward()]


def test_skip_drops_what_a_device_was_at_and_hands_its_part_to_a_survivor():
    state = at_work("skip")
    state.asked(range(4))
    ran(state, 0, 0, 0)
    ran(state, 0, 1, 0)
    said = kill(state, 1)
    assert of("moved", said) == [EmitEvent(kind="moved", device=0, part=1, words="from device 1")]
    assert LoadPart(0, 1) in said
    assert {chunk: (why.device, why.part) for chunk, why in state.forward.dropped.items()} == {0: (1, 1), 1: (1, 1)}
    assert not of(StartWorker, said)
    ran(state, 0, 2, 0)
    ran(state, 0, 3, 0)
    assert state.held(0, 1, 1) == [RunChunk(0, 1, 2), RunChunk(0, 1, 3)]
    for device, chunk, part in ((0, 2, 1), (0, 3, 1), (2, 2, 2)):
        assert not of(FinishForward, ran(state, device, chunk, part))
    assert ran(state, 2, 3, 2) == [FinishForward()]
    assert [device.alive for device in state.devices] == [True, False, True], "it stays away"
    go_through(state, range(4, 10))
    assert not state.forward.dropped, "the next forward is whole"


def test_skip_hands_over_parts_that_were_handed_over():
    state = at_work("skip")
    kill(state, 1)
    state.held(0, 1, 1)
    said = kill(state, 0)
    assert {event.part for event in of("moved", said)} == {0, 1}
    for part in (0, 1):
        state.held(2, 1, part)
    go_through(state, range(3))
    state.reset()
    assert [device.parts for device in state.devices] == [{0}, {1}, {2}]


def test_skip_with_nothing_left_fails():
    state = at_work("skip", ([0], [0]))
    state.asked(range(4))
    assert not of(FailForward, kill(state, 0))
    said = kill(state, 1, "heartbeat")
    assert said[-1].kind == "none left"
    assert set(state.forward.dropped) == {0, 1, 2, 3}


def test_skip_waits_for_a_device_that_starts_again():
    state = at_work("skip", ([0],))
    kill(state, 0)
    state.reset()
    assert state.asked([0]) == []
    assert RunChunk(0, 0, 0) in come(state, 0)
    assert ran(state, 0, 0, 0) == [FinishForward()]


def test_a_chunk_given_up_keeps_its_place_at_the_device_until_it_answers():
    state = at_work("skip", ([0, 1], [2]))
    state.asked([0, 1])
    kill(state, 1)
    state.reset()
    come(state, 1)
    assert state.asked([2, 3]) == []
    assert ran(state, 0, 0, 0) == [RunChunk(0, 0, 2)]


# --- recover ----------------------------------------------------------------------------------------------------


def test_recover_does_the_lost_work_again_in_a_fresh_process():
    state = at_work("recover")
    state.asked([0, 1, 2])
    ran(state, 0, 0, 0)
    ran(state, 0, 1, 0)
    assert kill(state, 1) == [
        EndWorker(1, 1),
        EmitEvent(kind="lost", device=1, part=1, chunk=0, cause="eof", words="killed by SIGKILL"),
        StartWorker(1, 2),
        EmitEvent(kind="redone", device=1, part=1, chunk=0),
        EmitEvent(kind="redone", device=1, part=1, chunk=1),
    ]
    assert not state.devices[1].alive
    assert come(state, 1) == [
        LoadPart(1, 1),
        EmitEvent(kind="recovered", device=1, cause="eof"),
        RunChunk(1, 1, 0),
        RunChunk(1, 1, 1),
    ]
    for device, chunk, part in ((1, 0, 1), (2, 0, 2), (1, 1, 1), (2, 1, 2), (0, 2, 0), (1, 2, 1)):
        assert not of(FinishForward, ran(state, device, chunk, part))
    assert ran(state, 2, 2, 2) == [FinishForward()]
    assert (state.forward.lost, state.forward.redone, state.forward.dropped) == ([1], 2, {})


def test_recover_lets_others_that_hold_the_part_do_it_at_once():
    state = at_work("recover", WHOLE)
    state.asked([0, 1, 2])
    assert of(RunChunk, kill(state, 2)) == [RunChunk(0, 0, 2)]


def test_a_device_lost_between_forwards_recovers():
    state = at_work("recover")
    assert kill(state, 2) == [
        EndWorker(2, 1),
        EmitEvent(kind="lost", device=2, part=None, chunk=None, cause="eof", words="killed by SIGKILL"),
        StartWorker(2, 2),
    ]
    assert state.forward.lost == []
    assert not state.settled
    come(state, 2)
    go_through(state, range(3))


@pytest.mark.parametrize("policy", ["plain", "raise", "skip", "recover"])
@pytest.mark.parametrize("when", ["before ready", "while loading"])
def test_a_fresh_process_that_is_lost_before_it_works_is_replaced_only_under_recover(policy, when):
    state = at_work(policy)
    kill(state, 1)
    if policy != "recover":
        assert state.reset() == [EmitEvent(kind="reset"), StartWorker(1, 2)]
    if when == "while loading":
        state.ready(1, 2)
    said = state.lost(1, 2, "timeout", "slow")
    assert said[:2] == [
        EndWorker(1, 2),
        EmitEvent(kind="lost", device=1, part=None, chunk=None, cause="timeout", words="slow"),
    ]
    assert of(StartWorker, said) == ([StartWorker(1, 3)] if policy == "recover" else [])
    assert state.settled == (policy != "recover")
    assert state.ready(1, 2) == []
    assert state.held(1, 2, 1) == []
    assert not state.devices[1].held


def test_a_chunk_that_raises_is_done_again_elsewhere():
    state = at_work("recover", WHOLE)
    state.asked([0, 1, 2])
    said = raised(state, 0, 0, 0)
    assert said[:2] == [
        EndWorker(0, 1),
        EmitEvent(kind="lost", device=0, part=0, chunk=0, cause="raised", words="ValueError: no"),
    ]
    assert of(RunChunk, said) == [RunChunk(1, 0, 0)]
    ran(state, 1, 1, 0)
    ran(state, 2, 2, 0)
    assert ran(state, 1, 0, 0) == [FinishForward()]
    assert state.devices[0].losses == 1


def test_a_chunk_that_raises_again_is_the_fault_of_what_it_was_given():
    state = at_work("recover", WHOLE)
    state.asked([0])
    raised(state, 0, 0, 0)
    assert raised(state, 1, 0, 0) == [
        FailForward(kind="part", device=1, part=0, cause="raised", words="ValueError: no")
    ]
    assert state.devices[1].alive
    assert [device.losses for device in state.devices] == [0, 0, 0]
    come(state, 0)
    go_through(state, [1, 2])


def test_inputs_of_which_every_chunk_raises_wear_out_no_device():
    state = at_work("recover", WHOLE, max_restarts=1)
    for number in range(0, 60, 6):
        said = state.asked(range(number, number + 6))
        while at := next((device for device in state.devices if device.running or not device.alive), None):
            said += (
                raised(state, at.number, at.running[0].chunk, at.running[0].part)
                if at.running
                else come(state, at.number)
            )
        assert [fail.kind for fail in of(FailForward, said)] == ["part"]
        assert [device.losses for device in state.devices] == [0, 0, 0]
    go_through(state, range(100, 104))


def test_a_device_retired_over_what_raises_everywhere_comes_back():
    state = at_work("recover", max_restarts=0)
    state.asked([0])
    said = raised(state, 0, 0, 0)
    assert of("retired", said)
    assert of("moved", said) == [EmitEvent(kind="moved", device=1, part=0, chunk=None, cause="", words="from device 0")]
    assert state.held(1, 1, 0) == [RunChunk(1, 0, 0)]
    assert raised(state, 1, 0, 0) == [
        StartWorker(0, 2),
        FailForward(kind="part", device=1, part=0, cause="raised", words="ValueError: no"),
    ]
    assert not state.devices[0].retired
    assert state.devices[1].alive


def test_what_an_abandoned_chunk_raises_is_no_loss_under_recover():
    state = at_work("recover")
    state.asked([0])
    state.abandoned()
    assert raised(state, 0, 0, 0) == []
    assert state.devices[0].alive
    assert not state.devices[0].running


# --- retiring ---------------------------------------------------------------------------------------------------


def test_a_device_that_keeps_failing_is_retired_and_its_part_moves_to_the_survivor_with_the_least_cost():
    state = at_work("recover", costs=[1.0, 5.0, 0.5], max_restarts=2)
    state.asked([0])
    ran(state, 0, 0, 0)
    for _ in range(2):
        assert of(StartWorker, kill(state, 1))
        come(state, 1)
    said = kill(state, 1)
    assert said == [
        EndWorker(1, 3),
        EmitEvent(kind="lost", device=1, part=1, chunk=0, cause="eof", words="killed by SIGKILL"),
        EmitEvent(kind="retired", device=1, part=None, chunk=None, cause="eof", words="killed by SIGKILL"),
        EmitEvent(kind="moved", device=2, part=1, chunk=None, cause="", words="from device 1"),
        LoadPart(2, 1),
        EmitEvent(kind="redone", device=1, part=1, chunk=0),
    ]
    assert state.settled
    assert state.held(2, 1, 1) == [RunChunk(2, 1, 0)]
    assert ran(state, 2, 0, 1) == [RunChunk(2, 2, 0)]
    assert ran(state, 2, 0, 2) == [FinishForward()]


def test_the_parts_of_one_device_are_spread():
    state = at_work("recover", ([0, 1], [2], [3]), costs=[2.0, 1.0, 1.0, 1.5], max_restarts=0)
    moved = of("moved", kill(state, 0))
    assert [(note.device, note.part) for note in moved] == [(1, 0), (2, 1)]


def test_a_part_that_another_device_holds_does_not_move():
    state = at_work("recover", ([0], [1], [1]), max_restarts=0)
    assert not of("moved", kill(state, 2))
    go_through(state, range(3))


def test_a_part_may_move_to_a_device_that_starts_again_itself():
    state = at_work("recover", ([0], [1]), max_restarts=1)
    state.asked([0])
    kill(state, 1)
    kill(state, 0)
    said = kill(state, 1)
    assert of("moved", said) == [EmitEvent(kind="moved", device=0, part=1, chunk=None, cause="", words="from device 1")]
    assert not of(LoadPart, said)
    assert state.ready(0, 2) == [LoadPart(0, 0), LoadPart(0, 1)]
    assert state.held(0, 2, 0) == [RunChunk(0, 0, 0)]
    assert not state.devices[0].alive
    assert state.held(0, 2, 1) == [EmitEvent(kind="recovered", device=0, cause="eof")]
    assert ran(state, 0, 0, 0) == [RunChunk(0, 1, 0)]
    assert ran(state, 0, 0, 1) == [FinishForward()]


def test_an_heir_that_cannot_load_the_part_is_lost_and_tries_again():
    state = at_work("recover", ([0], [1]), max_restarts=1)
    kill(state, 1)
    assert of(LoadPart, kill(state, 1)) == [LoadPart(0, 1)]
    assert of(StartWorker, kill(state, 0, "weights")) == [StartWorker(0, 2)]
    assert state.ready(0, 2) == [LoadPart(0, 0), LoadPart(0, 1)]


def test_a_hundred_forwards_with_a_kill_in_each_retire_no_device():
    state = at_work("recover", ([0], [1]), max_restarts=100)
    for call in range(100):
        state.asked([2 * call, 2 * call + 1])
        ran(state, 0, 2 * call, 0)
        assert of(StartWorker, kill(state, call % 2))
        come(state, call % 2)
        while at_it := [(device.number, task.chunk, task.part) for device in state.devices for task in device.running]:
            ran(state, *at_it[0])
        assert not state.forward.busy
    assert all(device.alive for device in state.devices)


def test_a_device_that_dies_over_the_same_chunk_again_and_again_is_retired_however_often_it_may_try():
    state = at_work("recover", ([0], [1]), max_restarts=100)
    state.asked([0])
    for _ in range(IN_A_ROW):
        assert of(StartWorker, kill(state, 0))
        come(state, 0)
    said = kill(state, 0)
    assert of("retired", said)
    assert of("moved", said) == [EmitEvent(kind="moved", device=1, part=0, chunk=None, cause="", words="from device 0")]


def test_a_device_that_never_comes_to_hold_its_part_is_retired_however_often_it_may_try():
    state = at_work("recover", max_restarts=100)
    assert of(StartWorker, kill(state, 1))  # this one held it
    for _ in range(IN_A_ROW):
        assert of(StartWorker, kill(state, 1, "start"))
    assert of("retired", kill(state, 1, "start"))


def test_with_all_devices_retired_none_is_left():
    state = at_work("recover", WHOLE, max_restarts=0)
    state.asked(range(3))
    kill(state, 0)
    kill(state, 1)
    assert kill(state, 2)[-1] == FailForward(kind="none left", device=0, part=0, cause="eof", words="killed by SIGKILL")
    assert all(device.retired for device in state.devices)
    assert state.settled
    assert state.asked([3]) == [FailForward(kind="none left", device=0, part=0, cause="eof", words="killed by SIGKILL")]


def test_a_chunk_that_kills_every_process_is_at_fault():
    state = at_work("recover", WHOLE, max_restarts=1)
    said = state.asked([0])
    struck = 0
    while state.forward.busy:
        (run,) = of(RunChunk, said)
        struck += 1
        said = kill(state, run.device)
        if of(StartWorker, said) and state.forward.busy:
            said += come(state, run.device)
    assert struck == 2 * (1 + 1) + 1
    assert said[-1] == FailForward(
        kind="part",
        device=2,
        part=0,
        cause="eof",
        words="killed by SIGKILL; every process that got these rows was lost",
    )
    assert [device.losses for device in state.devices] == [0, 0, 0]
    assert not any(device.retired for device in state.devices)
    assert of(StartWorker, said) == [StartWorker(0, 3), StartWorker(1, 3), StartWorker(2, 2)]
    for device in range(3):
        come(state, device)
    go_through(state, range(1, 7))


def test_a_neighbour_of_a_deadly_chunk_is_not_blamed():
    state = at_work("recover", WHOLE, max_restarts=5)
    state.asked([0, 1, 2, 3])
    said = kill(state, 0)  # at 0, with 3 on its way
    assert of("redone", said) == [
        EmitEvent(kind="redone", device=0, part=0, chunk=0),
        EmitEvent(kind="redone", device=0, part=0, chunk=3),
    ]
    assert set(state.forward.strikes) == {0}


# --- reset ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["raise", "skip"])
def test_reset_brings_back_what_was_lost(policy):
    state = at_work(policy)
    kill(state, 0)
    kill(state, 2)
    assert state.reset() == [EmitEvent(kind="reset"), StartWorker(0, 2), StartWorker(2, 2)]
    assert not state.settled
    assert come(state, 0) == [LoadPart(0, 0), EmitEvent(kind="recovered", device=0, cause="eof")]
    come(state, 2)
    assert state.settled
    go_through(state, range(5))


def test_reset_brings_back_the_retired_with_the_parts_they_had():
    state = at_work("recover", max_restarts=0)
    kill(state, 1)
    kill(state, 0)
    assert state.devices[2].parts == {0, 1, 2}
    assert state.reset() == [EmitEvent(kind="reset"), StartWorker(0, 2), StartWorker(1, 2)]
    assert [device.parts for device in state.devices] == [{0}, {1}, {2}]
    assert not any(device.retired or device.losses for device in state.devices)
    come(state, 0), come(state, 1)
    go_through(state, range(5))


def test_reset_while_devices_start_starts_none_twice():
    state = at_work("recover", max_restarts=1)
    kill(state, 0), kill(state, 1), kill(state, 1)
    assert state.devices[2].parts | state.devices[0].parts == {0, 1, 2}
    assert state.reset() == [EmitEvent(kind="reset"), StartWorker(1, 3)]
    assert state.ready(0, 2) == [LoadPart(0, 0)]
    state.held(0, 2, 0)
    come(state, 1)
    assert state.settled
    go_through(state, range(5))


def test_after_reset_a_device_may_fail_as_often_as_before():
    state = at_work("recover", ([0],), max_restarts=1)
    kill(state, 0)
    state.reset()
    assert of(StartWorker, kill(state, 0))
    assert of("retired", kill(state, 0))


def test_reset_with_nothing_lost_does_nothing():
    assert at_work("skip").reset() == [EmitEvent(kind="reset")]


def test_reset_loads_again_what_has_not_come_yet():
    state = made("skip")
    state.begun()
    state.ready(0, 1)
    assert state.reset() == [EmitEvent(kind="reset"), LoadPart(0, 0)]


# --- what comes late --------------------------------------------------------------------------------------------


def test_messages_of_a_former_process_are_ignored():
    state = at_work("recover")
    state.asked([0, 1])
    kill(state, 0)
    assert state.ready(0, 1) == []
    assert state.held(0, 1, 0) == []
    assert state.ran(0, 1, 0, 0) == []
    assert state.raised(0, 1, 0, 0, "late") == []
    assert state.lost(0, 1, "reset", "twice") == []
    assert state.devices[0].losses == 1
    come(state, 0)
    assert state.ran(0, 1, 0, 0) == []
    assert state.ran(0, 2, 0, 0) != []


def test_answers_for_chunks_that_were_not_sent_are_ignored():
    state = at_work("plain")
    state.asked([0])
    assert ran(state, 1, 0, 1) == []
    assert ran(state, 0, 7, 0) == []
    assert raised(state, 2, 0, 2) == []
    assert state.forward.busy


@pytest.mark.parametrize("policy", ["plain", "raise", "skip", "recover"])
def test_answers_to_a_forward_that_was_abandoned_only_make_room(policy):
    state = at_work(policy, ([0],))
    state.asked([0, 1])
    assert state.abandoned() == []
    assert not state.forward.busy
    assert state.asked([2]) == []
    assert ran(state, 0, 0, 0) == [RunChunk(0, 0, 2)]
    assert ran(state, 0, 1, 0) == []
    assert ran(state, 0, 2, 0) == [FinishForward()]


@pytest.mark.parametrize("policy", ["plain", "raise", "skip", "recover"])
def test_a_device_lost_over_an_abandoned_chunk_takes_nothing_along(policy):
    state = at_work(policy, ([0], [0]))
    state.asked([0, 1, 2, 3])
    state.abandoned()
    said = kill(state, 0)
    assert said[2:] == ([StartWorker(0, 2)] if policy == "recover" else [])
    assert (state.forward.dropped, state.forward.redone, state.forward.lost) == ({}, 0, [])
    assert state.asked([4]) == []
    assert ran(state, 1, 1, 0) == [RunChunk(1, 0, 4)]


@pytest.mark.parametrize("holders", [([0],), ([0], [0]), ([0], [1]), ([0, 1],)], ids=str)
@pytest.mark.parametrize("max_restarts", [1, 100])
def test_a_chunk_that_kills_every_process_of_few_devices_is_at_fault_and_they_stay(holders, max_restarts):
    state = at_work("recover", holders, max_restarts=max_restarts)
    said = state.asked([0])
    struck = 0
    while state.forward.busy:
        device = next((device for device in state.devices if device.running), None)
        if device is None:
            said = come(state, next(device.number for device in state.devices if device.status == "starting"))
            continue
        struck += 1
        said = kill(state, device.number)
        for load in of(LoadPart, said):
            said += state.held(load.device, state.devices[load.device].generation, load.part)
        assert struck < 20
    assert [(fail.kind, fail.cause) for fail in of(FailForward, said)] == [("part", "eof")]
    assert struck == len(holders) * (1 + min(max_restarts, IN_A_ROW))
    assert not any(device.retired for device in state.devices)
    assert [device.losses for device in state.devices] == [0] * len(holders)
    for device in state.devices:
        if device.status != "at work":
            come(state, device.number)
    go_through(state, range(1, 5))


def test_a_single_loss_of_the_only_device_is_no_fault_of_its_chunk():
    state = at_work("recover", ([0],), max_restarts=0)
    state.asked([0])
    assert kill(state, 0)[-1].kind == "none left"
    assert state.devices[0].retired


# --- taken out, brought back, closed ----------------------------------------------------------------------------


@pytest.mark.parametrize("policy", ["plain", "raise", "skip", "recover"])
def test_a_device_that_is_taken_out_leaves_its_part_and_its_chunks_to_a_survivor(policy):
    state = at_work(policy)
    state.asked([0, 1])
    ran(state, 0, 0, 0)
    said = state.taken_out(1)
    assert said == [
        EndWorker(1, 1),
        EmitEvent(kind="removed", device=1),
        EmitEvent(kind="moved", device=0, part=1, words="from device 1"),
        LoadPart(0, 1),
        EmitEvent(kind="redone", device=1, part=1, chunk=0),
    ]
    assert state.held(0, 1, 1) == [RunChunk(0, 1, 0)]
    assert state.settled
    for device, chunk, part in ((0, 1, 0), (0, 0, 1), (0, 1, 1), (2, 0, 2)):
        assert not of(FinishForward, ran(state, device, chunk, part))
    assert ran(state, 2, 1, 2) == [FinishForward()]
    assert not state.forward.lost
    assert [device.alive for device in state.devices] == [True, False, True]
    assert state.taken_out(1) == []
    assert state.brought_back(1) == [EmitEvent(kind="reset", device=1), StartWorker(1, 2)]
    assert state.brought_back(1) == []
    assert state.devices[0].parts == {0, 1}
    assert come(state, 1)[-1] == EmitEvent(kind="recovered", device=1)
    assert [device.parts for device in state.devices] == [{0}, {1}, {2}]
    assert {part: device.number for part, device in state._room().items()} == {0: 0, 1: 1, 2: 2}
    go_through(state, range(2, 6))
    state.taken_out(1)
    assert state.devices[0].held == {0}, "the weights of then"


def test_a_process_of_a_device_that_was_taken_out_meanwhile_is_not_awaited():
    state = made("recover")
    state.begun()
    assert state.awaits(1, 1)
    state.taken_out(1)
    assert not state.awaits(1, 1)
    assert state.ready(1, 1) == []
    state.reset()
    assert state.awaits(1, 2)


def test_with_every_device_taken_out_a_forward_fails():
    state = at_work("recover", WHOLE)
    for device in range(3):
        state.taken_out(device)
    (failed,) = state.asked([0])
    assert (failed.kind, failed.words) == ("none left", "it was taken out")


@pytest.mark.parametrize("policy", ["plain", "raise", "skip", "recover"])
def test_the_only_device_that_is_brought_back_gets_all_parts(policy):
    state = at_work(policy)
    for device in range(3):
        state.taken_out(device)
    said = state.brought_back(1)
    assert [event.part for event in of("moved", said)] == [0, 2]
    assert come(state, 1)[:3] == [LoadPart(1, 0), LoadPart(1, 1), LoadPart(1, 2)]
    go_through(state, range(3))


def test_the_part_of_a_lost_device_stays_lost_where_losses_are_raised():
    state = at_work("raise")
    kill(state, 1)
    assert not of("moved", state.taken_out(0)[:2])
    assert {event.part for event in of("moved", state.brought_back(0))} == set()
    come(state, 0)
    assert state.asked([0])[-1].kind == "lost"


def test_a_retired_device_is_brought_back_with_its_own_part():
    state = at_work("recover", max_restarts=0)
    kill(state, 1)
    assert state.devices[1].retired
    state.brought_back(1)
    come(state, 1)
    assert (state.devices[1].parts, state.devices[1].losses) == ({1}, 0)


def test_a_forward_can_go_through_some_of_the_parts():
    state = at_work("recover")
    assert state.asked([0, 1], range(1, 2)) == [RunChunk(1, 1, 0), RunChunk(1, 1, 1)]
    assert ran(state, 1, 0, 1) == []
    assert ran(state, 1, 1, 1) == [FinishForward()]
    state = at_work("raise")
    kill(state, 2)
    state.asked([2], range(2))
    ran(state, 0, 2, 0)
    assert ran(state, 1, 2, 1) == [FinishForward()], "the part without device is not needed"
    assert state.asked([3], range(2, 3))[-1].kind == "lost"


def test_a_closed_splitter_has_no_device_at_work():
    state = at_work("recover")
    state.closed()
    assert [device.status for device in state.devices] == ["closed"] * 3
    assert not any(device.alive or device.serving for device in state.devices)
