import pytest

from ms_recover.worlds.instructions import (
    CloseLinks,
    Deliver,
    DeliverWhole,
    Expected,
    FailOperation,
    Fault,
    FillBuffer,
    ForgetPeer,
    KeepMessage,
    Key,
    Notify,
    PauseReading,
    TakeBack,
)
from ms_recover.worlds.state import COST, MAX_KEPT, MAX_KEPT_UNASKED, SMALL, WorldState
from ms_recover.worlds.wire import CAUSES, FrameKind, Header, world_id

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
    assert state.next_frame(1) is None
    assert state.send_refused(1) == []
    assert state.ended().words == "the world is not open"
    assert isinstance(state.receive_requested(2, 1, KEY, Expected())[0], FailOperation)


def test_frames_are_numbered_per_peer():
    state = opened()
    sent = [state.next_frame(peer) for peer in (1, 2, 1)]
    assert sent == [0, 0, 1]
    assert not state._pending


def test_receive_before_the_frame_fills_its_buffer():
    state = opened()
    assert state.receive_requested(1, 1, KEY, Expected()) == []
    assert state.header_received(1, frame(0)) == [FillBuffer(1, 1, frame(0))]
    assert state.payload_received(1) == [Deliver(1, frame(0), None)]
    assert not state._pending


def test_a_frame_that_comes_whole_is_delivered_at_once():
    state = opened()
    state.receive_requested(1, 1, KEY, Expected(0, "uint8", (4,), 4))
    assert state.header_received(1, frame(0), True) == [DeliverWhole(1, 1, frame(0))]
    assert not state._pending
    state.receive_requested(2, 1, KEY, Expected())
    assert state.header_received(1, frame(1), True) == [DeliverWhole(1, 2, frame(1))]


def test_a_frame_that_comes_whole_is_kept_or_refused_as_any_other():
    state = opened()
    assert state.header_received(1, frame(0), True) == [KeepMessage(1, 1, frame(0))]
    assert state.payload_received(1) == []
    state.receive_requested(1, 1, OTHER, Expected(0, "uint8", (5,)))
    state.header_received(1, frame(1, key=OTHER), True)
    assert (state.phase, state.fault[:2]) == ("broken", (1, "protocol"))


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
    state.send_waits(2, 2)
    fault = Fault(1, "eof", "gone")
    told, first, second, shut = state.lost(1, "eof", "gone")
    assert isinstance(told, Notify)
    assert {peer: (header.kind, header.call, header.detail) for peer, header in told.headers} == {
        1: (FrameKind.ABORT, 1, 0),
        2: (FrameKind.ABORT, 1, 0),
    }
    assert [first, second, shut] == [FailOperation(1, fault), FailOperation(2, fault), CloseLinks(fault)]
    assert state.phase == "broken"
    assert state.lost(2, "eof") == state.closed() == state.header_received(2, frame(0)) == state.send_refused(2) == []
    assert state.next_frame(2) is None
    assert state.send_waits(3, 2) == [FailOperation(3, fault)]
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


LEAVE = frame(1, 0, Key(FrameKind.LEAVE, 0), dtype="", shape=())


def kept_frame(state, sequence=0, key=KEY):
    """A small frame that nobody has asked for."""
    state.header_received(1, frame(sequence, key=key))
    assert state.payload_received(1) == []


def test_a_message_taken_back_comes_before_later_ones():
    state = opened()
    for sequence in range(3):
        kept_frame(state, sequence)
    for operation in range(3):
        assert isinstance(state.receive_requested(operation, 1, KEY, Expected())[0], Deliver)
    for operation in (1, 2, 0):  # however their cancellation is ordered
        assert state.returned(operation, 1, frame(operation)) == [TakeBack(1, operation, state._messages)]
    for sequence in range(3):
        assert state.receive_requested(9, 1, KEY, Expected())[0].header == frame(sequence)


def test_a_message_taken_back_goes_to_a_receive_that_waits():
    state = opened()
    kept_frame(state)
    state.receive_requested(1, 1, KEY, Expected())
    state.receive_requested(2, 1, KEY, Expected())
    assert state.returned(1, 1, frame(0)) == [TakeBack(1, 1, 2), Deliver(2, frame(0), 2)]
    assert state.phase == "open"


def test_what_a_peer_sent_before_it_left_can_be_received():
    state = opened()
    kept_frame(state)
    assert state.header_received(1, LEAVE) == [ForgetPeer(1)]
    assert state.lost(1, "eof") == []
    assert state.receive_requested(1, 1, KEY, Expected()) == [Deliver(1, frame(0), 1)]
    assert state.phase == "open"
    state.receive_requested(2, 1, KEY, Expected())
    assert (state.phase, state.fault[:2]) == ("broken", (1, "closed"))


@pytest.mark.parametrize("needed", ["send", "receive", "report"])
def test_what_came_stays_receivable_when_the_world_breaks_because_a_peer_left(needed):
    state = opened()
    kept_frame(state)
    state.header_received(1, LEAVE)
    if needed == "send":
        assert state.next_frame(1) is None
        told = state.send_refused(1)
    elif needed == "receive":
        told = state.receive_requested(7, 1, OTHER, Expected())
    else:
        told = state.reported(2, 1, "closed")
    assert next(one for one in told if isinstance(one, CloseLinks)).kept == {1}
    assert state.phase == "broken"
    wrong = state.receive_requested(8, 2, KEY, Expected())
    assert wrong == [FailOperation(8, state.fault)]
    assert state.receive_requested(9, 1, KEY, Expected()) == [Deliver(9, frame(0), 1)]
    assert state.returned(9, 1, frame(0)) == [TakeBack(1, 9, 2)]
    assert state.receive_requested(9, 1, KEY, Expected()) == [Deliver(9, frame(0), 2)]
    assert state.receive_requested(9, 1, KEY, Expected()) == [FailOperation(9, state.fault)]


@pytest.mark.parametrize("cause", CAUSES)
@pytest.mark.parametrize("by", ["loss", "report"])
def test_what_came_stays_receivable_whoever_breaks_the_world_unless_a_frame_was_wrong(cause, by):
    state = opened()
    kept_frame(state)
    kept_frame(state, 1, Key(FrameKind.PART, 0, 0))
    told = state.lost(1, cause) if by == "loss" else state.reported(2, 1, cause)
    keeps = by == "report" or cause != "protocol"
    assert told[-1] == CloseLinks(state.fault, frozenset({1} if keeps else ()))
    last = [FailOperation(1, state.fault)]
    assert state.receive_requested(1, 1, KEY, Expected()) == ([Deliver(1, frame(0), 1)] if keeps else last)
    assert state.receive_requested(1, 1, KEY, Expected()) == last


def test_nothing_stays_receivable_when_this_member_failed_itself():
    state = opened()
    kept_frame(state)
    assert state.aborted(Fault(0, "closed"))[-1] == CloseLinks(state.fault)
    assert state.receive_requested(1, 1, KEY, Expected()) == [FailOperation(1, state.fault)]


def test_a_cancelled_receive_leaves_its_message_to_the_next_one():
    state = opened()
    state.receive_requested(1, 1, KEY, Expected())
    assert state.cancelled(1) == []
    state.receive_requested(2, 1, KEY, Expected())
    state.header_received(1, frame(0))
    assert state.cancelled(2) == [TakeBack(1, 2, 1)]  # in the middle of its payload
    state.receive_requested(3, 1, KEY, Expected())
    assert state.payload_received(1) == [Deliver(3, frame(0), 1)]
    assert state.phase == "open"


def test_cancelling_a_send_breaks_the_world_only_before_its_end():
    state = opened()
    for number in (1, 2):
        assert state.send_waits(number, 1) == []
    state.send_done(1)
    assert state.cancelled(1) == []
    state.cancelled(2)
    assert (state.phase, state.fault.cause) == ("broken", "closed")


def test_a_receive_with_another_tag_keeps_the_back_pressure():
    """The first message is kept whatever its size; then up to the limit; then nothing is read, and nothing breaks."""
    state, size = opened(), MAX_KEPT // 4
    state.receive_requested(1, 1, OTHER, Expected())
    for sequence in range(4):
        assert isinstance(state.header_received(1, frame(sequence, size))[0], KeepMessage)
        state.payload_received(1)
    assert state.header_received(1, frame(4, size)) == [PauseReading(1)]
    assert state.is_blocked(1)
    again = state.receive_requested(2, 1, KEY, Expected())
    assert again == [Deliver(2, frame(0, size), 1), KeepMessage(1, 5, frame(4, size))]
    state.payload_received(1)
    assert isinstance(state.header_received(1, frame(5, key=OTHER))[0], FillBuffer)
    assert state.phase == "open"


def test_an_empty_message_counts_as_much_as_a_short_one():
    state = opened()
    for sequence in range(MAX_KEPT_UNASKED // COST):
        assert isinstance(state.header_received(1, frame(sequence, 0))[0], KeepMessage)
        state.payload_received(1)
    assert state.header_received(1, frame(sequence + 1, 0)) == [PauseReading(1)]
    assert isinstance(state.receive_requested(1, 1, KEY, Expected())[1], KeepMessage)
