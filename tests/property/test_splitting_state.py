"""A splitter whose processes start, load, compute, die and raise in any order: every forward ends, and rightly."""

from collections import Counter, deque
from typing import NamedTuple

from hypothesis import HealthCheck, event, example, given, settings
from hypothesis import strategies as st

from ms_recover.splitting.instructions import (
    EmitEvent,
    EndWorker,
    FailForward,
    FinishForward,
    LoadPart,
    RunChunk,
    StartWorker,
)
from ms_recover.splitting.state import DEPTH, SplitterState
from tests.support.examples import examples

EXAMPLES = examples(150)

KINDS = {
    "plain": {"lost", "part"},
    "raise": {"lost"},
    "skip": {"none left"},
    "recover": {"part", "none left"},
}
OTHERS = ("kill", "kill the one that works", "raise", "unable", "forward", "abandon", "reset", "late", "out", "in")
MOVES = (*["work"] * 12, *OTHERS)


class Setting(NamedTuple):
    """A splitter, and what is wrong from the beginning."""

    policy: str
    holders: tuple[frozenset[int], ...]
    max_restarts: int = 1
    broken: frozenset[int] = frozenset()
    """Devices whose processes never start."""
    bad: frozenset[int] = frozenset()
    """Chunks of which every part raises."""
    deadly: frozenset[int] = frozenset()
    """Chunks that no process survives."""

    @property
    def parts(self):
        return len(frozenset().union(*self.holders))


class Process:
    """What serves a device: orders come in, answers go out, both in their order."""

    def __init__(self, device, generation):
        self.device, self.generation = device, generation
        self.ready = False
        self.orders, self.answers = deque(), deque()
        self.holds = set()

    @property
    def has_to_do(self):
        return not self.ready or bool(self.orders) or bool(self.answers)

    @property
    def runs(self):
        return sum(1 for word, *_ in [*self.orders, *self.answers] if word in ("run", "ran", "raised"))


class Forward:
    """Where the chunks of a forward are."""

    def __init__(self, chunks, gone):
        self.gone = gone
        """Devices that had retired before, or were killed: no fault of the rows."""
        self.reached = dict.fromkeys(chunks, 0)
        self.at = {}
        self.raised, self.struck = Counter(), Counter()
        self.lost = []
        self.sent, self.notes = Counter(), Counter()
        self.outcome = None


class Shell:
    """Carries out what the state says, and is surprised by everything that it must not say."""

    def __init__(self, setting):
        self.setting = setting
        self.state = SplitterState(setting.holders, [1.0] * setting.parts, setting.policy, setting.max_restarts)
        self.processes = {}
        self.generations, self.restarts = Counter(), Counter()
        self.ended = set()
        self.former = []
        self.forward = None
        self.numbers = 0
        self.faults = bool(setting.broken or setting.bad or setting.deadly)
        self.may_start = True
        self.do(self.state.begun())
        self.may_start = False

    # --- what the state says ------------------------------------------------------------------------------------

    def do(self, instructions):
        forgiven = any(isinstance(one, FailForward) and one.kind == "part" for one in instructions)
        for instruction in instructions:
            match instruction:
                case StartWorker(device, generation):
                    self.start(device, generation)
                case LoadPart(device, part):
                    assert self.processes[device].ready
                    assert part in self.state.devices[device].parts
                    self.processes[device].orders.append(("hold", part))
                    self.processes[device].holds.discard(part)  # it makes the part anew
                case RunChunk(device, part, chunk):
                    self.run(device, part, chunk)
                case EndWorker(device, generation):
                    self.end(device, generation)
                case FinishForward() | FailForward():
                    self.over(instruction)
                case EmitEvent(kind=kind):
                    if self.forward is not None:
                        self.forward.notes[kind] += 1
        if forgiven:
            self.restarts.clear()
        assert all(times <= self.setting.max_restarts for times in self.restarts.values()), "restarted too often"
        self.look()

    def start(self, device, generation):
        assert self.may_start or self.setting.policy == "recover"
        assert device not in self.processes, "two processes for one device"
        assert generation == self.generations[device] + 1
        self.generations[device] = generation
        self.restarts[device] += not self.may_start
        self.processes[device] = Process(device, generation)

    def run(self, device, part, chunk):
        process, forward = self.processes[device], self.forward
        assert process.ready
        assert part in process.holds
        assert process.runs < DEPTH
        assert forward.outcome is None
        assert forward.reached[chunk] == part, "out of order"
        assert chunk not in forward.at, "at two places at once"
        assert chunk not in self.state.forward.dropped
        forward.at[chunk] = process
        forward.sent[chunk, part] += 1
        process.orders.append(("run", part, chunk))

    def end(self, device, generation):
        process = self.processes.pop(device)
        assert process.generation == generation
        assert (device, generation) not in self.ended
        self.ended.add((device, generation))
        self.former.append(process)
        if self.forward is not None:
            self.forward.at = {chunk: at for chunk, at in self.forward.at.items() if at is not process}

    def over(self, outcome):
        forward, state, policy = self.forward, self.state, self.setting.policy
        assert forward.outcome is None, "it ended twice"
        assert not state.forward.busy
        forward.outcome = outcome
        done = {chunk for chunk, part in forward.reached.items() if part == self.setting.parts}
        dropped = set(state.forward.dropped)
        event(f"{policy}: {outcome.kind if isinstance(outcome, FailForward) else 'all' if not dropped else 'some'}")
        assert not dropped or policy == "skip"
        assert not done & dropped
        if isinstance(outcome, FinishForward):
            assert done | dropped == set(forward.reached)
            assert done or not forward.reached
            return
        assert outcome.kind in KINDS[policy]
        assert len(done) < len(forward.reached)
        assert self.faults
        if outcome.kind == "none left" and policy == "skip":
            assert dropped == set(forward.reached)
        elif outcome.kind == "none left":
            assert all(device.status in ("retired", "out") for device in state.devices)
        elif outcome.kind == "lost":
            assert len(self.processes) < len(state.devices)
            assert not state.devices[outcome.device].serving
        elif policy == "recover":
            struck = max(forward.struck.values(), default=0)
            assert max(forward.raised.values(), default=0) == 2 or struck > max(1, self.setting.max_restarts)
            retired = {device.number for device in state.devices if device.retired} - self.setting.broken - forward.gone
            assert forward.raised or not retired  # what raises costs its device

    def look(self):
        """See that what the state says of itself is so."""
        state = self.state
        assert state.forward.busy == (self.forward is not None and self.forward.outcome is None)
        assert not state.forward.busy or any(process.has_to_do for process in self.processes.values()), "stuck"
        for device in state.devices:
            process = self.processes.get(device.number)
            assert device.serving == (process is not None)
            assert device.ready == (process is not None and process.ready)
            assert not device.alive or device.original <= process.holds
            assert device.original <= device.parts
            assert not device.retired or self.setting.policy == "recover"
            gone = process is None and device.status != "out"
            assert device.retired == (gone and self.setting.policy == "recover")
        served = frozenset().union(*(device.parts for device in state.devices if device.serving))
        kept = frozenset().union(*(device.parts for device in state.devices if device.status == "away"))
        missing = frozenset(range(self.setting.parts)) - served
        assert not served or missing <= (frozenset() if self.setting.policy in ("recover", "skip") else kept)
        starting = [process for process in self.processes.values() if not state.devices[process.device].alive]
        assert state.settled == (not starting)
        assert all(process.has_to_do for process in starting)
        if self.forward is not None:
            assert state.forward.lost == self.forward.lost
            assert state.forward.redone == self.forward.notes["redone"]
            assert state.forward.redone >= sum(self.forward.sent.values()) - len(self.forward.sent)
            assert len(state.forward.dropped) == self.forward.notes["dropped"]
        if state.forward.busy:
            self.look_at_waiting_chunks()

    def look_at_waiting_chunks(self):
        parts, holding = range(self.setting.parts), list(self.processes.values())
        assigned = {process: self.state.devices[process.device].parts for process in holding}
        for chunk, part in self.forward.reached.items():
            if part in parts and chunk not in self.state.forward.dropped:
                assert frozenset().union(*assigned.values()) >= {*parts[part:]}, "it can never be done"
                full = [process.runs == DEPTH for process in holding if part in process.holds & assigned[process]]
                assert chunk in self.forward.at or all(full), "it waits for nothing"

    # --- what happens -------------------------------------------------------------------------------------------

    def lose(self, process, cause):
        self.faults = True
        forward = self.forward
        if self.state.forward.busy:
            forward.lost.append(process.device)
            running = [chunk for _, _, *chunks in [*process.answers, *process.orders] for chunk in chunks]
            if running and running[0] in forward.reached:
                forward.struck[running[0]] += 1
            else:
                forward.gone.add(process.device)
        self.do(self.state.lost(process.device, process.generation, cause, "words"))
        assert self.processes.get(process.device) is not process

    def kill(self, process, cause):
        if self.forward is not None:
            self.forward.gone.add(process.device)
        self.lose(process, cause)

    def work(self, process, *, hear):
        """Let a process take one step, or the shell hear one answer."""
        if not process.ready:
            if process.device in self.setting.broken:
                self.lose(process, "start")
                return
            process.ready = True
            self.do(self.state.ready(process.device, process.generation))
            return
        word, part, *chunk = process.orders[0] if process.orders else ("nothing", None)
        deadly = not self.setting.deadly.isdisjoint(chunk)
        if process.answers and (hear or deadly or word == "nothing"):
            self.hear(process, *process.answers.popleft())
        elif deadly:
            self.lose(process, "eof")
        else:
            process.orders.popleft()
            good = "held" if word == "hold" else "ran"
            process.answers.append((good if self.setting.bad.isdisjoint(chunk) else "raised", part, *chunk))

    def hear(self, process, word, part, chunk=None):
        place, forward = (process.device, process.generation), self.forward
        if word == "held":
            process.holds.add(part)
            self.do(self.state.held(*place, part))
            return
        if forward is not None and chunk in forward.reached:
            assert forward.at.pop(chunk) is process
        if word == "ran":
            self.ran(process, part, chunk)
        else:
            self.raised(process, part, chunk)

    def ran(self, process, part, chunk):
        wanted = self.state.forward.busy and chunk in self.forward.reached and chunk not in self.state.forward.dropped
        if wanted:
            assert self.forward.reached[chunk] == part
            self.forward.reached[chunk] += 1
        self.do(self.state.ran(process.device, process.generation, chunk, part))

    def raised(self, process, part, chunk):
        wanted = self.state.forward.busy and chunk in self.forward.reached and chunk not in self.state.forward.dropped
        self.faults = True
        policy = self.setting.policy
        if wanted:
            self.forward.raised[chunk] += 1
        again = policy == "plain" or (policy == "recover" and (not wanted or self.forward.raised[chunk] > 1))
        if not again:
            if self.state.forward.busy:
                self.forward.lost.append(process.device)
            if wanted:
                self.forward.struck[chunk] += 1
        instructions = self.state.raised(process.device, process.generation, chunk, part, "words")
        ended = EndWorker(process.device, process.generation) in instructions
        assert ended != again
        if again and wanted:
            assert instructions[-1] == FailForward(
                kind="part", device=process.device, part=part, cause="raised", words="words"
            )
        self.do(instructions)

    def late(self, process, pick):
        """Say something that comes from a process that was ended."""
        place = (process.device, process.generation)
        chunk = self.numbers - 1
        says = [
            self.state.ready(*place),
            self.state.held(*place, 0),
            self.state.ran(*place, chunk, 0),
            self.state.raised(*place, chunk, 0, "words"),
            self.state.lost(*place, "eof", "words"),
        ]
        assert not any(says)
        for word, part, chunk in [one for one in [*process.answers, *process.orders] if len(one) == 3]:
            assert not self.state.ran(*place, chunk, part)
            assert not self.state.raised(*place, chunk, part, "words"), word

    def begin(self, size):
        chunks = range(self.numbers, self.numbers + size)
        self.numbers += size
        self.forward = Forward(chunks, {device.number for device in self.state.devices if device.retired})
        self.do(self.state.asked(chunks))

    def abandon(self):
        self.forward = None
        self.do(self.state.abandoned())

    def reset(self):
        self.may_start = True
        self.restarts.clear()
        self.do(self.state.reset())
        self.may_start = False
        assert len(self.processes) == len(self.state.devices)
        assert [device.parts for device in self.state.devices] == [set(parts) for parts in self.setting.holders]

    def bring_back(self, device):
        self.may_start = True
        self.restarts[device] = 0
        self.do(self.state.brought_back(device))
        self.may_start = False
        assert self.state.devices[device].parts >= self.setting.holders[device]

    def move(self, move, pick):
        busy = [self.processes[device] for device in sorted(self.processes) if self.processes[device].has_to_do]
        match move:
            case "work" if busy:
                self.work(busy[pick % len(busy)], hear=pick % 2 == 0)
            case "kill" if self.processes:
                self.kill(self.processes[sorted(self.processes)[pick % len(self.processes)]], "eof")
            case "kill the one that works" if busy:
                self.kill(busy[pick % len(busy)], "heartbeat")
            case "raise" | "unable":
                word = "run" if move == "raise" else "hold"
                able = [it for it in busy if it.orders and it.orders[0][0] == word]
                if able and move == "raise":
                    process = able[pick % len(able)]
                    process.answers.append(("raised", *process.orders.popleft()[1:]))
                elif able:
                    self.kill(able[pick % len(able)], "weights")
            case "forward" if not self.state.forward.busy:
                self.begin(pick % 7)
            case "abandon" if self.state.forward.busy:
                self.abandon()
            case "reset":
                self.reset()
            case "out" if self.processes:
                self.faults = True
                self.do(self.state.taken_out(sorted(self.processes)[pick % len(self.processes)]))
            case "in" if len(self.processes) < len(self.state.devices):
                self.bring_back(next(each.number for each in self.state.devices if not each.serving))
            case "late" if self.former:
                self.late(self.former[pick % len(self.former)], pick)

    def drain(self):
        """Let nothing more happen than what is under way."""
        for step in range(20_000):
            busy = [process for process in self.processes.values() if process.has_to_do]
            if not busy:
                break
            self.work(busy[step % len(busy)], hear=True)
        else:
            raise AssertionError("it never ends")
        assert not self.state.forward.busy
        assert self.state.settled


def layouts():
    """Parts over devices: each part somewhere, each device with something."""

    def put(parts, more):
        holders = [{part} for part in range(parts)] + [{part % parts} for part in more]
        return tuple(map(frozenset, holders))

    def join(holders, joined):
        return (holders[0] | holders[1], *holders[2:]) if joined and len(holders) > 1 else holders

    spread = st.builds(put, st.integers(1, 4), st.lists(st.integers(0, 3), max_size=3))
    return st.builds(join, spread, st.booleans())


@st.composite
def scenes(draw):
    policy = draw(st.sampled_from(["recover", "recover", *KINDS]))
    few = st.frozensets(st.integers(0, 12), max_size=2)
    none = st.just(frozenset())
    holders = draw(layouts())
    broken = draw(none | st.frozensets(st.integers(0, len(holders) - 1), max_size=2))
    setting = Setting(policy, holders, draw(st.integers(0, 3)), broken, draw(none | few), draw(none | few))
    move = st.tuples(st.sampled_from(MOVES), st.integers(0, 99))
    moves = draw(st.lists(move, max_size=20) | st.lists(move, min_size=40, max_size=150))
    return setting, moves


SCENES = settings(
    max_examples=EXAMPLES,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.large_base_example],
)
LINE = tuple(frozenset({part}) for part in range(3))


@SCENES
@given(scenes())
@example((Setting("recover", LINE, deadly=frozenset({1})), [("forward", 6)]))
@example((Setting("recover", LINE, bad=frozenset(range(6))), [("forward", 6)]))
@example((Setting("recover", LINE, broken=frozenset({0, 1})), [("forward", 6), ("reset", 0)]))
@example((Setting("skip", LINE, broken=frozenset({2})), [("forward", 6)]))
@example((Setting("recover", LINE, 0, broken=frozenset({0}), deadly=frozenset({0})), []))
def test_whatever_happens_every_forward_ends_and_rightly(scene):
    setting, moves = scene
    shell = Shell(setting)
    for move, pick in moves:
        shell.move(move, pick)
    shell.drain()
    shell.begin(5)
    shell.drain()
    assert shell.forward.outcome is not None
    shell.reset()
    shell.drain()
    shell.begin(3)
    shell.drain()
    assert shell.forward.outcome is not None
    if not setting.broken and max({0, *setting.bad, *setting.deadly}) < shell.numbers - 3:
        assert shell.forward.outcome == FinishForward()
        assert set(shell.forward.reached.values()) == {setting.parts}
        assert not shell.state.forward.dropped
