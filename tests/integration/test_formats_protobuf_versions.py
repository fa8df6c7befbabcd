"""The readers work with every protobuf that a MindSpore release accepts, back to 3.13, in an environment of its own."""

from __future__ import annotations

import os
import re
import subprocess
import venv
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
FIXTURES = ROOT / "tests" / "data" / "fixtures"
NO_INDEX = re.compile(r"after connection broken by|NewConnectionError|Name or service not known|ConnectTimeoutError")

ROUND_TRIP = """
import sys
from pathlib import Path
import google.protobuf
from ms_recover.errors import FormatError
from ms_recover.formats.header import read_header
from ms_recover.formats.group_info import encode_group_info, read_group_info
from ms_recover.formats.strategy import read_strategy
from ms_recover.model.groups import GroupInfo
scratch, *files = map(Path, sys.argv[1:])
for path in files:
    if path.name == "group_info.pb":
        info = read_group_info(path)
        assert encode_group_info(info) == path.read_bytes(), path
        scratch.write_bytes(encode_group_info(GroupInfo(info.restore_ranks)))
        assert read_group_info(scratch).restore_ranks == info.restore_ranks
        for damaged in (path.read_bytes()[:-1], path.read_bytes() + b"\\x18\\x01", b"\\x12\\x02\\x10\\x00"):
            scratch.write_bytes(damaged)
            try:
                read_group_info(scratch)
            except FormatError:
                continue
            raise AssertionError(damaged)
    elif path.name == "strategy.ckpt":
        strategy = read_strategy(path)
        assert strategy.layouts and strategy.devices_per_stage in (4, 8), path
    else:
        assert read_header(path).problems == (), path
print(google.protobuf.__version__)
"""


@pytest.mark.packaging
@pytest.mark.timeout(300)
@pytest.mark.parametrize("version", ["3.13.0", "3.20.3", "4.25.8"])
def test_an_old_protobuf_will_do(tmp_path: Path, version: str) -> None:
    environment = tmp_path / "venv"
    venv.create(environment, with_pip=True)
    python = environment / "bin" / "python"
    pip = [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--retries", "1"]
    installed = subprocess.run([*pip, f"protobuf=={version}"], capture_output=True, text=True, timeout=240, check=False)
    if installed.returncode and NO_INDEX.search(installed.stdout + installed.stderr):
        pytest.skip("pip reaches no package index")
    assert installed.returncode == 0, installed.stderr
    files = sorted(FIXTURES.glob("*/ckpt_dir*/*"))
    assert len(files) > 96
    variables = {name: value for name, value in os.environ.items() if not name.startswith("PROTOCOL_BUFFERS_")}
    done = subprocess.run(
        [python, "-c", ROUND_TRIP, tmp_path / "group_info.pb", *files],
        env={**variables, "PYTHONPATH": str(ROOT), "PYTHONDONTWRITEBYTECODE": "1"},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == version
