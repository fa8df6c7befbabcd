"""The verdict on a rank whose slice is several files, and why ranks cannot be recovered."""

from ms_recover.model.compose import MissingRegion
from ms_recover.model.plan import RankVerdict
from ms_recover.planning.tree.rank_verdicts import join_ranks, why_unrecoverable

GONE = MissingRegion("w", ((0, 2),), 8, "nobody has it")


def kept(rank, **more):
    return RankVerdict(rank, **{"state": "ok", "verdict": "keep", "reason": "sound", **more})


def lost(rank, reason="no slice", **more):
    return kept(rank, **{"state": "missing", "verdict": "unrecoverable", "reason": reason, **more})


def test_the_verdict_on_one_file_is_that_on_the_rank():
    verdicts = [kept(0), lost(1)]
    assert join_ranks({None: verdicts}) == tuple(verdicts)


def test_the_worst_of_several_files_is_the_verdict_on_the_rank():
    copied = kept(0, state="damaged", verdict="copy", reason="from rank 1", bytes=5)
    joined = join_ranks({"model": [copied, kept(1)], "opt": [lost(0, missing=(GONE,), bytes=3), kept(1)]})
    assert [(one.rank, one.state, one.verdict, one.kind) for one in joined] == [
        (0, "damaged", "unrecoverable", None),
        (1, "ok", "keep", None),
    ]
    assert joined[0].reason == "opt: no slice"
    assert joined[1].reason == "model: sound; opt: sound"
    assert (joined[0].missing, joined[0].bytes, joined[1].bytes) == ((GONE,), 8, None)
    assert [[(file.rank, file.kind, file.verdict) for file in one.files] for one in joined] == [
        [(0, "model", "copy"), (0, "opt", "unrecoverable")],
        [(1, "model", "keep"), (1, "opt", "keep")],
    ]


def test_a_file_that_is_of_fewer_ranks_is_missing():
    joined = join_ranks({"model": [kept(0), kept(1)], "opt": [kept(0)]})
    assert [one.verdict for one in joined] == ["keep", "unrecoverable"]
    assert joined[1].reason == "opt: the files of this part are of 1 rank"
    assert joined[1].files[1].kind == "opt"
    assert join_ranks({}) == ()


def test_of_a_tree_that_has_one_kind_of_files_the_verdict_is_on_the_rank():
    (joined,) = join_ranks({"model": [kept(0)]})
    assert (joined.kind, joined.reason) == (None, "model: sound")
    assert [file.kind for file in joined.by_kind] == ["model"]


def test_reasons_are_given_once_with_their_ranks():
    verdicts = [lost(0), kept(1), lost(2), lost(3, "encrypted")]
    assert why_unrecoverable(verdicts) == "ranks 0, 2: no slice; rank 3: encrypted"
    assert why_unrecoverable([kept(0)]) == ""


def test_of_many_reasons_the_first_are_given_and_the_other_ranks():
    text = why_unrecoverable([lost(rank, f"reason {rank}") for rank in range(10)])
    assert text.startswith("rank 0: reason 0; rank 1: reason 1; ")
    assert "rank 7: reason 7; and 2 more ranks: ranks 8" in text
    assert "reason 8" not in text
    assert "more" not in why_unrecoverable([lost(rank, f"reason {rank}") for rank in range(8)])
