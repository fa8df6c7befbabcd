import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import nn, ops  # noqa: E402

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.splitting.pickling import dump_stages, from_factory, import_modules, load_stages  # noqa: E402
from ms_recover.splitting.stages import ModelPart, absorb_first_operator_error, parameters_of, stages_of, whole_model  # noqa: E402

ROOT = Path(__file__).parents[3]

MODELS = """
import sys
from functools import partial

import numpy as np
import mindspore as ms
from mindspore import mint, nn, ops

from ms_recover.splitting.pickling import dump_stages
from ms_recover.splitting.stages import parameters_of, absorb_first_operator_error, stages_of, whole_model

absorb_first_operator_error()
ms.set_context(mode=int(sys.argv[1]))
ms.set_seed(1)


def twice(x):
    return ops.add(x, x)


class Residual(nn.Cell):
    def __init__(self, width):
        super().__init__()
        self.inner = nn.Dense(width, width, activation="tanh")
        self.norm = nn.LayerNorm((width,))
        self.scale = ms.Parameter(ms.Tensor.from_numpy(np.full(width, 0.5, np.float32)), name="scale")
        self.shift = ms.Tensor.from_numpy(np.arange(width, dtype=np.float32))
        self.matmul = ops.MatMul(transpose_b=True)
        wide = ms.Tensor.from_numpy(np.arange(width, dtype=np.float32))
        # a constant of a type that numpy has not cannot be compiled
        self.wide = wide.astype(ms.bfloat16 if sys.argv[1] == "1" else ms.float16)

    def construct(self, x):
        y = self.norm(self.inner(x)) * self.scale + self.shift
        return self.matmul(y, self.inner.weight) + twice(x) + ops.cast(self.wide, ms.float32)


class Tied(nn.Cell):
    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Dense(8, 8, has_bias=False), nn.Dense(8, 8, has_bias=False)
        self.b.weight = self.a.weight

    def construct(self, x):
        return self.b(ops.relu(self.a(x)))


class Closure(nn.Cell):
    def __init__(self, factor):
        super().__init__()
        self.by = lambda x: ops.tanh(x) * factor

    def construct(self, x):
        return self.by(x)


class Buffered(nn.Cell):
    def __init__(self):
        super().__init__()
        self.register_buffer("table", ms.Tensor.from_numpy(np.arange(8, dtype=np.float32)))

    def construct(self, x):
        return x + self.table


def models():
    yield "mlp", nn.SequentialCell(nn.Dense(8, 16, activation="relu"), Residual(16), nn.Dense(16, 3)), (5, 8)
    yield "tied", nn.SequentialCell(Tied(), nn.ReLU(), nn.Softmax()), (5, 8)
    yield "buffered", Buffered(), (5, 8)
    yield "conv", nn.SequentialCell(
        nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.MaxPool2d(2, 2), nn.AvgPool2d(2), nn.Flatten(),
        nn.Dense(72, 4), nn.GELU(), nn.Dropout(p=0.5),
    ), (5, 3, 8, 8)
    yield "transposed", nn.SequentialCell(
        nn.Conv2dTranspose(3, 4, 3), nn.GroupNorm(2, 4), nn.LeakyReLU(), nn.PReLU(4)
    ), (5, 3, 8, 8)
    yield "half", nn.SequentialCell(nn.Dense(8, 8), nn.ReLU()).to_float(ms.float16), (5, 8)
    if sys.argv[1] == "0":
        return
    yield "closure", nn.SequentialCell(Closure(3.0), nn.Dense(8, 8)), (5, 8)
    yield "encoder", nn.TransformerEncoder(nn.TransformerEncoderLayer(16, 2, 32), 2), (4, 5, 16)
    yield "lstm", nn.LSTM(4, 5), (3, 2, 4)
    yield "gru", nn.GRU(4, 5, bidirectional=True), (3, 2, 4)
    yield "mint", nn.SequentialCell(mint.nn.Linear(8, 8), mint.nn.ReLU(), mint.nn.Dropout(0.5)), (5, 8)


def first(output):
    return output[0] if isinstance(output, tuple) else output


if __name__ == "__main__":
    for name, model, shape in models():
        model.set_train(False)
        x = np.random.default_rng(2).standard_normal(shape).astype(np.float32)
        before = first(model(ms.Tensor.from_numpy(x))).asnumpy().copy()
        stages = stages_of(model) if isinstance(model, nn.SequentialCell) else whole_model(model)
        with open(f"{name}.stages", "wb") as file:
            file.write(dump_stages(stages))
        weights = {key: each.asnumpy() for key, each in parameters_of(stages).items()}
        np.savez(f"{name}.npz", x=x, before=before, **{f"weight.{key}": each for key, each in weights.items()})
        after = first(model(ms.Tensor.from_numpy(x))).asnumpy()
        assert np.array_equal(before, after), name
"""

TAKER = """
import glob, sys
import numpy as np
import mindspore as ms

from ms_recover.splitting.pickling import load_stages
from ms_recover.splitting.stages import ModelPart, parameters_of

ms.set_context(mode=int(sys.argv[1]))
done = []
for path in sorted(glob.glob("*.stages")):
    with open(path, "rb") as file:
        stages = load_stages(file.read())
    name, saved = path.removesuffix(".stages"), np.load(path.replace(".stages", ".npz"))
    parameters = parameters_of(stages)
    assert {f"weight.{key}" for key in parameters} == {key for key in saved if key.startswith("weight.")}, name
    for key, parameter in parameters.items():
        parameter.set_data(ms.Tensor.from_numpy(saved[f"weight.{key}"]))
    value = ModelPart(stages)(ms.Tensor.from_numpy(saved["x"]))
    got = (value[0] if isinstance(value, tuple) else value).asnumpy()
    assert got.dtype == saved["before"].dtype, name
    assert np.array_equal(got, saved["before"]), name
    done.append(name)
print(*done)
"""


def run(folder, *arguments):
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": str(ROOT), "HOME": str(folder)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stdout.splitlines()[-1:] and done.stdout.splitlines()[-1].split()


@pytest.mark.parametrize("mode", ["pynative", "graph"])
def test_another_process_computes_the_same(tmp_path, mode):
    number = {"graph": "0", "pynative": "1"}[mode]
    script = tmp_path / "models.py"
    script.write_text(MODELS)
    run(tmp_path, str(script), number)
    done = run(tmp_path, "-c", TAKER, number)
    assert {"mlp", "conv", "tied", "buffered", "transposed", "half"} <= set(done)
    assert len(done) == (6 if mode == "graph" else 11)


@pytest.fixture(autouse=True, scope="module")
def first_operator_error_absorbed():
    absorb_first_operator_error()


def there_and_back(*cells):
    return [stage.cell for stage in load_stages(dump_stages(stages_of(nn.SequentialCell(list(cells)))))]


class Holder(nn.Cell):
    """Has something, whatever it is."""

    def __init__(self, thing):
        super().__init__()
        self.thing = thing

    def construct(self, x):
        return x


def test_pickled_stages_have_no_weights():
    stages = whole_model(nn.Dense(4096, 4096))
    data = dump_stages(stages)
    assert len(data) < 100_000
    (stage,) = load_stages(data)
    assert {name: each.shape for name, each in stage.parameters.items()} == {"weight": (4096, 4096), "bias": (4096,)}
    assert stage.parameters["weight"] is stage.cell.weight
    assert (stage.index, stage.name) == (0, "")


def test_pickled_parameters_keep_their_settings():
    model = nn.SequentialCell(nn.Dense(2, 3), nn.Dense(3, 3))
    model[1].bias = model[0].bias
    model[0].weight.requires_grad = False
    model[0].weight.layerwise_parallel = True
    flags = ms.Parameter(ms.Tensor.from_numpy(np.zeros(3, bool)), name="flags", requires_grad=False)
    wide = ms.Parameter(ms.Tensor.from_numpy(np.ones((2, 2), np.float32)), name="wide")
    wide.set_dtype(ms.bfloat16)
    model[1].insert_param_to_cell("flags", flags)
    model[1].insert_param_to_cell("wide", wide)
    stages = stages_of(model)
    back = load_stages(dump_stages(stages))

    def about(found):
        return [
            (name, each.name, each.shape, each.dtype, each.requires_grad, each.layerwise_parallel)
            for name, each in parameters_of(found).items()
        ]

    assert about(back) == about(stages)
    assert back[0].cell.bias is back[1].cell.bias
    assert [list(stage.parameters) for stage in back] == [list(stage.parameters) for stage in stages]


@pytest.mark.parametrize("dtype", ["float32", "float16", "int8", "bool_", "complex64", "bfloat16"])
def test_other_tensors_keep_their_contents(dtype):
    plain = ms.Tensor.from_numpy(np.arange(6, dtype=np.float32).reshape(2, 3) % 2)
    tensor = plain.astype(getattr(ms, dtype))
    (holder,) = there_and_back(Holder({"table": [tensor, tensor], "none": plain[:0], "scalar": plain[0][1]}))
    one, other = holder.thing["table"]
    assert one is other
    assert (one.dtype, one.shape) == (tensor.dtype, (2, 3))
    assert one.get_bytes() == tensor.get_bytes()
    assert holder.thing["none"].shape == (0, 3)
    assert holder.thing["scalar"].asnumpy() == 1


def test_parameters_that_no_cell_registers_keep_their_contents():
    class Hidden:
        pass

    hidden = Hidden()
    hidden.weight = ms.Parameter(ms.Tensor.from_numpy(np.arange(3.0)), name="hidden")
    (holder,) = there_and_back(Holder(hidden))
    assert np.array_equal(holder.thing.weight.asnumpy(), [0, 1, 2])
    assert holder.thing.weight.name == "hidden"


def test_primitives_keep_attributes_set_later():
    primitive = ops.MatMul(transpose_b=True)
    primitive.add_prim_attr("note", 3)
    primitive.set_device("CPU").recompute()
    primitive.set_prim_instance_name("mine")
    plain = ops.Primitive("Free")
    (holder,) = there_and_back(Holder([primitive, primitive, plain]))
    back, again, free = holder.thing
    assert back is again
    assert back.attrs == primitive.attrs
    assert (back.init_attrs, back.instance_name) == (primitive.init_attrs, "mine")
    assert back.get_attr_dict()["primitive_target"] == "CPU"
    assert (type(free), free.name) == (ops.Primitive, "Free")


class Forgetful(ops.PrimitiveWithInfer):
    def __init__(self, width):
        super().__init__("Forgetful")
        self.width = width


class Defaulting(ops.PrimitiveWithInfer):
    def __init__(self, width=1):
        super().__init__("Defaulting")
        self.width = width


def test_own_primitives_keep_their_state():
    (holder,) = there_and_back(Holder(Defaulting(5)))
    assert holder.thing.width == 5


def test_wrapped_functions_of_mindspore_are_pickled_by_name():
    squeeze = ms.mint.squeeze
    (holder,) = there_and_back(Holder(lambda x: squeeze(x, 0)))
    assert holder.thing(ms.Tensor.from_numpy(np.ones((1, 2), np.float32))).shape == (2,)


def test_code_that_is_pickled_by_value_keeps_the_name_of_its_file():
    """Graph mode reads the source there."""

    def outer(x):
        def inner(y):
            return y

        return inner(x)

    (holder,) = there_and_back(Holder(outer))
    (inner,) = (one for one in holder.thing.__code__.co_consts if hasattr(one, "co_code"))
    assert {holder.thing.__code__.co_filename, inner.co_filename} == {__file__}
    assert holder.thing(3) == 3


def test_running_in_graph_mode_leaves_no_trace():
    model = nn.SequentialCell(nn.Dense(4, 4), nn.ReLU())
    x = ms.Tensor.from_numpy(np.ones((2, 4), np.float32))
    stages = stages_of(model)
    mode = ms.get_context("mode")
    ms.set_context(mode=ms.GRAPH_MODE)
    try:
        want = ModelPart(stages)(x).asnumpy()
        back = load_stages(dump_stages(stages))
        for name, parameter in parameters_of(back).items():
            parameter.set_data(parameters_of(stages)[name])
        assert np.array_equal(ModelPart(back)(x).asnumpy(), want)
    finally:
        ms.set_context(mode=mode)


@pytest.mark.parametrize(
    ("thing", "words"),
    [
        (threading.Lock(), r"attribute 'thing' of Holder 0\.1, of type lock,.*package\.module:function"),
        ({"deep": [sys.stdout]}, r"attribute 'thing' of Holder 0\.1, of type dict,"),
        ((each for each in ()), r"attribute 'thing' of Holder 0\.1, of type generator,"),
        (Forgetful(3), r"attribute 'thing' of Holder 0\.1, of type Forgetful,.*prim_attr_register"),
        (ops.HyperMap(), "of type HyperMap,"),
    ],
)
def test_an_attribute_that_cannot_be_pickled_is_named(thing, words):
    model = nn.SequentialCell(nn.SequentialCell(nn.Dense(2, 2), Holder(thing)), nn.ReLU())
    with pytest.raises(UsageError, match=words):
        dump_stages(stages_of(model))


def test_a_class_that_cannot_be_pickled_is_named():
    lock = threading.Lock()

    class Locked(nn.Cell):
        def construct(self, x):
            with lock:
                return x

    with pytest.raises(UsageError, match="class Locked of 1 cannot be taken"):
        dump_stages(stages_of(nn.SequentialCell(nn.ReLU(), Locked())))


def test_stages_that_cannot_be_unpickled_are_refused(tmp_path, monkeypatch):
    (tmp_path / "vanishing.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import vanishing

    data = dump_stages(stages_of(nn.SequentialCell(Holder(vanishing.Thing()))))
    (tmp_path / "vanishing.py").unlink()
    monkeypatch.delitem(sys.modules, "vanishing")
    for broken, words in (
        (data, "ModuleNotFoundError: No module named 'vanishing'.*sys.path"),
        (data[:50], "cannot be unpickled"),
    ):
        with pytest.raises(UsageError, match=words):
            load_stages(broken)


def test_modules_of_stages_are_imported_before_anything_is_made(tmp_path, monkeypatch):
    (tmp_path / "appearing.py").write_text("class Thing: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    import appearing

    data = dump_stages(stages_of(nn.SequentialCell(nn.Dense(4, 4), Holder(appearing.Thing()), nn.Dense(4, 4))))
    monkeypatch.delitem(sys.modules, "appearing")
    with monkeypatch.context() as patched:
        patched.setattr("ms_recover.splitting.pickling.initializer", None)  # parameters are not made
        import_modules(data)
        with pytest.raises(UsageError):
            load_stages(data)
    assert "appearing" in sys.modules
    assert len(load_stages(data)) == 3
    import_modules(data[:50])


FACTORIES = """
from mindspore import nn

class Made:
    @staticmethod
    def dense():
        return nn.Dense(2, 3)

number = 3

def raising():
    raise OSError("no such weights")

def nothing():
    pass

def wanting(width):
    return nn.Dense(width, width)
"""


def test_a_factory_makes_the_model_and_every_fault_of_it_is_named(tmp_path, monkeypatch):
    (tmp_path / "factories_here.py").write_text(FACTORIES)
    (tmp_path / "factories_broken.py").write_text("import no_such_module_at_all")
    (tmp_path / "factories_worse.py").write_text("1 +")
    monkeypatch.syspath_prepend(tmp_path)
    assert isinstance(from_factory("factories_here:Made.dense"), nn.Dense)
    for name, words in {
        "factories_here": "not of the form package.module:function",
        "factories_here:": "not of the form",
        ":made": "not of the form",
        "factories here:made": "not of the form",
        "..factories_here:made": "not of the form",
        "a:b:c": "not of the form",
        "no_such_module_at_all:made": "module no_such_module_at_all .* ModuleNotFoundError",
        "factories_broken:made": "factories_broken .* No module named 'no_such_module_at_all'",
        "factories_worse:made": "SyntaxError",
        "factories_here:other": "module factories_here has no other",
        "factories_here:Made.other": "has no Made.other",
        "factories_here:number": "is int, which cannot be called",
        "factories_here:raising": "raised OSError: no such weights",
        "factories_here:wanting": "raised TypeError.*without arguments",
        "factories_here:nothing": "returned NoneType instead of a mindspore.nn.Cell",
    }.items():
        with pytest.raises(UsageError, match=words):
            from_factory(name)
    with pytest.raises(UsageError) as caught:
        from_factory("factories_here:raising")
    assert isinstance(caught.value.__cause__, OSError)
