"""The page on recovery against the table beside it."""

from dataclasses import replace

from tests.support.recovery_matrix import COMPOSED, PAGE, REPAIRED, TABLE, from_csv, losses, to_csv, with_figures


def test_the_figures_of_the_page_are_counted_from_the_table():
    page = PAGE.read_text()
    assert page == with_figures(page, from_csv(TABLE.read_text()))


def test_the_page_stays_short():
    assert len(PAGE.read_text().splitlines()) <= 45


def test_the_table_survives_reading_and_writing():
    assert to_csv(from_csv(TABLE.read_text())) == TABLE.read_text()


def test_a_repaired_case_that_gets_another_outcome_is_a_loss():
    before = from_csv(TABLE.read_text())
    at = next(index for index, row in enumerate(before) if row.outcomes[0] == REPAIRED)
    for worse in (COMPOSED, "refused (exit 5)", "n/a"):
        changed = replace(before[at], outcomes=(worse, *before[at].outcomes[1:]))
        now = [*before[:at], changed, *before[at + 1 :]]
        assert losses(before, now) == {(changed.place, changed.kind, "saved with manifests")}
    assert losses(before, before) == set()
