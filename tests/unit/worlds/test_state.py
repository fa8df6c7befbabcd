from ms_recover.worlds.instructions import (
    CloseLinks,
    Deliver,
    Expected,
    FailOperation,
    Fault,
    FillBuffer,
    ForgetPeer,
    KeepMessage,
    Key,
    Notify,
    PauseReading,
    Transmit,
)
from ms_recover.worlds.state import MAX_KEPT_UNASKED, SMALL, WorldState
from ms_recover.worlds.wire import FrameKind, Header, world_id

WORLD = world_id("w")
KEY, OTHER = Key(FrameKind.MESSAGE, 0), Key(FrameKind.MESSAGE, 1)


def opened(rank=0, size=3):
    state = WorldState(WORLD, rank, size)
    assert state.formed(5) == []
    return state


def frame(sequence, length=4, key=KEY, **changes):
    header = Header(key.kind, "uint8", (length,), WORLD, 5, key.call, sequence, key.tag, length, 0)
    return header._replace(**changes)


def test_nothing_goes_before_the_world_is_formed():
    state = WorldState(WORLD, 0, 2)
    assert isinstance(state.send_requested(1, 1, KEY, 0, "uint8", (4,), 4)[0], FailOperation)
    assert isinstance(state.receive_requested(2, 1, KEY, Expected())[0], FailOperation)


def test_frames_are_numbered_per_peer():
    state = opened()
    sent = [state.send_requested(n, peer, KEY, 0, "uint8", (4,), 4)[0] for n, peer in enumerate([1, 2, 1])]
    assert [instruction.header.sequence for instruction in sent] == [0, 0, 1]
    assert all(isinstance(instruction, Transmit) for instruction in sent)


def test_receive_before_the_frame_fills_its_buffer():
    state = opened()
    assert state.receive_requested(1, 1, KEY, Expected()) == []
    assert state.header_received(1, frame(0)) == [FillBuffer(1, 1, frame(0))]
    assert state.payload_received(1) == [Deliver(1, frame(0), None)]
    assert not state._pending


def test_small_frame_before_the_receive_is_kept():
    state = opened()
    assert state.header_received(1, frame(0)) == [KeepMessage(1, 1, frame(0))]
    assert state.payload_received(1) == []
    assert state.receive_requested(1, 1, KEY, Expected()) == [Deliver(1, frame(0), 1)]


def test_large_frame_before_the_receive_is_held_and_then_filled():
    state = opened()
    big = frame(0, SMALL + 1)
    assert state.header_received(1, big) == [PauseReading(1)]
    assert state.receive_requested(1, 1, KEY, Expected()) == [FillBuffer(1, 1, big)]


def test_large_frame_is_kept_when_a_receive_waits_for_a_later_one():
    state = opened()
    big = frame(0, SMALL + 1)
    assert state.header_received(1, big) == [PauseReading(1)]
    assert state.receive_requested(1, 1, OTHER, Expected()) == [KeepMessage(1, 1, big)]
    assert state.payload_received(1) == []
    assert state.header_received(1, frame(1, key=OTHER)) == [FillBuffer(1, 1, frame(1, key=OTHER))]


def test_a_peer_whose_messages_are_not_received_is_paused():
    state = opened()
    count = MAX_KEPT_UNASKED // SMALL
    for sequence in range(count):
        assert isinstance(state.header_received(1, frame(sequence, SMALL))[0], KeepMessage)
        state.payload_received(1)
    assert state.header_received(1, frame(count)) == [PauseReading(1)]
    assert state.header_received(2, frame(0)) != [PauseReading(2)]


def test_a_break_fails_all_operations_and_informs_all_peers():
    state = opened()
    state.receive_requested(1, 1, KEY, Expected())
    state.send_requested(2, 2, KEY, 0, "uint8", (4,), 4)
    fault = Fault(1, "eof", "gone")
    told, first, second, shut = state.lost(1, "eof", "gone")
    assert isinstance(told, Notify)
    assert {peer: (header.kind, header.call, header.detail) for peer, header in told.headers} == {
        1: (FrameKind.ABORT, 1, 0),
        2: (FrameKind.ABORT, 1, 0),
    }
    assert [first, second, shut] == [FailOperation(1, fault), FailOperation(2, fault), CloseLinks(fault)]
    assert state.phase == "broken"
    assert state.lost(2, "eof") == state.closed() == state.header_received(2, frame(0)) == []
    assert state.receive_requested(3, 2, KEY, Expected()) == [FailOperation(3, fault)]


def test_a_frame_of_another_world_epoch_or_sequence_breaks_the_world():
    for change in ({"epoch": 4}, {"world": b"x" * 8}, {"sequence": 1}):
        state = opened()
        state.header_received(1, frame(0)._replace(**change))
        assert (state.phase, state.fault[:2]) == ("broken", (1, "protocol"))


def test_an_unexpected_frame_breaks_the_world_kept_or_not():
    for expected in (Expected(1), Expected(0, "int8"), Expected(0, None, (2, 2)), Expected(0, None, None, 3)):
        for kept in (True, False):
            state = opened()
            if kept:
                state.header_received(1, frame(0))
                state.payload_received(1)
                state.receive_requested(1, 1, KEY, expected)
            else:
                state.receive_requested(1, 1, KEY, expected)
                state.header_received(1, frame(0))
            assert (state.phase, state.fault.cause, state._pending) == ("broken", "protocol", {})


def test_a_report_names_the_accused():
    state = opened()
    abort = frame(0, 0, Key(FrameKind.ABORT, 0, 2), dtype="", shape=(), detail=2)
    state.header_received(1, abort)
    assert state.fault == Fault(2, "peer_reported", "rank 1 reports heartbeat of rank 2")


def test_what_a_peer_sent_before_it_left_can_be_received():
    state = opened()
    state.header_received(1, frame(0))
    state.payload_received(1)
    assert state.header_received(1, frame(1, 0, Key(FrameKind.LEAVE, 0), dtype="", shape=())) == [ForgetPeer(1)]
    assert state.lost(1, "eof") == []
    assert state.receive_requested(1, 1, KEY, Expected()) == [Deliver(1, frame(0), 1)]
    assert state.phase == "open"
    state.receive_requested(2, 1, KEY, Expected())
    assert (state.phase, state.fault[:2]) == ("broken", (1, "closed"))


def test_cancelling_a_receive_breaks_the_world_only_after_its_frame_began():
    state = opened()
    state.receive_requested(1, 1, KEY, Expected())
    assert state.cancelled(1) == []
    assert state.phase == "open"
    state.receive_requested(2, 1, KEY, Expected())
    state.header_received(1, frame(0))
    state.cancelled(2)
    assert (state.phase, state.fault.cause) == ("broken", "closed")
