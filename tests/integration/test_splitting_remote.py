"""A worker on another host: started by an operator, sent its weights over the world, and taken back after a loss."""

import os
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from ms_recover.errors import BrokenWorldError, UsageError
from tests.support.ports import free_port

pytestmark = pytest.mark.mindspore
MODELS = """
from mindspore import nn

def make():
    made = nn.SequentialCell(nn.Dense(64, 128), nn.ReLU(), nn.Dense(128, 128), nn.ReLU(), nn.Dense(128, 10))
    made.set_train(False)
    return made

def stages():
    return [lambda: nn.Dense(64, 64)] * 3
"""
LONG = 120


@pytest.fixture
def remote_worker(tmp_path):
    (tmp_path / "models_elsewhere.py").write_text(MODELS)
    started = []

    def start(port, *options, factory="models_elsewhere:make", **environment):
        command = [sys.executable, "-m", "ms_recover.splitting", "--factory", factory, "--addr", "127.0.0.1"]
        process = subprocess.Popen(
            [*command, "--port", str(port), *options],
            cwd=tmp_path,
            env={**os.environ, **environment},
            stderr=subprocess.PIPE,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate(timeout=LONG)


@pytest.fixture
def made(tmp_path, monkeypatch):
    """The same model here, an input, and what it gives."""
    import mindspore as ms

    from ms_recover.splitting.pickling import from_factory

    (tmp_path / "models_elsewhere.py").write_text(MODELS)
    monkeypatch.syspath_prepend(tmp_path)
    model = from_factory("models_elsewhere:make")
    x = ms.Tensor(np.random.default_rng(0).standard_normal((100, 64)), ms.float32)
    yield model, x, model(x).asnumpy()
    sys.modules.pop("models_elsewhere", None)


def close(output, expected):
    return np.abs(output.asnumpy() - expected).max() <= 1e-6 * np.abs(expected).max()


def test_a_remote_worker_serves_dies_comes_back_and_ends_with_the_splitter(remote_worker, made):
    from ms_recover.splitting import FaultTolerantModelSplitter

    model, x, expected = made
    port = free_port()
    first = remote_worker(port)
    with FaultTolerantModelSplitter(model, 2, remote=1, port=port, heartbeat=2.0) as splitter:
        assert splitter.processes[1] is None
        assert close(splitter.forward(x), expected)
        first.kill()
        deadline = time.monotonic() + LONG
        while splitter.device_states[1]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        second = remote_worker(port)
        assert close(splitter.forward(x), expected)
        # It freezes, is given up, finds its world broken, and joins the next one.
        os.kill(second.pid, signal.SIGSTOP)
        while splitter.device_states[1]:
            assert time.monotonic() < deadline
            time.sleep(0.01)
        os.kill(second.pid, signal.SIGCONT)
        assert close(splitter.forward(x), expected)
        assert [event.kind for event in splitter.events].count("recovered") == 2
    assert second.wait(LONG) == 0


def test_a_remote_worker_makes_stages_that_this_host_never_sees(remote_worker, made):
    import mindspore as ms
    from mindspore import nn

    from ms_recover.splitting import FaultTolerantModelSplitter

    _, x, _ = made
    port = free_port()
    first = remote_worker(port, factory="models_elsewhere:stages")
    with FaultTolerantModelSplitter("models_elsewhere:stages", 2, remote=1, port=port) as splitter:
        output = splitter.forward(x)
        unsplit = nn.SequentialCell([nn.Dense(64, 64) for _ in range(3)])
        assert ms.load_param_into_net(unsplit, splitter.state_dict()) == ([], [])
        assert close(output, unsplit(x).asnumpy())
        first.kill()
        second = remote_worker(port, factory="models_elsewhere:stages")
        assert np.array_equal(splitter.forward(x).asnumpy(), output.asnumpy()), "not the weights of the first worker"
    assert second.wait(LONG) == 0


@pytest.mark.parametrize(
    ("factory", "words"),
    [
        ("models_elsewhere", "not of the form package.module:function"),
        ("models_elsewhere:nothing", "has no nothing"),
        ("no_such_module:make", "cannot be imported"),
    ],
)
def test_an_invalid_factory_is_named(remote_worker, factory, words):
    process = remote_worker(free_port(), factory=factory)
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == UsageError.exit_code
    assert words in errors
    assert "Traceback" not in errors.replace("Traceback (most recent call last):  File", "")  # of NumPy's own


def test_a_remote_worker_without_splitter_ends_after_the_timeout(remote_worker):
    process = remote_worker(free_port(), "--timeout", "1")
    _, errors = process.communicate(timeout=LONG)
    assert process.returncode == BrokenWorldError.exit_code
    assert "no splitter" in errors or "not all members joined" in errors


def test_beyond_loopback_a_token_is_needed(made):
    from ms_recover.splitting import ModelSplitter

    model, _, _ = made
    with pytest.raises(UsageError, match="token"):
        ModelSplitter(model, 2, remote=1, addr="10.255.255.1", port=free_port())
