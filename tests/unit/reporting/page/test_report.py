"""The report as one page, and the data that it draws."""

import json
import random
import re
from dataclasses import replace

import pytest

from ms_recover.errors import MissingInputError
from ms_recover.model.options import PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.topology import Topology
from ms_recover.reporting.page.data import SEEN, STATES, VERDICTS, report_data
from ms_recover.reporting.page.report import report_html
from ms_recover.verbs.report import MOST_STEPS, describe
from tests.support.inventories import OLDER, STEP, pairs, slice_file, tree

QUICK = PlanOptions(quick=True)


def described(slices, groups, options=QUICK):
    return describe(tree(slices, groups), options)


def shown(report, **content):
    return report_html(report, made="2026-11-22", version="1", **content)


def text_of(data, column, rank):
    """Put a text together as the page's script does."""
    text = data["texts"][data["ranks"][column][rank]]
    return text.replace("\0", str(rank)).replace("\1", str(data["ranks"]["source"][rank]))


def verdicts(data, step):
    cells = [ord(letter) - ord("a") for letter in data["steps"][step]["cells"]]
    return [(STATES[cell // len(VERDICTS)], VERDICTS[cell % len(VERDICTS)]) for cell in cells]


def test_the_data_says_what_the_plan_says():
    slices = [slice_file(rank, step) for rank in range(8) if rank != 5 for step in (STEP, OLDER)]
    slices[4] = slice_file(2, problem="cut off at 7")
    report = described(sorted(slices, key=lambda file: (file.rank, file.step)), pairs(8))
    data = json.loads(json.dumps(report_data(report)))
    assert [one["step"] for one in data["steps"]] == ["2_8", "1_8"]
    assert verdicts(data, 0) == [(one.state, one.verdict) for one in report.plan.ranks]
    for one in report.plan.ranks:
        assert text_of(data, "why", one.rank) == one.reason
        assert text_of(data, "path", one.rank) == (one.path or "")
        assert text_of(data, "from", one.rank) == (one.source or "")
        assert data["ranks"]["source"][one.rank] == (-1 if one.source_rank is None else one.source_rank)
    assert data["planned"] == "2_8"
    assert data["groups"] == [0, 1, 2, 3] * 2


def test_every_step_is_judged_also_those_that_a_plan_never_looks_at():
    slices = [slice_file(rank, step) for rank in range(4) for step in (STEP, OLDER) if (rank, step) != (1, OLDER)]
    report = described(slices, pairs(4))
    assert [one.step for one in report.steps] == [STEP, OLDER]
    assert [one.verdict for one in report.steps[0].ranks] == ["keep"] * 4
    assert [one.verdict for one in report.steps[1].ranks] == ["keep", "copy", "keep", "keep"]
    for step in (STEP, OLDER):
        alone = described(slices, pairs(4), PlanOptions(quick=True, step=step))
        assert alone.plan.ranks == next(one.ranks for one in report.steps if one.step == step)


def test_what_the_scan_saw_is_kept_apart_from_the_verdict():
    slices = [slice_file(0), slice_file(1, problem="cut off"), slice_file(2), slice_file(3)]
    slices[3] = replace(slices[3], problem="denied", denied=True)
    data = report_data(described(slices, pairs(6), PlanOptions(quick=True, lost=frozenset({2}))))
    assert [SEEN[int(digit)] for digit in data["steps"][0]["seen"]] == [
        "sound",
        "damaged",
        "sound",
        "unreadable",
        "none",
        "none",
    ]
    assert verdicts(data, 0)[2][0] == "lost"


def test_numbers_in_texts_come_back_as_they_were():
    """Whatever numbers a reason holds, the page shows the reason."""
    source = random.Random(7)
    slices = [slice_file(rank) for rank in range(12)]
    report = described(slices, pairs(12))
    ranks = [
        replace(
            one,
            reason=" ".join(
                source.choice(["rank", "0", "1", "05", "5", "11", "1.5", "x3", "3x", "-2"]) for _ in range(9)
            ),
            source_rank=source.choice([None, 0, 1, 5, 11]),
        )
        for one in report.plan.ranks
    ]
    changed = replace(report, plan=replace(report.plan, ranks=tuple(ranks)))
    data = report_data(changed)
    assert [text_of(data, "why", one.rank) for one in ranks] == [one.reason for one in ranks]


def test_levels_of_a_topology_are_columns_and_ranks_without_a_place_have_none():
    report = described([slice_file(rank) for rank in range(4)], pairs(4))
    placed = replace(report, topology=Topology(("host", "rack"), (("b", "a", "b"), ("r", "r", "r")), "a file"))
    assert report_data(placed)["levels"] == [
        {"name": "host", "names": ["b", "a"], "of": [0, 1, 0, -1]},
        {"name": "rack", "names": ["r"], "of": [0, 0, 0, -1]},
    ]


def test_ten_thousand_ranks_and_many_steps_make_a_page_below_five_megabytes():
    steps = [Step(1, number) for number in range(1, 3)]
    lost = frozenset(range(0, 10_240, 3))
    slices = [slice_file(rank, step) for rank in range(10_240) for step in steps]
    report = described(slices, pairs(10_240), PlanOptions(quick=True, lost=lost))
    assert len(report.plan.actions) == len(lost)
    hosts = tuple(f"node-{rank // 8:04d}.cluster.example" for rank in range(10_240))
    page = shown(replace(report, topology=Topology(("host",), (hosts,), "a hostfile")))
    assert len(page.encode()) < 2_000_000
    assert "and 3,314 more ranks" in page


def test_only_the_newest_steps_are_judged_and_the_others_are_counted():
    steps = [Step(1, number) for number in range(1, MOST_STEPS + 6)]
    report = described([slice_file(rank, step) for rank in range(2) for step in steps], pairs(2))
    assert len(report.steps) == MOST_STEPS
    assert report.steps[0].step == steps[-1]
    assert "and 5 more older steps" in shown(report)


@pytest.mark.parametrize(
    ("slices", "kind", "word", "advice"),
    [
        (range(4), "well", "COMPLETE", "start the training"),
        ((0, 1, 2), "work", "RECOVERABLE", "Do next"),
        ((0, 2), "bad", "UNRECOVERABLE", "find a source"),
    ],
)
def test_the_headline_is_that_of_the_plan(slices, kind, word, advice):
    page = shown(described([slice_file(rank) for rank in slices], pairs(4), replace(QUICK, world_size=4)))
    assert f'<header class="{kind}">' in page
    assert f'<span class="word">{word}</span>' in page
    assert advice in page


def test_a_step_that_was_given_up_is_told_with_its_reason():
    slices = [slice_file(rank, OLDER) for rank in range(4)] + [slice_file(0), slice_file(2)]
    report = described(sorted(slices, key=lambda file: (file.rank, file.step)), pairs(4))
    page = shown(report)
    assert report.plan.step == OLDER
    assert "given up: 2_8" in page
    assert "step 2_8: ranks 1, 3" in page
    assert "no: 2 without a source" in page
    assert shown(report, refused=True).count("REFUSED") == 2


def test_a_page_has_no_place_of_its_own_to_load_from():
    page = shown(described([slice_file(rank) for rank in range(2)], pairs(2)))
    assert not re.search(r"""(?:src|href)=["'](?!#)""", page)
    assert "https://" not in page
    assert "style=" not in re.sub(r"<script.*?</script>", "", page, flags=re.DOTALL)


def test_a_tree_without_slices_is_an_error():
    with pytest.raises(MissingInputError):
        described([], {0: [0]})


@pytest.mark.parametrize(
    ("options", "words"),
    [(QUICK, "nothing was read, because of --quick"), (replace(QUICK, quick=False), "The planned step was read")],
)
def test_the_page_says_what_was_read(options, words):
    report = described([slice_file(rank) for rank in range(4)], pairs(4), QUICK)
    text = " ".join(shown(replace(report, quick=options.quick)).split())
    assert words in text
    assert ("was read, because" in text) == options.quick


def test_one_sentence_stands_once_where_thousands_of_ranks_have_the_same_reason():
    lost = frozenset([*range(2_000), *range(5_120, 6_120)])
    slices = [slice_file(rank, step) for rank in range(10_240) for step in (STEP, OLDER)]
    report = described(slices, pairs(10_240), PlanOptions(quick=True, lost=lost))
    assert report.plan.answer == "UNRECOVERABLE"
    drawn = shown(report).partition('<script type="application/json" id="data">')[0]
    assert drawn.count("nobody of its group [0, 5120] has a sound slice") == 2  # of the ranks, and of the steps
    assert drawn.count("has a sound slice") == 2
    assert drawn.count("no strategy file states how parameters are cut") <= 2
    assert drawn.count("as rank 0, for its own ranks") > 90
