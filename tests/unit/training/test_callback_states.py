"""Which callbacks have a state, where it goes, and what is said about those that have none."""

import numpy as np
import pytest

from ms_recover.errors import InputError, MsRecoverError

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore.train import Callback, EarlyStopping, LossMonitor, ReduceLROnPlateau  # noqa: E402

from ms_recover.training.callback_states import (  # noqa: E402
    callback_states,
    restore_callbacks,
    why_ended,
)


class Counter(Callback):
    def __init__(self, count=0):
        super().__init__()
        self.count = count

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class Half(Counter):
    load_state_dict = None


class Bare(Callback):
    """Nothing to remember."""


class Failing(Counter):
    def state_dict(self):
        raise KeyError("nothing")

    load_state_dict = Counter.load_state_dict


def test_states_go_to_the_callbacks_of_their_class_in_their_order():
    states = callback_states([Counter(1), LossMonitor(), Bare(), Counter(2)])
    assert [state["class"] for state in states] == ["Counter", "Counter"]
    restored = [Counter(), Bare(), Counter()]
    assert restore_callbacks(restored, states) == []
    assert [one.count for one in restored if isinstance(one, Counter)] == [1, 2]


@pytest.mark.parametrize("count", [0, 1, 3])
def test_other_numbers_of_callbacks_are_named(count):
    restored = [Counter() for _ in range(count)]
    assert restore_callbacks(restored, callback_states([Counter(1), Counter(2)])) == ["Counter"]
    assert [one.count for one in restored] == [1, 2, 0][:count]


def test_mindspores_own_are_handled():
    stopping, plateau = EarlyStopping("loss", patience=3), ReduceLROnPlateau("loss")
    stopping.wait, stopping.best = 2, np.float32(0.25)
    stopping.best_weights_param_dict = {"weight": ms.Parameter(ms.Tensor([1.0, 2.0]), name="weight")}
    plateau.cooldown_counter, plateau.wait = 4, 1
    states = callback_states([stopping, plateau])
    restored = [EarlyStopping("loss", patience=3), ReduceLROnPlateau("loss")]
    assert restore_callbacks(restored, states) == []
    assert (restored[0].wait, restored[0].best, restored[0].stopped_epoch) == (2, np.float32(0.25), 0)
    assert isinstance(restored[0].best_weights_param_dict["weight"], ms.Parameter)
    assert restored[0].best_weights_param_dict["weight"].asnumpy().tolist() == [1, 2]
    assert (restored[1].cooldown_counter, restored[1].wait, restored[1].best) == (4, 1, np.inf)


def test_a_state_of_their_own_comes_before_mindspores():
    class Mine(EarlyStopping, Counter):
        def __init__(self):
            EarlyStopping.__init__(self, "loss")
            self.count = 5

    assert callback_states([Mine()])[0]["state"] == {"count": 5}


def test_failures_name_the_callback():
    with pytest.raises(MsRecoverError, match=r"state_dict\(\) of the callback Failing failed: KeyError\('nothing'\)"):
        callback_states([Failing()])
    with pytest.raises(InputError, match=r"load_state_dict\(\) of the callback Counter failed: KeyError.*; give"):
        restore_callbacks([Counter()], [{"class": "Counter", "state": {}}])


@pytest.mark.parametrize(("patience", "epoch", "ended"), [(2, 3, True), (1, 3, True), (3, 3, False), (2, 4, False)])
def test_a_training_is_over_where_its_callback_has_ended_it(patience, epoch, ended):
    stopping = EarlyStopping("loss", patience=2)
    stopping.wait, stopping.stopped_epoch = 2, 3
    states = callback_states([Counter(), stopping])
    assert bool(why_ended([Counter(), EarlyStopping("loss", patience=patience)], states, epoch)) is ended
    assert why_ended([Counter()], states, epoch) is None
