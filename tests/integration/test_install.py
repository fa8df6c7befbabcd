"""``pip install .`` without extras gives a working recover-ckpt."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.mark.packaging
def test_a_plain_install_works_without_mindspore(tmp_path, fixture_tree):
    source = tmp_path / "source"
    shutil.copytree(ROOT / "ms_recover", source / "ms_recover", ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("setup.cfg", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", venv], check=True, timeout=120)
    pip = [venv / "bin/python", "-m", "pip", "--disable-pip-version-check", "install", "--quiet"]
    subprocess.run([*pip, source], check=True, timeout=400)

    def run(*arguments):
        return subprocess.run(arguments, cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False)

    assert run(venv / "bin/python", "-c", "import mindspore").returncode != 0
    command = venv / "bin/recover-ckpt"
    assert "Exit codes" in run(command, "--help").stdout
    tree = fixture_tree("dp2_mp4")
    shutil.rmtree(tree / "ckpt_dir6")
    planned = run(command, "plan", tree, "--json")
    assert planned.returncode == 0, planned.stderr
    assert [action["source_rank"] for action in json.loads(planned.stdout)["actions"]] == [2]
    assert run(command, "apply", tree).returncode == 0
    assert run(command, "inspect", tree / "ckpt_dir0" / "strategy.ckpt").returncode == 0
    told = run(command, "report", tree)
    assert (told.returncode, "pip install '.[report]'" in told.stderr) == (2, True)
    subprocess.run([*pip, "jinja2 >= 3.1"], check=True, timeout=400)
    assert run(command, "report", tree).returncode == 0
    assert "COMPLETE" in (tmp_path / "report.html").read_text()  # templates, styles and scripts are installed
    draw = "from ms_recover.splitting.timeline.page import timeline_html; print(timeline_html([], [], []))"
    page = run(venv / "bin/python", "-c", draw)
    assert "No device was lost" in page.stdout, page.stderr
