"""Clauses that several reports share."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ms_recover.model.history import History, HistoryStep
from ms_recover.model.inventory import GroupFile, Inventory, Note, RankPath, SliceFile
from ms_recover.model.manifest import Digests, Manifest
from ms_recover.model.outcome import ActionResult, Outcome
from ms_recover.model.plan import RejectedStep
from ms_recover.model.provenance import SAVED, Provenance, ProvenanceSource
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some, name_some, ranks_text, shorten
from ms_recover.reporting.history_text import history_text
from ms_recover.reporting.inventory_text import inventory_text, provenance_text
from ms_recover.reporting.outcome_text import outcome_text
from ms_recover.reporting.tables import first_rows, render_table, size_text

STEP = Step(2, 8)
COPIED = Provenance(kind="copied", evidence="vote", sources=(ProvenanceSource(3, "rank_3/a.ckpt"),))


def test_some_are_named_and_the_others_counted():
    assert list_some(["a", "b"]) == "a, b"
    assert list_some(list("abcd"), most=2) == "a, b and 2 more"
    assert list_some(range(9)) == "0, 1, 2, 3, 4 and 4 more"
    assert list_some(["x", "y"], separator="; ") == "x; y"
    assert list_some([]) == ""
    assert name_some(list("abcd"), most=2) == "'a', 'b' and 2 more"


def test_the_first_rows_of_a_table_are_shown_and_the_others_counted():
    rows = [(str(number), "a") for number in range(5)]
    assert first_rows(rows, 5, 1) == rows
    assert first_rows(rows, 3, 1)[2:] == [("2", "a"), ["...", "and 2 more: see --json"]]
    assert first_rows(rows[:2], 2, 0, 5)[2:] == [["and 3 more: see --json", ""]]


def test_slices_that_a_history_could_not_read_are_counted_where_they_are_many():
    step = HistoryStep(step=STEP, run_id="", state="clean", ranks=1, missing=(), parameters=(), reason="")
    found = History(root="/tree", world_size=2, run_id=None, steps=(step,), clean=STEP, clean_reason="")
    text = history_text(replace(found, read=True, unread=tuple(f"{n}: gone" for n in range(22))), None)
    assert "Not judged: 19: gone\nNot judged: 2 more slices: see --json" in text


@pytest.mark.parametrize(
    ("provenance", "text"),
    [
        (SAVED, "saved by training"),
        (
            Provenance(kind="sealed", evidence="structure"),
            "saved without a manifest and sealed later, by structure only: contents were not compared",
        ),
        (COPIED, "copied from rank 3 (rank_3/a.ckpt), confirmed by vote"),
        (
            Provenance(kind="copied", sources=(ProvenanceSource(None, "a.ckpt", "node:1"),)),
            "copied from a.ckpt at node:1",
        ),
        (
            Provenance(
                kind="composed",
                evidence="layout",
                sources=(ProvenanceSource(1, "b"), ProvenanceSource(5, "c")),
                borrowed=("seed",),
            ),
            "composed from rank 1 (b), rank 5 (c), by the layouts of a strategy file; values of another rank in seed",
        ),
        (Provenance(kind="composed"), "composed from a source that is not named"),
    ],
)
def test_provenance_is_one_clause(provenance, text):
    assert provenance_text(provenance) == text


def test_ranks_are_folded():
    assert ranks_text([7, 0, 1, 2, 3]) == "0-3, 7"
    assert ranks_text([]) == ""


def test_sizes_have_units():
    assert [size_text(size) for size in (0, 1023, 1536, 3 << 40)] == ["0 B", "1023 B", "1.5 KiB", "3.0 TiB"]


def test_a_table_in_a_pipe_keeps_each_row_on_one_line():
    rows = [("a" * 5000, "1"), ("line\nbreak\x85\u2028", "2")]
    lines = render_table(("name", "n"), rows, None, right=("n",)).split("\n")
    assert len(lines) == 3
    assert "line\\nbreak\\x85\\u2028" in lines[2]


def test_a_table_reads_the_same_in_a_pipe_and_in_a_terminal_that_is_wide_enough():
    columns = ("名字", "number", "last")
    rows = [("a", "1", "x"), ("", "12345678", "\u4e2d\u6587"), ("[bold]b[/] \x1b", "", "")]
    assert render_table(columns, rows, None, right=("number",)) == render_table(columns, rows, 80, right=("number",))
    assert render_table(columns, [], None) == render_table(columns, [], 80)


def slice_file(rank, **fields):
    place = RankPath(("rank_", f"/a-{STEP}.ckpt"))
    return SliceFile(rank, STEP, place, "a", 2048, 1, **fields)


def test_a_scan_tells_damage_from_permission_denied_and_names_provenance():
    manifest = Manifest("run", 2, 4, STEP, None, "a", 2048, Digests("x"), (), (0, 2), provenance=COPIED)
    slices = (
        slice_file(0),
        slice_file(1, problem="cut short"),
        slice_file(2, manifest=manifest),
        slice_file(3, problem="permission denied", denied=True),
    )
    denied = ((5, Note("rank_5", "permission denied for user nobody")),)
    text = inventory_text(Inventory("/tree", (0, 1, 2, 3), slices, denied=denied), None)
    damaged, refused = text.index("Damaged:"), text.index("Permission denied:")
    assert damaged < text.index("cut short") < refused
    assert "rank_2/a-2_8.ckpt  copied from rank 3 (rank_3/a.ckpt), confirmed by vote" in text
    assert "rank_5     permission denied for user nobody" in text
    assert "No group_info.pb" in text


def test_a_scan_of_many_rank_lists_names_the_malformed_ones():
    files = tuple(GroupFile(rank, f"rank_{rank}/group_info.pb", problem="malformed") for rank in range(40))
    text = inventory_text(Inventory("/tree", (0,), (), files), None)
    assert "40 rank lists, 40 malformed" in text
    assert "no slice" in text


def result(status, rank=0, error=None):
    return ActionResult(rank, 2, "rank_2/a", f"rank_{rank}/a", status, 2048, "xxh3_128:0", error)


def outcome(*results, **fields):
    return Outcome(root="/tree", step=STEP, results=results, group_files=(), verified=True, **fields)


def test_the_head_of_an_outcome_names_the_step_that_was_given_up():
    rejected = (RejectedStep(Step(3, 1), "rank 1: gone"), RejectedStep(Step(9, 9), "another run", another_run=True))
    text = outcome_text(outcome(result("copied"), rejected_steps=rejected), None)
    assert text.splitlines()[1] == (
        "DONE: every rank has its slice of step 2_8; 1 copied (2.0 KiB), each read back and compared; "
        "going back from step 3_1 (rank 1: gone) to step 2_8"
    )


def test_a_failed_outcome_names_the_failures():
    text = outcome_text(outcome(result("copied"), result("failed", 1, "disk\nfull"), errors=("the journal",)), None)
    assert "FAILED: 1 of 2 slices" in text
    assert "disk\\nfull" in text
    assert text.endswith("error: the journal")
    text = outcome_text(outcome(errors=("writing the tracker",)), None)
    assert "FAILED: every rank has its slice of step 2_8, but 1 thing beside them failed" in text


def test_outcomes_without_work_and_with_parts_only():
    assert "already had its slice" in outcome_text(outcome(result("already there")), None)
    assert "PARTIAL: " in outcome_text(outcome(result("composed"), partial=True), None)


def test_an_outcome_names_what_was_set_aside():
    kept = replace(result("copied"), set_aside="rank_0/a.outvoted")
    text = outcome_text(outcome(kept, set_aside=("rank_1/b_1-1_2.ckpt.superseded",)), None)
    head = text.splitlines()[1]
    assert head.endswith("; 1 that was replaced set aside; 1 slice of steps that were given up set aside")
    assert "   0  rank_0/a  rank_0/a.outvoted" in text
    assert "recover-ckpt plan /tree names the commands that take them back or remove them" in text
    assert "Slices that were given up, renamed: rank_1/b_1-1_2.ckpt.superseded" in text


@pytest.mark.parametrize(
    ("text", "most", "shown"),
    [
        ("short; and whole", 20, "short; and whole"),
        ("a " * 50 + "end; rank 3 holds the same", 100, f"{'a ' * 37}...; rank 3 holds the same"),
        ("first; second; third; fourth", 20, "first; second ..."),
        ("x" * 300, 20, f"{'x' * 16} ..."),
        ("no directory; " + "of many parameters " * 3, 40, "no directory ..."),
    ],
)
def test_a_reason_that_is_too_long_keeps_its_fact_and_what_follows(text, most, shown):
    assert shorten(text, most) == shown
    assert len(shown) <= most


@given(text=st.lists(st.text("ab ;:(", max_size=90), max_size=6).map("; ".join), most=st.integers(20, 240))
def test_a_shown_reason_is_never_longer_than_it_may_be(text, most):
    found = shorten(text, most)
    assert len(found) <= most
    assert found == text or found.endswith(" ...") or " ...; " in found
