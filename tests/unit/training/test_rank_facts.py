"""What describes a rank in a few numbers: it survives a gather and a state file, and each rank has its keepers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.formats.state import decode_state, encode_state, fingerprint
from ms_recover.training.rank_facts import (
    MOST_PEERS,
    RankFacts,
    facts_of,
    peers_of,
    states_differ,
    whole_number,
)

LONG = st.integers(-(1 << 63), (1 << 63) - 1)
FACTS = st.builds(
    RankFacts,
    seed=st.integers(0, (1 << 32) - 1),
    shuffled=st.booleans(),
    accumulate=st.integers(1, 1 << 20),
    shard=st.integers(0, (1 << 16) - 1),
    shards=st.integers(1, (1 << 16) - 1),
    drawn=st.none() | st.integers(0, (1 << 32) - 2),
    batch=LONG,
    states=LONG,
    whole=LONG,
    known=st.booleans(),
)
PLAIN = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5) | st.binary()
VALUES = st.recursive(
    PLAIN,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(st.text(max_size=4), inner, max_size=4)
        | st.sets(st.integers() | st.text(max_size=3), max_size=4)
        | st.tuples(inner, inner)
    ),
    max_leaves=12,
)


@given(FACTS)
def test_facts_survive_a_gather_and_a_state_file(facts):
    assert all(-(1 << 31) <= number < 1 << 31 for number in facts.numbers)
    assert 4 * len(facts.numbers) <= 40
    assert RankFacts.of_numbers(facts.numbers) == facts
    assert RankFacts.of_values(decode_state(encode_state(facts.values))) == facts


@pytest.mark.parametrize("values", [None, 3, {}, {"seed": "1"}, RankFacts().values | {"drawn": "x"}])
def test_what_is_no_description_gives_none(values):
    assert RankFacts.of_values(values) is None


@given(VALUES)
def test_a_fingerprint_is_that_of_the_value_in_a_file(value):
    assert fingerprint(decode_state(encode_state({"a": value}))["a"]) == fingerprint(value)


@given(st.lists(VALUES, min_size=2, max_size=6))
def test_other_values_have_other_fingerprints(values):
    for one in values:
        for other in values:
            assert (fingerprint(one) == fingerprint(other)) == (repr_of(one) == repr_of(other))


def repr_of(value):
    """Return a text that is equal for equal values, whatever the order of sets and mappings."""
    if isinstance(value, dict):
        return f"dict{sorted((repr_of(key), repr_of(item)) for key, item in value.items())}"
    if isinstance(value, set):
        return f"set{sorted(map(repr_of, value))}"
    if isinstance(value, (list, tuple)):
        return f"{type(value).__name__}{[repr_of(item) for item in value]}"
    return repr(value)


@given(st.sets(st.integers(0, 60), min_size=1, max_size=40))
def test_each_rank_has_as_many_keepers_as_there_are(group):
    facts = [RankFacts(states=rank) for rank in range(61)]
    kept = {rank: peers_of(rank, sorted(group), facts) for rank in group}
    for rank in group:
        keepers = [one for one in group if rank in kept[one]]
        assert rank not in keepers
        assert len(keepers) == min(len(group) - 1, MOST_PEERS)
        assert all(kept[one][rank] == facts[rank] for one in keepers)


def state(**changed):
    return {
        "generators": {"python": [1], "numpy": [2]},
        "drawn_generators": ["numpy"],
        "callbacks": [],
        "extra": None,
        "order": {"seed": 3, "shuffled": True, "accumulate": 1, "shard": 1, "shards": 2},
        "batch": [["Float32", [4], "digest", ""]],
        "drawn": 7,
    } | changed


def test_only_states_that_a_training_can_have_of_its_own_differ():
    facts = [
        facts_of(state()),
        facts_of(state(generators={"python": [9], "numpy": [2]})),  # nobody drew from it
        facts_of(state(drawn=8, batch=[], order={})),
        facts_of(state(generators={"python": [1], "numpy": [9]})),
        facts_of(state(extra={"bank": 1})),
    ]
    assert not states_differ((0, 1, 2), facts)
    assert states_differ((0, 3), facts)
    assert states_differ((1, 4), facts)
    assert len({one.whole for one in facts}) == 5
    assert facts[0].order == {"seed": 3, "shuffled": True, "accumulate": 1, "shard": 1, "shards": 2}
    assert facts[2].order == {}


def test_what_a_state_says_of_others_is_no_part_of_its_own():
    assert whole_number(state()) == whole_number(state(peers={"0": 1}, claim={"run_id": "r"}))
