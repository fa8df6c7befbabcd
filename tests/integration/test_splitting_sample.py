"""The sample: a model over four devices, one of them killed in the middle of a forward."""

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.mindspore
SAMPLE = Path(__file__).parents[2] / "sample_code" / "model_splitting" / "split_model.py"
LONG = 180


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (("--spares", "1"), "2000 of 2000 rows"),
        (("--split", "batch", "--on_failure", "skip"), "devices at work"),
    ],
)
def test_the_sample_survives_the_loss_of_a_device(tmp_path, options, words):
    done = subprocess.run(
        [sys.executable, SAMPLE, *options, "--timeline", tmp_path / "page.html"],
        capture_output=True,
        text=True,
        timeout=LONG,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "100 rows over 4 devices: output (100, 10)" in done.stdout
    assert words in done.stdout
    assert "after the reset: [True, True, True, True]" in done.stdout
    assert "and again (100, 10)" in done.stdout
    assert "lost device 2" in done.stdout
    assert "<svg" in (tmp_path / "page.html").read_text()
