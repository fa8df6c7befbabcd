"""What a program sets: at a resume each difference is one warning, and a list of learning rates may get longer."""

import logging

import pytest

from ms_recover.errors import InputError, UsageError

pytestmark = pytest.mark.mindspore
ms = pytest.importorskip("mindspore")

from mindspore import amp, mint, nn  # noqa: E402
from mindspore.train import Model  # noqa: E402

from ms_recover.model.steps import Step  # noqa: E402
from ms_recover.training import SliceSaver, recover_train, resume  # noqa: E402
from ms_recover.training.run import forget_resumed  # noqa: E402
from tests.support.trainings import STEPS, checkpoint, files, make_dataset, make_network, values  # noqa: E402

WARNED = "in the program, and was"


@pytest.fixture(scope="module", params=["GRAPH_MODE", "PYNATIVE_MODE"], autouse=True)
def mode(request):
    before = ms.get_context("mode")
    ms.set_context(mode=getattr(ms, request.param))
    yield request.param
    ms.set_context(mode=before)


@pytest.fixture(autouse=True)
def process():
    """What a process of its own would not know."""
    yield
    forget_resumed()


def adam(weights, rate=0.01, **options):
    return nn.Adam(weights, rate, **options)


def make_model(optimizer=adam, loss=nn.MSELoss, scale=None, amp_level="O0", **options):
    network = make_network()
    scaled = {} if scale is None else {"loss_scale_manager": amp.FixedLossScaleManager(scale, False)}
    return Model(network, loss(), optimizer(network.trainable_params(), **options), amp_level=amp_level, **scaled)


def warned(caplog):
    """Return the warnings of differences, behind the names of rank, step and slice."""
    texts = [one.getMessage() for one in caplog.records if WARNED in one.getMessage()]
    assert all(one.levelno == logging.WARNING for one in caplog.records if WARNED in one.getMessage())
    caplog.clear()
    return [text.split(".ckpt: ", 1)[1] for text in texts]


def save(root, **options):
    make_model(**options).train(1, make_dataset(), callbacks=[checkpoint(root, 4)])


def rates(epochs):
    return [0.02 / (1 + step) for step in range(epochs * STEPS)]


def test_each_setting_that_differs_is_one_warning_with_both_values_and_who_wins(tmp_path, caplog, capfd):
    save(tmp_path, weight_decay=0.0)
    model = make_model(rate=0.02, beta1=0.8, weight_decay=0.1, eps=1e-6, loss=nn.L1Loss, scale=8.0)
    capfd.readouterr()
    recover_train(model, make_dataset(), tmp_path, 2)
    assert warned(caplog) == [
        "Adam.beta1 is 0.8 in the program, and was 0.9 when the slice was saved: the program's is taken",
        "Adam.eps is 1e-06 in the program, and was 1e-08 when the slice was saved: the program's is taken",
        (
            "Adam.learning_rate is 0.02 in the program, and was 0.01 when the slice was saved: the slice's is taken; "
            "keep=['learning_rate'] takes the program's"
        ),
        "Adam.weight_decay is 0.1 in the program, and was 0 when the slice was saved: the program's is taken",
        "TrainOneStepCell.sens is 8 in the program, and was 1 when the slice was saved: the program's is taken",
        "loss function is L1Loss in the program, and was MSELoss when the slice was saved: the program's is taken",
    ]
    assert model.train_network.optimizer.learning_rate.asnumpy() == pytest.approx(0.01)
    (line,) = [one for one in capfd.readouterr().err.splitlines() if one.startswith("ms_recover:")]
    assert "; settings not proven: Adam.beta1 is 0.8 and was 0.9, " in line


@pytest.mark.parametrize("level", ["O3", "auto"])
def test_another_amp_level_is_named_with_both_values(tmp_path, caplog, level):
    save(tmp_path)
    recover_train(make_model(amp_level=level), make_dataset(), tmp_path, 2)
    texts = warned(caplog)
    assert f"amp_level is {level} in the program, and was O0 when the slice was saved: the program's is taken" in texts


def test_settings_as_before_are_not_named_and_a_value_that_was_overruled_stays_so(tmp_path, caplog):
    def scheduled(weights):
        return nn.Momentum(weights, nn.CosineDecayLR(1e-4, 0.02, 40), 0.9, weight_decay=0.01)

    def grouped(weights, rate=0.03):
        return nn.SGD([{"params": weights[:1], "lr": rate, "weight_decay": 0.1}, {"params": weights[1:]}], 0.01)

    def listed(weights):
        return nn.Adam(weights, rates(3))

    def minted(weights):
        return nn.AdamWeightDecay(weights, 0.01, 0.8)

    for number, optimizer in enumerate((adam, scheduled, grouped, listed, minted)):
        save(tmp_path / str(number), optimizer=optimizer)
        model = make_model(optimizer=optimizer)
        saver = checkpoint(tmp_path / str(number), 4)
        recover_train(model, make_dataset(), tmp_path / str(number), 2, saver)
        recover_train(model, make_dataset(), tmp_path / str(number), 3, saver)  # which has trained
        assert warned(caplog) == []
    root = tmp_path / "2"
    recover_train(make_model(optimizer=grouped, rate=0.05), make_dataset(), root, 4, checkpoint(root, 4))
    assert [text.split(" when")[0] for text in warned(caplog)] == [
        "SGD.group 0 lr is 0.05 in the program, and was 0.03"
    ]
    recover_train(make_model(optimizer=grouped, rate=0.05), make_dataset(), root, 5, checkpoint(root, 4))
    assert len(warned(caplog)) == 1  # it is still another one than that of the program


def test_a_learning_rate_list_made_for_more_epochs_resumes_with_the_programs_value(tmp_path, caplog):
    whole = make_model(rate=rates(3))
    whole.train(3, make_dataset())
    save(tmp_path, rate=rates(1))
    before, model = files(tmp_path), make_model(rate=rates(3))
    first = values(model)
    with pytest.raises(InputError, match=r"learning_rate is a list of 24 values in the program, and of 8 in the slice: "
                       r"keep=\['learning_rate'\] goes on with the program's"):  # fmt: skip
        recover_train(model, make_dataset(), tmp_path, 3)
    assert (values(model), files(tmp_path)) == (first, before)
    saver = checkpoint(tmp_path, 4)
    resumed = recover_train(model, make_dataset(), tmp_path, 3, saver, keep=["learning_rate"])
    assert resumed.step == Step(1, STEPS)
    assert values(model) == values(whole)
    (text,) = warned(caplog)
    assert "Adam.learning_rate is 24 values from 0.02 to 0.0008333333 (" in text
    assert text.endswith("when the slice was saved: the program's is taken, as keep says")
    again = make_model(rate=rates(3))
    assert recover_train(again, make_dataset(), tmp_path, 3).step == Step(3, STEPS)
    assert warned(caplog) == []
    with pytest.raises(UsageError, match=r"keep=\['rate'\]: the network has no such parameter; its learning rates are"):
        recover_train(again, make_dataset(), tmp_path, 3, keep="rate")


def test_a_loop_resumes_with_a_learning_rate_of_its_own(tmp_path, caplog):
    def parts(rate):
        network = make_network()
        return network, mint.optim.AdamW(network.trainable_params(), lr=rate)

    with SliceSaver(list(parts(0.01)), f"{tmp_path}/ckpt_dir{{rank}}") as saver:
        saver.save(3)
    network, optimizer = parts(0.02)
    resume([network, optimizer], tmp_path)
    (text,) = warned(caplog)
    assert text == (
        "AdamW.lr is 0.02 in the program, and was 0.01 when the slice was saved: the slice's is taken; "
        "keep=['learning_rate_group_0'] takes the program's"
    )
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.01)
    network, optimizer = parts(0.02)
    resume([network, optimizer], tmp_path, keep=["learning_rate_group_0"])
    assert float(optimizer.param_groups[0]["lr"]) == pytest.approx(0.02)
    assert warned(caplog)[0].endswith("the program's is taken, as keep says")


def test_the_message_on_two_optimizers_of_a_gan_gives_the_line_that_works(tmp_path, mode):
    def parts(line=None):
        generator, discriminator = make_network(1), make_network(2)
        generator.update_parameters_name("generator.")
        discriminator.update_parameters_name("discriminator.")
        optimizer_g = nn.Adam(generator.trainable_params(), 0.01)
        optimizer_d = nn.Adam(discriminator.trainable_params(), 0.02)
        if line is not None:
            exec(line)
        return generator, discriminator, optimizer_g, optimizer_d

    with pytest.raises(
        UsageError, match=r"two are named global_step.*they are of two optimizers: where the sec"
    ) as got:
        SliceSaver(list(parts()), f"{tmp_path}/ckpt_dir{{rank}}")
    line = str(got.value).split("a line such as ")[1].split(" with its own")[0]
    assert line == 'optimizer_d.update_parameters_name("d.")'

    def train(steps, done=0):
        generator, discriminator, optimizer_g, optimizer_d = found = parts(line)
        loss_of = nn.MSELoss()

        def forward_g(x, y):
            return loss_of(generator(x), y)

        def forward_d(x, y):
            return loss_of(discriminator(x), -y)

        of_g = ms.value_and_grad(forward_g, None, optimizer_g.parameters)
        of_d = ms.value_and_grad(forward_d, None, optimizer_d.parameters)
        if done:
            assert resume(list(found), tmp_path).step == Step(1, done)
        dataset = make_dataset()
        dataset.set_init_step(done)
        saver = SliceSaver(list(found), f"{tmp_path}/ckpt_dir{{rank}}")
        for step, (x, y) in enumerate(dataset.create_tuple_iterator(num_epochs=1), done + 1):
            for gradients_of, optimizer in ((of_g, optimizer_g), (of_d, optimizer_d)):
                optimizer(gradients_of(x, y)[1])
            if step == steps:
                break
        if not done:
            saver.save(steps)
        saver.release()
        return {one.name: one.asnumpy().tobytes() for part in found for one in part.get_parameters()}

    whole = train(6)
    train(3)
    assert train(6, done=3) == whole
