"""Pages against each other and against the code."""

import re
from configparser import ConfigParser
from pathlib import Path

import pytest

from ms_recover.cli.main import COMMANDS, group

ROOT = Path(__file__).parents[2]
DECISIONS = ROOT / "docs" / "decisions"
PAGES = [*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md"), *DECISIONS.glob("*.md")]
PAGES += (ROOT / "sample_code").rglob("*.md")
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


def test_decisions_are_numbered_in_order_and_listed_in_the_index():
    pages = sorted(DECISIONS.glob("[0-9]*.md"))
    titles = [page.read_text().splitlines()[0].removeprefix("# ") for page in pages]
    assert [page.name[:5] for page in pages] == [f"{number:04}-" for number in range(1, len(pages) + 1)]
    assert [title.split(". ")[0] for title in titles] == [str(number) for number in range(1, len(pages) + 1)]
    index = re.findall(r"^(\d+\. )\[(.+)\]\((.+)\)$", (DECISIONS / "README.md").read_text(), re.MULTILINE)
    listed = [(number + title, name) for number, title, name in index]
    assert listed == [(title, page.name) for title, page in zip(titles, pages, strict=True)]
    assert len(listed) >= 30


def test_decisions_have_a_status_a_date_and_all_parts():
    form = r"# \d+\. .+\n\nStatus: .+\. Date: \d{4}-\d\d-\d\d\.\n"
    form += "".join(rf"\n\*\*{part}\.\*\*\s[\s\S]+" for part in ("Context", "Decision", "Alternatives", "Consequences"))
    wrong = [page.name for page in DECISIONS.glob("[0-9]*.md") if not re.fullmatch(form, page.read_text())]
    assert wrong == []


def test_decisions_are_cited_by_number_and_file():
    for page in PAGES:
        for number, target in re.findall(r"\[decision (\d+)\](?:\(([^)]*)\))?", page.read_text()):
            assert re.fullmatch(rf"decisions/{int(number):04}-[\w-]+\.md", target), (page, number)
    for module in (ROOT / "ms_recover").rglob("*.py"):
        for name in re.findall(r"docs/decisions/[\w.-]+", module.read_text()):
            assert (ROOT / name).is_file(), (module, name)


def test_the_page_about_the_command_line_lists_every_command():
    rows = re.findall(r"^\| `([\w-]+) ", (ROOT / "docs" / "command-line.md").read_text(), re.MULTILINE)
    assert set(rows) == set(group.list_commands(None))


def test_the_page_about_extras_lists_each_and_nobody_names_another():
    setup = ConfigParser()
    setup.read(ROOT / "setup.cfg")
    extras = set(setup["options.extras_require"])
    listed = re.findall(r"^\| `\[(\w+)\]` \|", (ROOT / "docs" / "compatibility.md").read_text(), re.MULTILINE)
    assert sorted(listed) == sorted(extras)
    texts = "".join(path.read_text() for path in [*PAGES, *(ROOT / "ms_recover").rglob("*.py")])
    asked = re.findall(r"pip install '\.\[([\w,]+)\]'", texts) + re.findall(r"install_extra\([\"'](\w+)", texts)
    assert len(asked) > 10
    assert {name for names in asked for name in names.split(",")} <= extras
    assert "ms-recover[" not in texts  # no package index has it


def test_the_index_of_the_pages_lists_each_once():
    listed = [target for target in links(ROOT / "docs" / "README.md") if "/" not in target]
    assert sorted(listed) == sorted({path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"})


@pytest.mark.parametrize("name", LANGUAGES)
def test_the_readme_is_a_door(name):
    text = (ROOT / name).read_text()
    assert len(text.splitlines()) <= 150
    assert len(text.split()) <= 1100


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


def sections(text):
    """Return of each section, in order: the level of its heading, its code without comments, its runs and its links."""
    parts = re.split(r"^(#+) .*$", text, flags=re.MULTILINE)
    return [
        (
            len(level),
            [re.sub(r" +# .*", "", block) for block in FENCE.findall(body)],
            re.findall(r"<!-- run: .* -->", body),
            set(LINK.findall(body)) - set(LANGUAGES),
        )
        for level, body in zip(parts[1::2], parts[2::2], strict=True)
    ]


def test_both_languages_of_the_readme_have_the_same_structure():
    english, chinese = ((ROOT / name).read_text() for name in LANGUAGES)
    assert sections(english) == sections(chinese)
    assert len(chinese) <= len(english)
    for pattern in (r"^#+ ", r"^- ", r"^\| ", r"^\$ .*$", r"`[^`\n]*--[a-z-]+[^`\n]*`"):
        in_english, in_chinese = (re.findall(pattern, text, re.MULTILINE) for text in (english, chinese))
        assert len(in_english) == len(in_chinese), pattern
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
