"""Random events on worlds of 2 to 6 members, several at a time: never a wrong delivery, never a cross-world effect."""

from collections import Counter, deque

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

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
from ms_recover.worlds.state import SMALL, WorldState
from ms_recover.worlds.wire import CAUSES, FrameKind, Header, world_id
from tests.support.examples import examples

LENGTHS = (0, 1, SMALL, SMALL + 1)
KEYS = (Key(FrameKind.MESSAGE, 0), Key(FrameKind.MESSAGE, 1), Key(FrameKind.PART, 0, 0), Key(FrameKind.PART, 0, 1))
LEGAL = {
    ("open", "open"),
    ("open", "broken"),
    ("open", "closed"),
    ("broken", "broken"),
    ("closed", "closed"),
}


class Member:
    """A member with a shell that moves no bytes: payloads are tokens (sender, key, number)."""

    def __init__(self, simulated, rank):
        self.simulated, self.rank = simulated, rank
        self.state = WorldState(simulated.identity, rank, simulated.size)
        self.state.formed(simulated.epoch)
        self.phase = "open"
        self.dead = False
        self.operations = {}
        self.ended = Counter()
        self.reading = {}
        self.kept = {}
        self.taken = {}
        self.cancels_next = False
        self.numbers = 0

    def do(self, instructions, token=None):
        for instruction in instructions:
            match instruction:
                case DeliverWhole(_, operation, _):
                    self.deliver(operation, token)
                case FillBuffer(peer, operation, _):
                    self.reading[peer] = ("operation", operation, self.reading[peer][-1])
                case KeepMessage(peer, message, _):
                    self.reading[peer] = ("message", message, self.reading[peer][-1])
                case TakeBack(peer, operation, message):
                    if operation in self.taken:
                        self.kept[message] = self.taken.pop(operation)
                    else:
                        assert self.reading[peer][:2] == ("operation", operation)
                        self.reading[peer] = ("message", message, self.reading[peer][-1])
                case PauseReading(peer):
                    self.reading[peer] = ("held", None, self.reading[peer][-1])
                case Deliver(operation, _, message):
                    self.deliver(operation, token if message is None else self.kept.pop(message))
                case FailOperation(operation, _):
                    self.end(operation)
                case Notify(headers):
                    for peer, header in headers:
                        self.simulated.channels[self.rank, peer].append((header, None))
                case CloseLinks(_, kept):
                    self.reading.clear()
                    assert kept <= set(self.kept)
                    self.kept = {message: self.kept[message] for message in kept}
                    self.simulated.disconnect(self.rank)
                case ForgetPeer(_):
                    pass

    def end(self, operation):
        self.ended[operation] += 1
        assert self.ended[operation] == 1
        return self.operations.pop(operation)

    def deliver(self, operation, token):
        peer, key = self.end(operation)
        delivered = self.simulated.delivered
        if self.cancels_next:  # before its task runs: the message goes back
            self.cancels_next = False
            self.taken[operation] = token
            self.do(self.state.returned(operation, peer, self.header(token)))
            return
        assert token == (peer, self.rank, key, delivered[peer, self.rank, key]), "a wrong delivery"
        delivered[peer, self.rank, key] += 1

    def header(self, token):
        return self.simulated.headers[token]

    def send(self, peer, key, length, at_once=True):
        sent = self.simulated.sent
        token = (self.rank, peer, key, sent[self.rank, peer, key])
        sequence = self.state.next_frame(peer)
        if sequence is None:
            self.do(self.state.send_refused(peer))
            assert self.state.phase != "open"
            return
        sent[self.rank, peer, key] += 1
        kind, tag, call = key
        epoch, identity = self.state.epoch, self.state.world
        header = Header(kind, "uint8", (length,), identity, epoch, call, sequence, tag, length, 0)
        self.simulated.headers[token] = header
        self.simulated.channels[self.rank, peer].append((header, token))
        if not at_once:
            number = self.numbers = self.numbers + 1
            self.operations[number] = (peer, None)
            self.do(self.state.send_waits(number, peer))

    def sent(self, number):
        self.do(self.state.send_done(number))
        if number in self.operations:
            self.end(number)

    def receive(self, peer, key, expected):
        number = self.numbers = self.numbers + 1
        self.operations[number] = (peer, key)
        held = self.reading.get(peer)
        self.do(self.state.receive_requested(number, peer, key, expected), held and held[-1])

    def read(self, peer, whole=False):
        """Take what comes next from a peer: a header, the payload after it or with it, or the connection's end."""
        channel = self.simulated.channels[peer, self.rank]
        if peer in self.reading:
            what, number, token = self.reading[peer]
            if what != "held":
                del self.reading[peer]
                if what == "message":
                    self.kept[number] = token
                self.do(self.state.payload_received(peer), token)
            return
        if not channel:
            return
        header, token = channel.popleft()
        if header is None:
            self.do(self.state.lost(peer, token))
            return
        self.reading[peer] = ("nothing", None, token)
        self.do(self.state.header_received(peer, header, whole), token)
        if self.reading.get(peer, ("",))[0] == "nothing":
            del self.reading[peer]


class Simulated:
    """A world, with channels that keep the order of what they carry."""

    def __init__(self, name, size, epoch):
        self.name, self.size, self.epoch = name, size, epoch
        self.identity = world_id(name)
        self.channels = {(a, b): deque() for a in range(size) for b in range(size) if a != b}
        self.sent, self.delivered = Counter(), Counter()
        self.headers = {}
        self.hurt = False
        self.members = [Member(self, rank) for rank in range(size)]

    def disconnect(self, rank, cause="eof"):
        for (sender, _), channel in self.channels.items():
            if sender == rank:
                channel.append((None, cause))


class Worlds(RuleBasedStateMachine):
    @initialize(sizes=st.lists(st.integers(2, 6), min_size=1, max_size=4), faults=st.booleans())
    def make(self, sizes, faults):
        self.faults = faults
        self.worlds = [Simulated(f"world {index}", size, 0) for index, size in enumerate(sizes)]

    def pick(self, data):
        world = data.draw(st.sampled_from(self.worlds))
        alive = [member for member in world.members if not member.dead]
        return world, data.draw(st.sampled_from(alive or world.members))

    def peer(self, data, member):
        return data.draw(st.sampled_from([r for r in range(member.simulated.size) if r != member.rank]))

    @rule(data=st.data(), key=st.sampled_from(KEYS), length=st.sampled_from(LENGTHS), at_once=st.booleans())
    def send(self, data, key, length, at_once):
        _, member = self.pick(data)
        if not member.dead:
            member.send(self.peer(data, member), key, length, at_once)

    @rule(
        data=st.data(),
        events=st.lists(
            st.tuples(
                st.sampled_from(["send", "send", "receive", "read", "read"]),
                st.sampled_from(KEYS[:2]),
                st.sampled_from([1, 1, SMALL + 1]),
                st.integers(1, 4),
            ),
            min_size=3,
            max_size=20,
        ),
    )
    def talk(self, data, events):
        _, member = self.pick(data)
        peer = self.peer(data, member)
        other = member.simulated.members[peer]
        for what, key, length, times in events:
            for _ in range(times):
                if what == "send" and not other.dead:
                    other.send(member.rank, key, length)
                elif what == "receive" and not member.dead:
                    member.receive(peer, key, Expected())
                elif what == "read" and not member.dead:
                    member.read(peer, whole=times % 2 == 0)

    @rule(data=st.data())
    def send_ends(self, data):
        _, member = self.pick(data)
        sends = [number for number, (_, key) in member.operations.items() if key is None]
        if sends:
            member.sent(data.draw(st.sampled_from(sends)))

    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def receive(self, data, key):
        _, member = self.pick(data)
        if not member.dead:
            member.receive(self.peer(data, member), key, Expected())

    @rule(data=st.data(), count=st.integers(1, 20), whole=st.booleans())
    def read(self, data, count, whole):
        _, member = self.pick(data)
        for _ in range(count):
            if not member.dead:
                member.read(self.peer(data, member), whole)

    @rule(data=st.data())
    def cancel(self, data):
        _, member = self.pick(data)
        receives = [number for number, (_, key) in member.operations.items() if key is not None]
        if receives:
            number = data.draw(st.sampled_from(receives))
            was_open = member.state.phase == "open"
            member.do(member.state.cancelled(number))
            assert member.state.phase == "open" or not was_open
            member.end(number)
            assert number not in member.state._pending

    @rule(data=st.data())
    def cancel_on_delivery(self, data):
        _, member = self.pick(data)
        member.cancels_next = not member.dead

    @precondition(lambda self: self.faults)
    @rule(data=st.data())
    def die(self, data):
        world, member = self.pick(data)
        if not member.dead:
            member.dead = world.hurt = True
            member.operations.clear()
            for (sender, _), channel in world.channels.items():
                if sender == member.rank:
                    for _ in range(data.draw(st.integers(0, len(channel)))):
                        channel.pop()
            world.disconnect(member.rank, data.draw(st.sampled_from(["eof", "reset"])))

    @precondition(lambda self: self.faults)
    @rule(data=st.data(), cause=st.sampled_from(["heartbeat", "timeout", "closed"]))
    def give_up(self, data, cause):
        world, member = self.pick(data)
        if not member.dead:
            world.hurt = True
            peer = self.peer(data, member)
            lost = member.state.lost(peer, cause) if cause == "heartbeat" else None
            member.do(member.state.aborted(Fault(peer, cause)) if lost is None else lost)

    @precondition(lambda self: self.faults)
    @rule(data=st.data(), cause=st.sampled_from(CAUSES))
    def hear_a_report(self, data, cause):
        world, member = self.pick(data)
        if not member.dead:
            world.hurt = True
            member.do(member.state.reported(self.peer(data, member), member.rank, cause))

    @precondition(lambda self: self.faults)
    @rule(data=st.data())
    def leave(self, data):
        world, member = self.pick(data)
        if not member.dead:
            world.hurt = True
            member.do(member.state.closed())
            assert not member.operations

    @precondition(lambda self: self.faults)
    @rule(data=st.data(), field=st.sampled_from(["world", "epoch", "sequence"]))
    def garble(self, data, field):
        world, member = self.pick(data)
        peer = self.peer(data, member)
        channel = world.channels[peer, member.rank]
        if member.dead or peer in member.reading or not channel or channel[0][0] is None:
            return
        was_open = member.state.phase == "open"
        header, token = channel[0]
        wrong = world_id("another") if field == "world" else getattr(header, field) + 1
        channel[0] = (header._replace(**{field: wrong}), token)
        world.hurt = True
        member.read(peer)
        if was_open:
            assert member.state.phase == "broken"
            assert member.state.fault[:2] == (peer, "protocol")

    @precondition(lambda self: self.faults)
    @rule(data=st.data(), key=st.sampled_from(KEYS))
    def expect_something_else(self, data, key):
        world, member = self.pick(data)
        if not member.dead:
            world.hurt = True
            expected = Expected(*data.draw(st.sampled_from([(1,), (0, "int8"), (0, None, (7,)), (0, None, None, 7)])))
            member.receive(self.peer(data, member), key, expected)

    @rule(index=st.integers(0, 3))
    def make_again(self, index):
        index %= len(self.worlds)
        world = self.worlds[index]
        if all(member.dead or member.state.phase != "open" for member in world.members):
            self.worlds[index] = Simulated(world.name, world.size, world.epoch + 1)

    @invariant()
    def is_legal(self):
        for world in getattr(self, "worlds", []):
            for member in world.members:
                phase = member.state.phase
                assert (member.phase, phase) in LEGAL
                member.phase = phase
                if member.dead:
                    continue
                assert len(member.state._pending) == len(member.operations)
                assert (member.state.fault is None) == (phase == "open")
                if phase != "open":
                    assert not member.operations
                for peer, (what, *_) in member.reading.items():
                    waiting = [op for op, (at, key) in member.operations.items() if at == peer and key is not None]
                    # behind a full store of other messages a receive waits as well
                    assert what != "held" or not waiting or member.state._peers[peer].kept_bytes

    @invariant()
    def unhurt_worlds_are_well(self):
        for world in getattr(self, "worlds", []):
            if not world.hurt:
                assert all(member.state.phase == "open" for member in world.members)

    def teardown(self):
        """Read all that is there: what was sent to somebody who wants it has to arrive."""
        for world in getattr(self, "worlds", []):
            for _ in range(2 + 2 * sum(map(len, world.channels.values()))):
                for member in world.members:
                    for peer in range(world.size):
                        if peer != member.rank and not member.dead:
                            member.read(peer)
            if world.hurt:
                continue
            for member in world.members:
                for peer, key in member.operations.values():
                    if key is not None:
                        place = (peer, member.rank, key)
                        assert world.delivered[place] == world.sent[place], "a message did not arrive"
                assert all(what == "held" for what, *_ in member.reading.values())
        for world in getattr(self, "worlds", []):
            phases = [member.state.phase for member in world.members if not member.dead]
            blocked = any(what == "held" for member in world.members for what, *_ in member.reading.values())
            assert blocked or "broken" not in phases or "open" not in phases, "somebody was not told"


Worlds.TestCase.settings = settings(max_examples=examples(120), stateful_step_count=60)
TestWorlds = Worlds.TestCase
