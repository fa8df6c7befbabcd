"""A function that makes optimizers is refused where parts would train something else with it than one process."""

import itertools
from contextlib import closing

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting import stages  # noqa: E402
from ms_recover.splitting.saved_split import go_on_from  # noqa: E402
from ms_recover.splitting.slices import SliceStore  # noqa: E402
from ms_recover.splitting.training.own_weights import try_optimizer  # noqa: E402
from ms_recover.splitting.training.part_state import PartState  # noqa: E402
from ms_recover.splitting.values import write_values  # noqa: E402

OPTIMIZERS = {
    "SGD": lambda weights: nn.SGD(weights, 0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    "Momentum": lambda weights: nn.Momentum(weights, 0.1, 0.9, loss_scale=1024.0),
    "Adam": lambda weights: nn.Adam(weights, 1e-3),
    "schedule": lambda weights: nn.Adam(weights, nn.cosine_decay_lr(1e-4, 1e-2, 10, 5, 2)),
    "AdamWeightDecay": lambda weights: nn.AdamWeightDecay(weights, 1e-3, weight_decay=0.01),
    "groups": lambda weights: nn.Adam(
        [
            {"params": [each for each in weights if "bias" not in each.name], "weight_decay": 0.01},
            {"params": [each for each in weights if "bias" in each.name], "lr": 1e-2},
        ],
        1e-3,
    ),
}


class Before(nn.Cell):
    """An optimizer behind something that is done to its gradients."""

    def __init__(self, optimizer, change):
        super().__init__(auto_prefix=False)
        self.optimizer, self.change = optimizer, change
        self.parameters = optimizer.parameters

    def construct(self, gradients):
        return self.optimizer(self.change(gradients))


def by_numpy(gradients):
    norm = np.sqrt(sum(float((each.asnumpy().astype(np.float64) ** 2).sum()) for each in gradients))
    return tuple(each * float(min(1.0, 3.0 / (norm + 1e-6))) for each in gradients)


def where_finite(gradients):
    norm = float(ops.sqrt(sum(ops.square(each).sum() for each in gradients)).asnumpy())
    return tuple(each * (3.0 / norm) for each in gradients) if 3.0 < norm < np.inf else gradients


def skipped_where_infinite(gradients):
    finite = all(np.isfinite(each.asnumpy()).all() for each in gradients)
    return gradients if finite else tuple(map(ops.zeros_like, gradients))


def mean_of_all(gradients):
    mean = sum(each.sum() for each in gradients) / len(gradients)
    return tuple(each - mean for each in gradients)


COMMON = {
    "global norm": lambda gradients: ops.clip_by_global_norm(gradients, 1.0),
    "a small one": lambda gradients: ops.clip_by_global_norm(gradients, 1e-3),
    "a large one": lambda gradients: ops.clip_by_global_norm(gradients, 1e5),
    "list by norm": lambda gradients: tuple(ops.clip_by_norm(list(gradients), 1.0)),
    "numpy": by_numpy,
    "where finite": where_finite,
    "skipped where infinite": skipped_where_infinite,
    "mean of all": mean_of_all,
}
APART = {
    "nothing": lambda gradients: gradients,
    "value": lambda gradients: tuple(ops.clamp(each, -0.5, 0.5) for each in gradients),
    "own norm": lambda gradients: tuple(ops.clip_by_norm(each, 0.5) for each in gradients),
    "scaled": lambda gradients: tuple(each * 0.5 for each in gradients),
}


def parts_of(model, cuts=(1, 2)):
    model.set_train(False)
    found = stages.stages_of(model)
    ends = [0, *cuts, len(found)]
    return [found[start:stop] for start, stop in itertools.pairwise(ends)]


def dense():
    return parts_of(nn.SequentialCell(nn.Dense(4, 8), nn.Dense(8, 8), nn.Dense(8, 3)))


def one_weight_each():
    layers = [nn.Dense(4, 4, has_bias=False) for _ in range(3)]
    return parts_of(nn.SequentialCell(*layers))


@pytest.fixture(params=[ms.GRAPH_MODE, ms.PYNATIVE_MODE], ids=["graph", "PyNative"])
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=request.param)
    yield request.param
    ms.set_context(mode=before)


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("change", COMMON)
def test_an_update_that_depends_on_the_gradients_of_other_weights_is_refused(optimizer, change):
    def function(weights):
        return Before(OPTIMIZERS[optimizer](weights), COMMON[change])

    with pytest.raises(UsageError, match=r"optimizer=.*function lets the update .*clip_norm="):
        try_optimizer(function, dense())


@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize("change", APART)
def test_an_update_that_depends_on_its_own_gradient_alone_is_accepted(optimizer, change):
    try_optimizer(lambda weights: Before(OPTIMIZERS[optimizer](weights), APART[change]), dense())


class Clipped(nn.Adam):
    def construct(self, gradients):
        return super().construct(ops.clip_by_global_norm(gradients, 1.0))


def subclass(weights):
    return Clipped(weights, 1e-3)


def hooked(weights):
    made = nn.Momentum(weights, 0.1, 0.9)
    made.register_forward_pre_hook(lambda cell, given: (ops.clip_by_global_norm(given[0], 1.0),))
    return made


@pytest.mark.parametrize("function", [subclass, hooked])
@pytest.mark.parametrize("parts", [dense, one_weight_each, lambda: [[], []]], ids=["dense", "one each", "made there"])
def test_it_is_found_however_it_is_written_and_whatever_the_parts_are(mode, function, parts):
    with pytest.raises(UsageError, match=function.__name__):
        try_optimizer(function, parts())
    assert ms.get_context("mode") == mode
    model = nn.SequentialCell(nn.Dense(4, 8), nn.Dense(8, 3))
    try_optimizer(function, parts_of(model, ()))  # one part has all gradients
    try_optimizer(OPTIMIZERS["Adam"], parts())


def test_what_cannot_be_tried_or_repeated_is_left_to_the_workers():
    drawn = np.random.default_rng(0)

    def raises(weights):
        raise ValueError("only with the weights themselves")

    def random(weights):
        return nn.SGD(weights, float(drawn.uniform(0.1, 1.0)))

    for function in (raises, random):
        try_optimizer(function, dense())


STATES = {
    **OPTIMIZERS,
    "RMSProp": lambda weights: nn.RMSProp(weights, 0.1),
    "another learning rate": lambda weights: nn.Adam(weights, 5e-2, beta1=0.5),
    "a longer schedule": lambda weights: nn.Adam(weights, nn.cosine_decay_lr(1e-4, 1e-2, 20, 5, 4)),
    "amsgrad": lambda weights: nn.Adam(weights, 1e-3, use_amsgrad=True),
    "frozen": lambda weights: nn.SGD([each for each in weights if "bias" not in each.name], 0.1),
}


def state_of(function, part):
    weights = [each for each in stages.parameters_of(part).values() if each.requires_grad]
    return PartState(stages.ModelPart(part), function(weights) if weights else None).others


def described(function, parts):
    return [
        {name: (str(value.dtype), tuple(value.shape)) for name, value in state_of(function, part).items()}
        for part in parts
    ]


def with_statistics():
    """Parts of which one has parameters that are not trained, and one has no others."""
    return parts_of(nn.SequentialCell(nn.Dense(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dense(8, 3)), (2, 3))


@pytest.fixture(scope="module", params=[dense, with_statistics], ids=["dense", "statistics"])
def saved(request, tmp_path_factory):
    """Return parts, and for each optimizer what a training with it saved."""
    parts, found = request.param(), {}
    for name, function in STATES.items():
        directory = tmp_path_factory.mktemp("slices")
        with closing(SliceStore(directory, len(parts), 1)) as store:
            for number, part in enumerate(parts):
                values = stages.ModelPart(part).slice_values(number, 3) | state_of(function, part)
                store.save(number, lambda path, values=values: write_values(values, path), values, 7)
            store.settle(7)
        found[name] = go_on_from(directory, True).manifests
    return parts, found


@pytest.mark.parametrize("now", STATES)
def test_a_resume_with_another_optimizer_is_refused_and_no_other(saved, now):
    parts, manifests = saved
    for before, function in STATES.items():
        if described(function, parts) == described(STATES[now], parts):
            try_optimizer(STATES[now], parts, manifests[before])
            try_optimizer(STATES[now], [[]] * len(parts), manifests[before])
            continue
        with pytest.raises(UsageError, match=r"the state of another optimizer than optimizer=.*lambda.* makes: .*"):
            try_optimizer(STATES[now], parts, manifests[before])


@pytest.mark.parametrize(("before", "now"), list(itertools.permutations(["Adam", "SGD", "Momentum"], 2)))
def test_it_is_refused_where_workers_make_the_model_too(saved, before, now):
    parts, manifests = saved
    with pytest.raises(UsageError, match="state of another optimizer"):
        try_optimizer(STATES[now], [[]] * len(parts), manifests[before])


def lacks_a_kernel(gradients):
    return tuple(ops.Erfinv()(each.astype(ms.bfloat16)).astype(ms.float32) for each in gradients)


def raises_meanwhile(gradients):
    lacks_a_kernel(gradients)
    ops.matmul(gradients[0], ms.Tensor(np.zeros((3, 5, 7), np.float32)))
    raise KeyError("before the operators have ended")


@pytest.mark.parametrize("change", [lacks_a_kernel, raises_meanwhile])
def test_an_operator_that_fails_in_the_trial_does_not_fail_later_ones(change):
    for _ in range(5):
        try_optimizer(lambda weights: Before(OPTIMIZERS["SGD"](weights), change), dense())
        assert ops.square(ms.Tensor(np.full(3, 2.0, np.float32))).asnumpy().tolist() == [4.0] * 3
