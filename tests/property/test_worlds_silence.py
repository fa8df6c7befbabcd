"""Random histories of connections: one that is cut is noticed in time, and nothing else is taken for a cut.

The kernel is a model: it repeats data after pauses that double, and probes idle connections and closed windows.
"""

import math

from hypothesis import assume, given, settings
from hypothesis import strategies as st

from ms_recover.worlds.silence import Found, Seen, TcpInfo, judge, limit_s, look_s, pause_s
from tests.support.examples import examples

HEARTBEATS = st.one_of(st.sampled_from([0.2, 1.0, 1.22, 4 / 3, 3.0, 10.0, 60.0]), st.floats(0.2, 100))
FIRST = st.floats(0.2, 0.3)
"""Seconds that the kernel waits before it repeats data for the first time."""
SHARES = st.floats(0, 1, exclude_max=True)


class Kernel:
    """One side of a connection that is idle, or whose window is closed, and that owes data from `sends` on.

    `passes` says whether the network carries something at a moment; `capped` whether pauses between repetitions are.
    """

    def __init__(self, heartbeat, passes, first, sends=math.inf, *, closed=False, capped=True):
        self.passes, self.first, self.sends, self.closed, self.capped = passes, first, sends, closed, capped
        self.pause = pause_s(heartbeat)
        self.owes, self.first_lost = False, math.inf
        self.answered, self.probes, self.retransmits, self.wait, self.due = 0.0, 0, 0, self.pause, self.pause

    def look(self, now):
        """Return what it says, and let it repeat a probe of an idle connection, as a look does."""
        while min(self.due, self.sends) <= now:
            if self.sends <= self.due:
                self._try(self.sends, 0)
                self.sends = math.inf
            else:
                self._try(self.due, 1)
        since = now - self.answered
        info = TcpInfo(self.retransmits, min(self.probes, 127), since, since)
        if not self.owes and not self.closed and 0 < self.probes < 10:
            self.due = now
        return info

    def _try(self, at, repeated):
        if self.passes(at):
            self.answered, self.probes, self.retransmits, self.owes, self.wait = at, 0, 0, False, self.pause
            self.due = at + self.wait
            return
        self.first_lost = min(self.first_lost, at)
        if not repeated:
            self.owes, self.wait = True, self.first
        elif self.owes:
            self.retransmits += 1
            self.wait = min(2 * self.wait, self.pause) if self.capped else 2 * self.wait
        else:
            self.probes += 1
        self.due = at + self.wait


def judged(heartbeat, looks, found):
    """Look at these moments; return when there was a verdict first, and which."""
    seen = Seen(0.0, 0.0)
    for at in looks:
        seen, verdict = judge(seen, found(at), heartbeat)
        if verdict:
            return at, verdict
    return math.inf, ""


def regular(heartbeat, until):
    step = look_s(heartbeat)
    return [step * number for number in range(1, int(until / step) + 2)]


def in_time(heartbeat):
    return max(3 * heartbeat, 4)


@settings(max_examples=examples(300))
@given(HEARTBEATS, FIRST, st.booleans(), SHARES, st.one_of(SHARES, st.just(math.inf)))
def test_a_connection_that_is_cut_is_noticed_in_time(heartbeat, first, closed, cut, sends):
    """Whether it is idle, owes data, or waits for a peer that does not read.

    Time counts from the cut; with short heartbeats, from the first packet that is lost.
    """
    cut, sends = 4 * heartbeat * cut, math.inf if closed else 8 * heartbeat * sends
    kernel = Kernel(heartbeat, lambda at: at < cut, first, sends, closed=closed)
    looks = regular(heartbeat, cut + 4 * in_time(heartbeat))
    at, verdict = judged(heartbeat, looks, lambda at: Found(at, kernel.look(at), True, 0, 0))
    assert verdict == "unanswered"
    assert cut < at <= (cut if heartbeat >= 3 else kernel.first_lost) + in_time(heartbeat)


@settings(max_examples=examples(300))
@given(HEARTBEATS, SHARES, SHARES)
def test_bytes_that_are_held_are_noticed_in_time(heartbeat, begun, late):
    """Both kernels see a healthy connection; the peer's heartbeats say that it has passed more than came."""
    begun = 4 * heartbeat * begun
    # What a peer passed is known after its look, its heartbeat, a report of the helper, and a look here.
    known = begun + late * (2 * look_s(heartbeat) + heartbeat / 10 + 0.25)
    looks = regular(heartbeat, begun + 4 * in_time(heartbeat))

    def found(at):
        since = max(at - begun, 0.0)
        return Found(at, TcpInfo(0, 0, since, 0.1), True, 1000, 1001 if at >= known else 1000)

    at, verdict = judged(heartbeat, looks, found)
    assert verdict == "held"
    assert begun < at <= begun + in_time(heartbeat)


PAUSES = st.lists(st.floats(0, 1), min_size=1, max_size=200)
"""How much later than it should a look comes: this process was stopped, starved or computed meanwhile."""


def irregular(heartbeat, pauses):
    at = 0.0
    for pause in pauses:
        at += look_s(heartbeat) + heartbeat * max(0.0, 10 * pause - 9)
        yield at
    yield from (at + look for look in regular(heartbeat, 8 * in_time(heartbeat)))


@settings(max_examples=examples(300))
@given(HEARTBEATS, FIRST, st.booleans(), st.booleans(), SHARES, SHARES, st.one_of(SHARES, st.just(math.inf)), PAUSES)
def test_a_network_that_fails_for_less_than_a_heartbeat_is_no_cut(
    heartbeat, first, closed, capped, cut, length, sends, pauses
):
    cut, sends = 4 * heartbeat * cut, math.inf if closed else 8 * heartbeat * sends
    kernel = Kernel(
        heartbeat, lambda at: not cut <= at < cut + length * heartbeat, first, sends, closed=closed, capped=capped
    )
    looks = irregular(heartbeat, pauses)
    assert judged(heartbeat, looks, lambda at: Found(at, kernel.look(at), True, 0, 0)) == (math.inf, "")


@settings(max_examples=examples(300))
@given(HEARTBEATS, st.lists(st.tuples(SHARES, st.integers(0, 2)), max_size=60), PAUSES)
def test_a_member_that_does_not_read_or_gets_bytes_now_and_then_starves_of_nothing(heartbeat, steps, pauses):
    """Bytes are missing all the time; it does not read, has not read all, or something comes before the limit."""
    changes, at = [], 0.0
    for share, kind in steps:
        at += 0.9 * share * limit_s(heartbeat)
        changes.append((at, kind))
    last = changes[-1][0] if changes else 0.0
    assume(changes)

    def found(at):
        kind = next((kind for since, kind in reversed(changes) if since <= at), 0)
        received = sum(since <= at for since, _ in changes)
        return Found(at, TcpInfo(0, 0, 1e6, 0.1), kind != 1, received, 1000)

    looks = (look for look in irregular(heartbeat, pauses) if look < last)
    assert judged(heartbeat, looks, found) == (math.inf, "")


@settings(max_examples=examples(100))
@given(HEARTBEATS, st.integers(1, 1000))
def test_time_in_which_nobody_looked_does_not_starve(heartbeat, seconds):
    """However long this member was stopped: bytes that came meanwhile are read before it looks again and again."""
    enough = math.ceil(limit_s(heartbeat) / look_s(heartbeat))
    looks = [1000.0 * seconds * number for number in range(1, 2 * enough)]
    at, verdict = judged(heartbeat, looks, lambda at: Found(at, TcpInfo(0, 0, at, 0.1), True, 0, 1))
    assert verdict == "held"
    assert at >= looks[enough - 2]
