"""The list of device states: read now, written with what it stands for."""

import numpy as np
import pytest

from ms_recover.errors import UsageError
from ms_recover.splitting.device_states import DeviceStates
from ms_recover.splitting.progress import Device


@pytest.fixture
def devices():
    return [Device(number, frozenset({0}), status="at work") for number in range(3)]


@pytest.fixture
def changes():
    return []


@pytest.fixture
def states(devices, changes):
    return DeviceStates(devices, changes.append)


def test_it_reads_like_a_list_and_as_of_now(states, devices):
    assert states == [True, True, True]
    assert list.__eq__([True], states) is NotImplemented  # so that a list on the left is equal as well
    devices[1].status = "starting"
    assert states == [True, False, True]
    assert states != [True, True, True]
    assert (states[1], states[-1], states[:2], len(states)) == (False, True, [True, False], 3)
    assert (list(states), repr(states), states.count(False), states.index(False)) == (
        [True, False, True],
        "[True, False, True]",
        1,
        1,
    )
    assert any(states)
    assert not all(states)
    with pytest.raises(IndexError):
        states[3]


def test_one_some_or_all_can_be_assigned(states, changes):
    states[1] = False
    states[-1] = True
    states[1:] = (True, False)
    states[::2] = [False, False]
    states.assign(np.array([True, False, True]).tolist())
    states[0] = np.bool_(False)
    several = [{1: True, 2: False}, {0: False, 2: False}, {0: True, 1: False, 2: True}]
    assert changes == [{1: False}, {2: True}, *several, {0: False}]


@pytest.mark.parametrize("value", [0, 1, None, "True", 1.0, [True], object()])
def test_a_state_that_is_no_bool_is_refused(states, changes, value):
    with pytest.raises(UsageError, match="expected a bool"):
        states[0] = value
    with pytest.raises(UsageError, match="expected a bool"):
        states.assign([True, value, True])
    assert changes == []


@pytest.mark.parametrize("values", [[], [True], [True] * 4, (False,) * 2])
def test_a_list_of_another_length_is_refused(states, changes, values):
    with pytest.raises(UsageError, match=f"{len(values)} device states for 3 devices"):
        states.assign(values)
    assert changes == []


@pytest.mark.parametrize("values", [True, None, "TFT", 3, {0: True}, {True}])
def test_something_else_than_a_list_is_refused(states, changes, values):
    with pytest.raises(UsageError, match="expected a list of bool"):
        states.assign(values)
    assert changes == []


@pytest.mark.parametrize(("key", "words"), [(3, "no device 3"), (-4, "no device -4"), ("1", "'1'"), (1.0, "1.0")])
def test_a_device_that_is_not_there_is_refused(states, changes, key, words):
    with pytest.raises(UsageError, match=words):
        states[key] = False
    assert changes == []
