"""Settings of the launch scripts that cannot be right are refused in a word, before any process is started."""

import os
import subprocess
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.parametrize("script", ["run_parallel_save_ckpt.sh", "run_parallel_recover_ckpt.sh"])
@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("PYTHON", b"/nowhere", "PYTHON=/nowhere is no program; set it to an interpreter with mindspore"),
        ("MS_RECOVER_RUN_ID", b"a\xff", "MS_RECOVER_RUN_ID is not text of one line in UTF-8"),
        ("MS_RECOVER_RUN_ID", b"a\x1b[31m", "MS_RECOVER_RUN_ID is not text of one line in UTF-8"),
        ("MS_RECOVER_RUN_ID", b"a\nb", "MS_RECOVER_RUN_ID is not text of one line in UTF-8"),
    ],
)
def test_a_setting_that_cannot_be_right_is_refused(tmp_path, script, name, value, said):
    (tmp_path / "pairs").touch()
    environment = {**os.environb, b"OUTPUT_DIR": os.fsencode(tmp_path / "out"), os.fsencode(name): value}
    done = subprocess.run(
        ["bash", SCRIPTS / script, tmp_path / "pairs"], env=environment, capture_output=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout) == (2, b"")
    [line] = done.stderr.decode().splitlines()
    assert line.startswith(said)
    assert not list((tmp_path / "out").iterdir())
