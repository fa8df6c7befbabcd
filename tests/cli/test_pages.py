"""The pages for operators show what the commands print today.

``MS_RECOVER_WRITE_PAGES=1 python -m pytest tests/cli/test_pages.py`` writes the shown outputs again.
"""

import os
import re
from pathlib import Path

import pytest

from tests.support.pages import BLOCK, run_block, without_times

ROOT = Path(__file__).parents[2]
PAGES = [
    "README.md",
    "README.zh-CN.md",
    "docs/audit.md",
    "docs/cluster.md",
    "docs/history.md",
    "docs/mindformers.md",
    "docs/recover.md",
    "docs/report.md",
    "docs/three-am.md",
]


@pytest.mark.parametrize("name", PAGES)
def test_pages_show_what_the_commands_print(name, tmp_path, recover_ckpt):
    page = ROOT / name
    text = page.read_text()
    shown = []
    for number, block in enumerate(BLOCK.finditer(text)):
        now, code = run_block(block, tmp_path / str(number), recover_ckpt)
        shown.append((block, now))
        assert code == int(block["exit"]), f"{block['name']} ends with {code}:\n{now}"
    if os.environ.get("MS_RECOVER_WRITE_PAGES"):
        replacements = iter(shown)
        page.write_text(BLOCK.sub(lambda block: block[0].replace(block["text"], next(replacements)[1]), text))
        return
    for block, now in shown:
        assert without_times(block["text"]) == without_times(now), block["name"]


def test_every_run_comment_is_understood():
    for name in PAGES:
        text = (ROOT / name).read_text()
        assert len(re.findall("<!-- run:", text)) == len(BLOCK.findall(text)), name
