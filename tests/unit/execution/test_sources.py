import pytest

from ms_recover.errors import MissingInputError, StorageError
from ms_recover.execution.sources import BadSourceError, Sources, blaming_source, without_others


def taker(sources, bad, tries):
    """Return work that takes the first source which is not dropped, and fails with those that are `bad`."""

    def take():
        number = sources.first(range(3))
        tries.append(number)
        with blaming_source(number):
            if number in bad:
                raise MissingInputError(f"no {number}")
        return number

    return take


def test_a_bad_source_is_dropped_and_the_next_is_tried():
    sources, tries, undone = Sources(["one", "two", "three"]), [], []
    assert sources.attempt(taker(sources, {0, 1}, tries), lambda failure: undone.append(failure.number)) == 2
    assert (tries, undone) == ([0, 1, 2], [0, 1])
    assert sources.dropped == ["one: no 0", "two: no 1"]
    assert sources.first([0, 1, 2]) == 2
    sources.try_again()
    assert sources.first([0, 1, 2]) == 0


def test_when_all_are_bad_the_error_is_that_of_the_first():
    sources = Sources(["one", "two", "three"])
    with pytest.raises(MissingInputError, match="no 0"):
        sources.attempt(taker(sources, {0, 1, 2}, []))
    assert len(sources.dropped) == 3


def test_an_error_that_blames_no_source_ends_the_attempt():
    def fail():
        raise StorageError("full")

    sources = Sources(["one"])
    with pytest.raises(StorageError, match="full"):
        sources.attempt(fail)
    assert sources.dropped == []


def test_where_no_other_serves_the_error_is_the_sources_own():
    with pytest.raises(MissingInputError, match="gone"), without_others():
        raise BadSourceError(MissingInputError("gone"))
