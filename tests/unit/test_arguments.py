"""What counts as a number, and the words for what does not."""

import numpy as np
import pytest

from ms_recover.arguments import check_type, is_number, is_whole, ranks, texts, whole_number
from ms_recover.errors import UsageError


def test_a_bool_is_no_number():
    assert [is_number(value) for value in (True, np.bool_(1), 1, 1.5, np.float32(1), "1", None)] == [
        *(False, False),
        *(True, True, True),
        *(False, False),
    ]


@pytest.mark.parametrize("value", [2, np.int64(2), np.uint8(2)])
def test_whole_numbers_of_python_and_numpy_are_taken(value):
    assert is_whole(value, 2)
    assert not is_whole(value, 3)
    assert is_whole(value, kind=int) is (type(value) is int)
    assert type(whole_number("count", value)) is int


@pytest.mark.parametrize(
    ("check", "said"),
    [
        (lambda: whole_number("count", 2.0), "count=2.0: it must be a whole number, and is of type float"),
        (lambda: whole_number("count", True), "count=True: it must be a whole number, and is of type bool"),
        (lambda: whole_number("count", 0, 1), "count=0: it must be at least 1"),
        (lambda: check_type("run", 3, str, "a text"), "run=3: it must be a text, and is of type int"),
        (lambda: texts("keep", ["a", 3]), "keep=3: it must be a text or a list of texts, and is of type int"),
        (lambda: ranks("group", 3), "group=3: it must be a list of ranks, and is of type int"),
        (lambda: ranks("group", ["a"]), "group: a rank='a': it must be a whole number, and is of type str"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(check, said):
    with pytest.raises(UsageError) as found:
        check()
    assert str(found.value) == said
