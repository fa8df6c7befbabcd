"""The accelerator of a worker: passed to MindSpore as it was given. No machine here has one."""

import pytest

from ms_recover.splitting import worker
from ms_recover.splitting.job import Job

pytestmark = pytest.mark.mindspore
mindspore = pytest.importorskip("mindspore")


@pytest.fixture
def taken(monkeypatch):
    calls = []
    monkeypatch.setattr(mindspore, "set_device", lambda *device: calls.append(device))
    return calls


def job(**options):
    return Job(world="w", addr="127.0.0.1", port=1, heartbeat=1.0, timeout=1.0, **options)


def test_each_device_has_its_accelerator(taken):
    chosen, numbered = job(target="Ascend", device_ids=(6, 7)), job(target="GPU")
    worker.take_device(chosen.target, chosen.device_id(1))
    worker.take_device(numbered.target, numbered.device_id(1))
    worker.take_device("CPU", 1)
    assert taken == [("Ascend", 7), ("GPU", 1)]
