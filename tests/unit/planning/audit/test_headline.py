"""Gates: losses that must be survived, as an operator names them."""

from types import SimpleNamespace

import pytest

from ms_recover.errors import UsageError
from ms_recover.model.steps import Step
from ms_recover.planning.audit.headline import Gate, find_level, named, parse_gate, passes


def audit(*levels, hosts_known=True, step=Step(1, 1), survived=0):  # noqa: B008
    found = tuple(SimpleNamespace(name=name, survived=count) for name, count in levels)
    return SimpleNamespace(levels=found, hosts_known=hosts_known, step=step, survived=survived)


@pytest.mark.parametrize(
    ("text", "count", "level"),
    [("host", 1, "host"), ("2hosts", 2, "hosts"), ("1rack", 1, "rack"), ("12racks", 12, "racks")],
)
def test_a_gate_is_a_number_and_a_level(text, count, level):
    assert parse_gate(text) == Gate(count=count, level=level)


@pytest.mark.parametrize(("count", "text"), [(1, "1 host"), (2, "2 hosts")])
def test_a_gate_in_words(count, text):
    assert Gate(count=count, level="host").text == text


@pytest.mark.parametrize("text", ["", "2", "0hosts", "two hosts!", "-1host"])
def test_what_is_no_gate_is_refused(text):
    with pytest.raises(ValueError, match="is no loss to survive"):
        parse_gate(text)


@pytest.mark.parametrize("word", ["host", "hosts", "HOST", "Hosts"])
def test_a_level_is_found_in_the_singular_and_the_plural(word):
    both = audit(("host", 1), ("rack", 0))
    assert find_level(both, Gate(count=1, level=word)).name == "host"
    assert named(both, Gate(count=2, level=word)) == Gate(count=2, level="host")
    assert find_level(both, Gate(count=1, level="racks")).name == "rack"


def test_hosts_may_be_unknown_and_other_levels_may_not():
    ranks = audit(("rank", 1), hosts_known=False)
    assert find_level(ranks, Gate(count=1, level="Hosts")) is None
    assert named(ranks, Gate(count=3, level="hosts")) == Gate(count=3, level="host")
    with pytest.raises(UsageError, match="nothing says where ranks live"):
        find_level(ranks, Gate(count=1, level="rack"))
    with pytest.raises(UsageError, match="the topology has host"):
        find_level(audit(("host", 1)), Gate(count=1, level="rack"))


@pytest.mark.parametrize(
    ("found", "count", "passed"),
    [
        (audit(("host", 2)), 2, True),
        (audit(("host", 2)), 3, False),
        (audit(("host", 2), step=None), 1, False),
        (audit(("rank", 1), hosts_known=False, survived=1), 1, None),
        (audit(("rank", 1), hosts_known=False, survived=0), 1, False),
    ],
)
def test_a_gate_passes_where_so_many_may_be_lost(found, count, passed):
    assert passes(found, Gate(count=count, level="host")) is passed
