"""Pages against each other and against the code."""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from ms_recover.cli.main import COMMANDS, group

ROOT = Path(__file__).parents[2]
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *(ROOT / "sample_code").rglob("*.md")]
LINK = re.compile(r"\]\(([^)#\s]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
COMMAND_LINE = re.compile(r"((?<![\w-])recover-ckpt ([a-z-]+)((?: [^\s`|;&#)]+)*))")
REPORTS = ["outcome", "plan", "verification"]
NOT_OF_THE_TOOL = ["7"]
"""Exit codes with which no command of recover-ckpt ends."""

LANGUAGES = ["README.md", "README.zh-CN.md"]


def links(page):
    return [target for target in LINK.findall(FENCE.sub("", page.read_text())) if "://" not in target]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(page):
    missing = [target for target in links(page) if not (page.parent / target).exists()]
    assert missing == []


def test_decisions_are_numbered_in_order_and_none_twice():
    numbers = re.findall(r"^## (\d+)\. \S", (ROOT / "docs" / "decisions.md").read_text(), re.MULTILINE)
    assert numbers == [str(number) for number in sorted({int(number) for number in numbers})]
    assert len(numbers) >= 30


def test_pages_cite_decisions_that_exist():
    known = set(re.findall(r"^## (\d+)\. ", (ROOT / "docs" / "decisions.md").read_text(), re.MULTILINE))
    for page in PAGES:
        assert set(re.findall(r"\[decision (\d+)\]", page.read_text())) <= known, page


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_readme_lists_every_command(name):
    rows = re.findall(r"^\| `([\w-]+) ", (ROOT / name).read_text(), re.MULTILINE)
    assert set(rows) == set(group.list_commands(None))


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_readme_names_every_extra(name):
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    named = set(re.findall(r"\[(\w+)\]", (ROOT / name).read_text()))
    assert set(setup["options.extras_require"]) - {"dev"} <= named


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_command_lines_have_options_that_exist(page):
    known = {name: {"-h", "--help"} for name in COMMANDS}
    for name in COMMANDS:
        for option in group.get_command(None, name).params:
            known[name].update(option.opts, option.secondary_opts)
    unknown = []
    text = re.sub(r"\\\n|\$\([^)]*\)", " ", page.read_text())
    for line, name, words in COMMAND_LINE.findall(text):
        unknown += [line for option in re.findall(r" (--?[a-z][\w-]*)", words) if option not in known.get(name, ())]
    assert unknown == []


def test_the_page_about_schemas_lists_every_file():
    folder = ROOT / "docs" / "schemas"
    listed = re.findall(r"^\| `([\w.-]+)` \|", (folder / "README.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(path.name for path in folder.glob("*.json"))


def test_both_languages_of_the_readme_have_the_same_structure():
    english, chinese = ((ROOT / name).read_text() for name in LANGUAGES)
    for pattern in (r"^#+ ", r"^- ", r"^\| ", r"^\$ .*$", r"`[^`\n]*--[a-z-]+[^`\n]*`"):
        in_english, in_chinese = (re.findall(pattern, text, re.MULTILINE) for text in (english, chinese))
        assert len(in_english) == len(in_chinese), pattern
    commands = [re.findall(r"^\$ .*$|^<!-- run: .*$", text, re.MULTILINE) for text in (english, chinese)]
    assert commands[0] == commands[1]
    own = set(LANGUAGES)
    targets = [set(LINK.findall(text)) - own for text in (english, chinese)]
    assert targets[0] == targets[1]
    assert "README.zh-CN.md" in english
    assert "README.md" in chinese


def test_the_operators_page_has_every_headline_and_exit_code():
    page = (ROOT / "docs" / "three-am.md").read_text()
    reports = [(ROOT / "ms_recover" / "reporting" / f"{name}_text.py").read_text() for name in REPORTS]
    headlines = set(re.findall(r'"([A-Z]{4,}(?: [A-Z]{4,})?)\b', "".join(reports))) - {"WARNING", "HINT"}
    assert len(headlines) >= 10
    assert [words for words in headlines if f"`{words}" not in page] == []
    codes = re.findall(r"^\| (\d+) \|", (ROOT / "docs" / "exit-codes.md").read_text(), re.MULTILINE)
    listed = "".join(re.findall(r"^\| [\d, ]+ \|", page, re.MULTILINE))
    assert [code for code in codes if code not in NOT_OF_THE_TOOL and not re.search(rf"\b{code}\b", listed)] == []
