"""The report in a browser: it shows what scan and plan say, and nothing in the names of files can do anything."""

import json
import os
import re
import shutil
import time
from contextlib import ExitStack
from typing import get_args

import pytest

from ms_recover.model.steps import Step
from ms_recover.model.verdicts import Answer
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.browser import open_browser
from tests.support.command_line import in_this_process
from tests.support.report_pages import LOOKS, page_of

STEPS = (Step(1, 100), Step(1, 200), Step(2, 100))
HOSTILE = (
    '<img src=x onerror=document.title="run">',
    '"><script>document.title="run"</script>',
    "</script><script>document.title='run'</script>",
    "<!--<script>",
    "\u202egnp.tpkc",
    "line\nbreak",
    "' onmouseover='x' y='",
    "{{ 7 * 7 }}",
)


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    with open_browser(tmp_path_factory.mktemp("browser")) as opened:
        yield opened


def run(*arguments):
    done = in_this_process(*map(str, arguments))
    assert "Traceback" not in done.err, done.err
    return done


@pytest.fixture(scope="module")
def damaged(tmp_path_factory):
    """Make a tree of eight ranks on two hosts, of which one is lost, one is damaged and one lacks an older step."""
    root = make_tree(tmp_path_factory.mktemp("damaged") / "tree", data_parallel=2, model_parallel=4, steps=STEPS)
    save_manifests(root)
    shutil.rmtree(root / "ckpt_dir3")
    broken = root / "ckpt_dir1" / "test-2_100.ckpt"
    broken.chmod(0o600)
    broken.write_bytes(broken.read_bytes()[:300])
    (root / "ckpt_dir6" / "test-1_200.ckpt").unlink()
    (root / "ckpt_dir2" / "test-1_200.ckpt").unlink()
    page = root.parent / "report.html"
    assert run("report", root, "--ranks-per-host", 4, "-o", page).code == 0
    return root, page


@pytest.fixture
def page(browser, damaged):
    return browser.open(damaged[1])


def test_the_browser_has_nothing_to_complain_about(browser, damaged):
    for dark in (False, True):
        assert browser.open(damaged[1], dark=dark).console() == []


def test_the_first_lines_say_what_is_lost_and_what_to_do(page, damaged):
    headline = page.text("header h1")
    assert re.match(r"RECOVERABLE\s+at step 2_100: 2 slices to copy", headline)
    tiles = page.run("return [...document.querySelectorAll('.tile')].map((tile) => tile.innerText)")
    assert "missing: rank 3" in tiles[0]
    assert "damaged: rank 1" in tiles[0]
    assert "0 (2 of 4)" in tiles[0]
    assert "yes" in tiles[1]
    assert "2_100" in tiles[2]
    assert page.text("#command") == f"recover-ckpt apply {damaged[0]}"


def test_the_map_is_the_plan(page, damaged):
    """Walk over all ranks by the keyboard: words and the colour of the pixels are those of plan --json."""
    planned = json.loads(run("plan", damaged[0], "--json").out)["ranks"]
    colours = {}
    page.run("document.getElementById('map').focus()")
    for expected in planned:
        rank = expected["rank"]
        select(page, rank)
        found = page.details()
        assert found["Rank"] == str(rank)
        state = "sound" if expected["state"] == "ok" else expected["state"]
        assert found["Step 2_100"] == f"slice {state}, {expected['verdict']}"
        assert found["Why"] == expected["reason"]
        assert found["Slice"] == expected["path"]
        if expected["source_rank"] is not None:
            assert found["From"] == f"rank {expected['source_rank']}: {expected['source']}"
        assert found["The same on"] == f"ranks {(rank + 4) % 8}"
        colours.setdefault(expected["verdict"], set()).add(pixel(page, "map"))
    assert {verdict: len(found) for verdict, found in colours.items()} == {"keep": 1, "copy": 1}
    assert colours["keep"] != colours["copy"]


def test_the_matrix_is_what_scan_saw_and_what_a_plan_for_each_step_would_say(page, damaged):
    scanned = json.loads(run("scan", damaged[0], "--json").out)
    slices = {(f"{one['epoch']}_{one['step']}", one["rank"]): one for one in scanned["slices"]}
    page.run("document.getElementById('matrix').focus()")
    colours = {}
    for row, step in enumerate(map(str, reversed(STEPS))):
        planned = json.loads(run("plan", damaged[0], "--step", step, "--quick", "--json").out)["ranks"]
        for expected in planned:
            rank = expected["rank"]
            select(page, rank, row)
            found = page.details()
            state = "sound" if expected["state"] == "ok" else expected["state"]
            assert (found["Rank"], found[f"Step {step}"]) == (str(rank), f"slice {state}, {expected['verdict']}")
            seen = slices.get((step, rank))
            saw = "no slice" if seen is None else "a damaged slice" if seen["problem"] else "a sound slice"
            assert found["The scan saw"] == saw
            colours.setdefault(expected["verdict"], set()).add(pixel(page, "matrix"))
    assert {verdict: len(found) for verdict, found in colours.items()} == {"keep": 1, "copy": 1, "unrecoverable": 1}
    assert len(set.union(*colours.values())) == 3
    assert [cells[:2] for cells in page.rows("#steps")] == [
        ["2_100 (planned)", "yes: 2 from others"],
        ["1_200", "no: 2 without a source"],
        ["1_100", "yes: 1 from others"],
    ]


def select(page, rank, row=None):
    """Go to a rank by arrow keys, in the matrix to one of a step."""
    if row is None:
        page.press("\ue011", *["\ue014"] * rank)  # Home, then to the right
        return
    page.press("\ue011", *["\ue013"] * 8, *["\ue015"] * row, *["\ue014"] * rank)  # Home, up, down, right


def pixel(page, board):
    """Return the colour of the edge of the selected cell, inside its ring."""
    script = """
        const board = document.getElementById(arguments[0]);
        const ring = board.querySelector(".ring").getBoundingClientRect();
        const canvas = board.querySelector("canvas");
        const area = canvas.getBoundingClientRect();
        const ratio = canvas.width / area.width;
        const at = [ring.left + 4 - area.left, ring.top + ring.height / 2 - area.top].map((x) => Math.round(x * ratio));
        return [...canvas.getContext("2d").getImageData(at[0], at[1], 1, 1).data].join()"""
    return page.run(script, board)


def test_losses_copies_and_history_are_those_of_the_commands(page, damaged):
    audited = json.loads(run("audit", damaged[0], "--ranks-per-host", 4, "--json").out)
    assert page.text("#audit-title + .lead") == audited["headline"]
    assert audited["headline"] in page.text("header")
    [level] = page.rows("#levels")
    assert level[:2] == ["host", "2"]
    assert [row[1] for row in page.rows("#losses")] == ["host1", "host0 + host1"]
    assert [row[3] for row in page.rows("#losses")] == ["fatal", "fatal"]
    assert [row[3] for row in page.rows("#blocks")] == ["1", "2"]  # copies
    told = json.loads(run("history", damaged[0], "--json").out)
    newest, *_ = page.rows("#history-steps")
    assert newest[1] == told["steps"][-1]["state"]


def test_the_plan_has_each_rank_that_does_not_keep_its_slice(page, damaged):
    planned = json.loads(run("plan", damaged[0], "--json").out)["ranks"]
    why = [one["reason"].removeprefix(f"{one['path']}: ") for one in planned if one["verdict"] != "keep"]
    expected = [
        [str(one["rank"]), one["state"], one["verdict"], one["path"], one["source"], one["evidence"], why.pop(0)]
        for one in planned
        if one["verdict"] != "keep"
    ]
    assert [[*row[:1], *row[2:]] for row in page.rows("#plan")] == expected


@pytest.mark.parametrize(
    ("query", "ranks"),
    [
        ("3", [3]),
        ("2-4", [2, 3, 4]),
        ("0, 6-9", [0, 6, 7]),
        ("damaged", [1]),
        ("COPY", [1, 3]),
        ("ckpt_dir5", [1, 5]),  # the source of 1
        ("no such thing", []),
        ("[", []),
    ],
)
def test_the_search_finds_ranks(page, query, ranks):
    find_in(page, query)
    assert [int(row[0]) for row in page.rows("#results")] == ranks
    assert page.text("#found") == f"{len(ranks)} of 8 ranks"
    page.press("\ue007")  # Enter selects the first
    assert page.details().get("Rank") == (str(ranks[0]) if ranks else None)


def find_in(page, query):
    page.run("const box = document.getElementById('search'); box.focus(); box.value = ''")
    page.press(query)


def test_a_search_by_host_and_the_colours_of_groups(page):
    page.run("document.getElementById('search').focus()")
    host = page.run("return JSON.parse(document.getElementById('data').textContent).levels[0].names[1]")
    page.press(host)
    assert [int(row[0]) for row in page.rows("#results")] == [4, 5, 6, 7]
    page.run("document.getElementById('search').value = ''")
    page.press(" ", "\ue003")
    script = """const choice = document.getElementById("colour");
        choice.value = "group"; choice.dispatchEvent(new Event("change"))"""
    page.run(script)
    page.run("document.getElementById('map').focus()")
    found = {}
    for rank in (0, 4, 2, 6):
        select(page, rank)
        found[rank] = pixel(page, "map")
    assert found[0] == found[4] != found[2] == found[6]


def test_the_keyboard_reaches_everything(page):
    page.run("document.activeElement.blur()")
    reached = []
    for _ in range(30):
        page.press("\ue004")  # Tab
        name = page.run("const a = document.activeElement; return a.id || a.className || a.tagName")
        reached.append(name)
        if name == "BODY":
            break
    assert reached[0] == "skip"
    wanted = ["command", "search", "step", "colour", "odd", "map", "SUMMARY", "matrix"]
    assert list(dict.fromkeys(name for name in reached if name in wanted)) == wanted
    page.run("document.getElementById('map').focus()")
    page.press("n")
    assert page.details()["Rank"] == "1"
    page.press("n")
    assert page.details()["Rank"] == "3"
    page.press("n")
    assert page.details()["Rank"] == "1"


def test_the_map_is_also_a_table(page):
    page.run("document.getElementById('as-table').open = true")
    rows = wait_for(lambda: page.rows("#as-table"))
    assert [row[1] for row in rows] == ["0-3", "4-7"]
    assert "slice missing, copy: 3" in rows[0][2]


def wait_for(find):
    for _ in range(100):
        if found := find():
            return found
        time.sleep(0.05)
    raise AssertionError("nothing appeared")


@pytest.mark.parametrize("answer", get_args(Answer))
def test_each_answer_reads_well_in_light_and_dark_on_a_phone_and_on_paper(browser, answer, tmp_path):
    """Nothing is wider than the window, no word of the answer or of what to do next is cut, and axe finds no fault."""
    page = tmp_path / "page.html"
    with ExitStack() as stack:
        page.write_text(page_of(answer, tmp_path / "checkpoints", stack))
    for look, options in LOOKS.items():
        opened = browser.open(page, **options)
        assert opened.console() == []
        assert opened.text(".word") == answer
        lines = "const range = document.createRange(); range.selectNodeContents(document.querySelector('.word'))"
        assert opened.run(f"{lines}; return range.getClientRects().length") <= 1 + answer.count(" "), look
        assert opened.run("return document.documentElement.scrollWidth <= innerWidth"), look
        cut = """return [...document.querySelectorAll(".tile, .tile p, .reasons dd, header p, header h1")].filter(
            (one) => one.scrollWidth > one.clientWidth + 1).map((one) => one.textContent)"""
        assert opened.run(cut) == [], look
        narrow = """return [...document.querySelectorAll("td.why, .reasons dd")].filter(
            (one) => one.textContent.length > 60 && one.clientWidth < Math.min(250, innerWidth * 0.7))
            .map((one) => [one.clientWidth, one.textContent])"""
        assert look == "print" or opened.run(narrow) == [], look
        assert look == "print" or opened.fault_finds() == [], look


@pytest.mark.parametrize("dark", [False, True])
def test_axe_finds_nothing_serious(browser, damaged, dark):
    opened = browser.open(damaged[1], dark=dark)
    opened.run("document.getElementById('map').focus()")
    opened.press("n")
    find_in(opened, "copy")
    opened.run("for (const one of document.querySelectorAll('details')) one.open = true")
    assert opened.fault_finds() == []


def test_dark_and_light_differ_and_paper_is_light(browser, damaged):
    colours = {}
    for dark in (False, True):
        opened = browser.open(damaged[1], dark=dark)
        opened.run("document.getElementById('map').focus()")
        opened.press("\ue011")
        body = opened.run("return getComputedStyle(document.body).backgroundColor")
        colours[dark] = (body, pixel(opened, "map"))
    assert colours[False][0] == "rgb(255, 255, 255)"
    assert colours[True][0] != colours[False][0]
    assert colours[True][1] != colours[False][1]
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert pixel(browser, "map") == colours[False][1]
    browser.run("dispatchEvent(new Event('afterprint'))")
    printed = browser.printed()
    assert printed.startswith(b"%PDF")
    assert len(printed) > 10_000


def test_hostile_names_stay_text(browser, tmp_path):
    """Names of files and of the root hold markup, quotes, marks that reorder text, line breaks, invalid bytes."""
    root = make_tree(tmp_path / "<b>root</b>'\"&amp;", data_parallel=2, model_parallel=1, steps=(Step(1, 8),))
    for number, name in enumerate(HOSTILE):
        (root / "ckpt_dir0" / f"{name.replace('/', chr(0x2215))}{number}-1_8.ckpt").write_bytes(b"x" * 40)
    with open(os.path.join(os.fsencode(root), b"ckpt_dir1", b"\xff\xfe<i>-1_8.ckpt"), "wb") as file:
        file.write(b"y")
    hosts = tmp_path / "hosts"
    hosts.write_text("h0 slots=1\nh1 slots=1\n")
    page = tmp_path / "page.html"
    assert run(
        "report", root, "--hostfile", hosts, "-o", page, "--pattern", "ckpt_dir{rank}/{prefix}-{epoch}_{step}.ckpt"
    ).code in (
        0,
        5,
    )
    opened = browser.open(page)
    assert opened.console() == []
    assert opened.driver.title != "run"
    assert opened.run("return document.querySelectorAll('img, i, header .path b').length") == 0
    assert opened.run("return document.scripts.length") == 2
    everything = opened.run("return document.documentElement.textContent")
    assert "<b>root</b>" in everything
    paths = [row[1] for row in opened.rows("#damaged")]
    for number, name in enumerate(HOSTILE):
        shown = name.replace("/", chr(0x2215)).replace("\n", "\\n").replace("\u202e", "\\u202e")
        assert f"ckpt_dir0/{shown}{number}-1_8.ckpt" in paths
    assert "ckpt_dir1/\\xff\\xfe<i>-1_8.ckpt" in paths
    assert "49" not in opened.text("#plan-title")
    find_in(opened, "0-1")
    assert opened.rows("#results")
    assert opened.console() == []
    assert opened.run("return document.querySelectorAll('img').length") == 0


def test_the_policy_stops_what_is_not_of_the_page(page):
    page.run(
        """const script = document.createElement("script");
        script.textContent = "document.title = 'run'";
        document.body.append(script);
        const style = document.createElement("p");
        style.setAttribute("style", "color: red");
        document.body.append(style);
        fetch("https://example.invalid/").catch(() => {});"""
    )
    refused = wait_for(lambda: [one for one in page.console() if "Content Security Policy" in one])
    assert refused
    assert page.driver.title != "run"


def test_long_names_of_hosts_break_and_the_worst_comes_first(browser, tmp_path):
    """No table is wider than the page, the legend begins with what has no source, and a reason is said once."""
    root = make_tree(tmp_path / "tree", data_parallel=8, model_parallel=2, steps=(Step(1, 8),))
    save_manifests(root)
    for rank in (*range(1, 16, 2), 0):
        shutil.rmtree(root / f"ckpt_dir{rank}")
    hosts = tmp_path / "hosts"
    hosts.write_text("".join(f"{name * 200} slots=4\n" for name in "abcd"))
    page = tmp_path / "page.html"
    assert run("report", root, "--world-size", 16, "--hostfile", hosts, "-o", page).code == 0
    opened = browser.open(page)
    find_in(opened, "1-7")
    wide = """return [...document.querySelectorAll(".scroll")].filter((one) => one.scrollWidth > one.clientWidth + 1)
        .map((one) => one.getAttribute("aria-label"))"""
    assert opened.run(wide) == []
    legend = opened.run("return [...document.querySelectorAll('#legend li')].map((one) => one.textContent)")
    assert [one.split(",")[0] for one in legend] == ["missing: no source", "missing: copied", "keeps its slice"]
    assert "none of them wholly" in opened.text(".tile")
    section = opened.text("section[aria-labelledby=audit-title]")
    lead = opened.text("section[aria-labelledby=audit-title] .lead")
    assert opened.run("return document.querySelector('section[aria-labelledby=audit-title] .lead + p')") is None, (
        section
    )
    assert "not recoverable as it is" in lead
    assert "Copies of each block" not in section  # there is none
