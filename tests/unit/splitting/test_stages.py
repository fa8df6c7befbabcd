from collections import OrderedDict

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting.stages import (  # noqa: E402
    ModelPart,
    Stage,
    absorb_first_operator_error,
    estimated_costs,
    measured_costs,
    parameters_of,
    stages_of,
    whole_model,
)


@pytest.fixture(autouse=True, scope="module")
def first_operator_error_absorbed():
    absorb_first_operator_error()


def rows(*shape):
    return ms.Tensor.from_numpy(np.random.default_rng(1).standard_normal(shape).astype(np.float32))


class TwoInputs(nn.Cell):
    def __init__(self):
        super().__init__()
        self.dense = nn.Dense(4, 4)

    def construct(self, x, y, factor=1.0):
        return self.dense(x) + y * factor, y


class Sum(nn.Cell):
    def construct(self, pair):
        return pair[0] + pair[1]


class Declared(nn.Cell):
    def __init__(self, declared=None):
        super().__init__()
        self.first = TwoInputs()
        self.then = Sum()
        self.rest = nn.SequentialCell(nn.Dense(4, 3), nn.ReLU())
        self.declared = declared

    def construct(self, x, y, factor=1.0):
        return self.rest(self.then(self.first(x, y, factor)))

    def stages(self):
        return self.declared() if self.declared else [self.first, self.then, self.rest]


class NoPrefix(nn.Cell):
    """Its parameter is called the same in every one."""

    def __init__(self, width):
        super().__init__()
        self.own = ms.Parameter(ms.Tensor.from_numpy(np.full(width, width, np.float32)), name="own")

    def construct(self, x):
        return x + self.own[0]


class Clashing(nn.Cell):
    def __init__(self):
        super().__init__(auto_prefix=False)
        self.a, self.b = NoPrefix(2), NoPrefix(3)
        self.c = NoPrefix(4)
        self.c.own.name = "stage_1.own"

    def construct(self, x):
        return self.c(self.b(self.a(x)))

    def stages(self):
        return (self.a, self.b, self.c)


def test_a_sequence_is_its_cells_and_so_are_sequences_in_it():
    model = nn.SequentialCell(
        nn.Dense(4, 5), nn.SequentialCell(nn.Dense(5, 5), nn.SequentialCell(nn.ReLU()), nn.Dense(5, 2))
    )
    stages = stages_of(model)
    assert [stage.name for stage in stages] == ["0", "1.0", "1.1.0", "1.2"]
    assert [stage.index for stage in stages] == [0, 1, 2, 3]
    assert list(parameters_of(stages)) == [parameter.name for parameter in model.get_parameters()]
    x = rows(7, 4)
    want = model(x).asnumpy()
    for cut in range(1, 4):
        assert np.array_equal(ModelPart(stages[cut:])(ModelPart(stages[:cut])(x)).asnumpy(), want)


def test_named_cells_and_cells_that_are_used_twice():
    twice = nn.Dense(4, 4)
    model = nn.SequentialCell(OrderedDict(first=twice, then=nn.ReLU(), last=twice))
    stages = stages_of(model)
    assert [stage.name for stage in stages] == ["first", "then", "last"]
    assert stages[0].parameters == stages[2].parameters
    assert len(parameters_of(stages)) == 2
    x = rows(3, 4)
    assert np.array_equal(ModelPart(stages)(x).asnumpy(), model(x).asnumpy())


def test_a_cell_can_declare_its_stages():
    model = Declared()
    stages = stages_of(model)
    assert [stage.name for stage in stages] == ["first", "then", "rest.0", "rest.1"]
    assert list(parameters_of(stages)) == [parameter.name for parameter in model.get_parameters()]
    x, y = rows(3, 4), rows(3, 4)
    got = ModelPart(stages[1:])(ModelPart(stages[:1])(x, y, factor=2.0))
    assert np.array_equal(got.asnumpy(), model(x, y, 2.0).asnumpy())
    assert [stage.name for stage in stages_of(Declared(lambda: nn.CellList([nn.ReLU(), Sum()])))] == ["0", "1"]


class Extended(nn.SequentialCell):
    def construct(self, x):
        return super().construct(x) + 1


def test_a_sequence_with_own_construct_or_hooks_is_one_stage():
    inner = Extended(nn.Dense(3, 3))
    hooked = nn.SequentialCell(nn.Dense(3, 3))
    hooked.register_forward_hook(lambda cell, inputs, output: output * 2)
    for cell in (inner, hooked):
        with pytest.raises(UsageError, match=r"stages\(\).*split=\"batch\""):
            stages_of(cell)
        stages = stages_of(nn.SequentialCell(cell, nn.ReLU()))
        assert len(stages) == 2
        assert stages[0].cell is cell


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (lambda: nn.Dense(2, 2), r"Dense does not define its stages.*split=\"batch\""),
        (nn.SequentialCell, "no stages"),
        (lambda: nn.SequentialCell(nn.SequentialCell()), "no stages"),
        (lambda: Declared(list), "no stages"),
        (lambda: Declared(lambda: [nn.ReLU(), print]), "list of ReLU, builtin_function_or_method"),
        (lambda: Declared(nn.ReLU), "not ReLU"),
        (lambda: print, "not builtin_function_or_method"),
        (lambda: nn.SequentialCell(nn.ReLU(), nn.Dropout(p=0.5)).set_train(), "training mode.*set_train"),
        (lambda: nn.SequentialCell(nn.BatchNorm2d(3, use_batch_statistics=True)), "BatchNorm2d 0 normalizes"),
    ],
)
def test_models_that_cannot_be_cut_are_refused(model, words):
    with pytest.raises(UsageError, match=words):
        stages_of(model())


def test_one_cell_in_training_mode_is_found():
    model = nn.SequentialCell(nn.Dense(2, 2), nn.SequentialCell(nn.ReLU(), nn.Dropout(p=0.5)))
    model[1][1].set_train()
    for find in (stages_of, whole_model):
        with pytest.raises(UsageError, match=r"Dropout 1\.1 is in training mode"):
            find(model)


def test_a_whole_model_is_one_stage():
    model = Declared()
    (stage,) = whole_model(model)
    assert (stage.index, stage.cell) == (0, model)
    assert list(stage.parameters) == [parameter.name for parameter in model.get_parameters()]
    x, y = rows(3, 4), rows(3, 4)
    assert np.array_equal(ModelPart([stage])(x, y, factor=3.0).asnumpy(), model(x, y, 3.0).asnumpy())
    with pytest.raises(UsageError, match="not list"):
        whole_model([model])


def test_parameters_with_the_same_name_get_different_ones():
    stages = stages_of(Clashing())
    assert [list(stage.parameters) for stage in stages] == [["own"], ["stage_1.own_2"], ["stage_1.own"]]
    assert [parameter.shape for parameter in parameters_of(stages).values()] == [(2,), (3,), (4,)]
    assert [parameter.name for parameter in parameters_of(stages).values()] == ["own", "own", "stage_1.own"]


def test_stages_of_two_models_cannot_be_one_part():
    one, other = (stages_of(nn.SequentialCell(nn.Dense(2, 2)))[0] for _ in range(2))
    with pytest.raises(UsageError, match=r"two parameters are named '0\.weight'"):
        parameters_of([one, other])


def test_a_part_refuses_invalid_stages_and_arguments():
    stages = stages_of(nn.SequentialCell(nn.ReLU(), nn.ReLU(), nn.ReLU()))
    for wrong in ([], stages[::2], stages[::-1]):
        with pytest.raises(UsageError, match="consecutive"):
            ModelPart(wrong)
    x = rows(2)
    for args, kwargs in (((), {}), ((x, x), {}), ((x,), {"x": x})):
        with pytest.raises(UsageError, match=r"stage 1 \(1\) takes one argument"):
            ModelPart(stages[1:])(*args, **kwargs)


def test_estimated_costs_are_numbers_of_elements():
    assert estimated_costs(stages_of(nn.SequentialCell(nn.Dense(4, 5), nn.ReLU()))) == [26.0, 1.0]


def test_measured_costs_are_the_fastest_runs():
    ticks = iter([0.0, 5.0, 5.0, 8.0, 8.0, 12.0, 20.0, 21.0, 21.0, 23.0, 23.0, 26.0])
    stages = stages_of(Declared())[:2]
    assert measured_costs(stages, (rows(2, 4), rows(2, 4)), lambda: next(ticks)) == [3.0, 1.0]


def test_measured_costs_of_large_stages_are_larger():
    model = nn.SequentialCell(nn.Dense(64, 64), nn.Dense(64, 2048), nn.Dense(2048, 2048), nn.Dense(2048, 8))
    costs = measured_costs(stages_of(model), (rows(512, 64),))
    assert max(costs) == costs[2]
    assert min(costs) > 0


def test_stages_are_compared_by_identity():
    assert Stage(0, "", None) != Stage(0, "", None)


class Loose(nn.Cell):
    """No chain that can be followed, though it is one."""

    def __init__(self):
        super().__init__()
        self.first = nn.Dense(4, 4)
        self.blocks = nn.CellList([nn.Dense(4, 4), nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())])
        self.last = nn.Dense(4, 2)

    def construct(self, x):
        x = self.first(x.reshape(x.shape[0], -1))
        for block in self.blocks:
            x = block(x)
        return self.last(x)


def test_stages_are_given_as_cells_or_names():
    model = Loose()
    cells = [model.first, *model.blocks, model.last]
    names = ["first", "blocks.0", "blocks.1.0", "blocks.1.1", "last"]
    for given in (cells, tuple(cells), nn.CellList(cells), ["first", "blocks.0", "blocks.1", "last"], names):
        assert [stage.name for stage in stages_of(model, given)] == names
    x = rows(5, 4)
    assert np.array_equal(ModelPart(stages_of(model, names))(x).asnumpy(), model(x).asnumpy())
    alone = nn.ReLU()
    assert [stage.name for stage in stages_of(model, [model.first, alone])] == ["first", "1"]


@pytest.mark.parametrize("given", ["first", 3, {"first"}, [lambda x: x], ["nothing"], [""], [None], [5], []])
def test_given_stages_that_are_no_cells_are_refused(given):
    with pytest.raises(UsageError, match="stage"):
        stages_of(Loose(), given)


def test_a_chain_that_cannot_be_followed_is_assumed_only_where_it_is_asked_for():
    model = Loose()
    with pytest.raises(UsageError, match=r"looks at shape of its argument.*stages="):
        stages_of(model)
    found = stages_of(model, assume_chain=True)
    assert [stage.name for stage in found] == ["first", "blocks.0", "blocks.1.0", "blocks.1.1", "last"]
