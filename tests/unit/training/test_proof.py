"""The line that says what a resume has proven."""

import random
import time

import pytest

from ms_recover.training.deciding.job import TrainingJob
from ms_recover.training.deciding.resume_text import OF_LOOP, OF_MODEL, SUBJECTS, Proof, Source, proof_text, text_of
from ms_recover.training.proof import QUIET, ResumeLine, begin_line, clock_text, is_quiet, resume_line
from tests.support.ranks import on_all, thread_jobs

ALONE = TrainingJob(0, 1)
NOON = time.mktime((2026, 3, 4, 14, 3, 0, 0, 0, -1))


def proof_of(*subjects):
    proof = Proof()
    for subject in subjects:
        proof = proof.proven(subject)
    return proof


def test_a_clean_resume_is_one_line():
    source = Source(step="2_1", run="4f1c", saved_at=NOON, host="n7")
    text = text_of(source, [None] * 8, [proof_of(*OF_MODEL)] * 8, clock_text(NOON, NOON + 60))
    assert text == (
        "resumed from step 2_1 (run 4f1c, 8 of 8 ranks, saved 14:03 by host n7): "
        "weights, optimizer, callbacks and samples proven"
    )


def test_what_was_saved_on_another_day_has_its_date():
    saved = clock_text(NOON, NOON + 2 * 86400)
    text = text_of(Source(step="1_3"), [None], [proof_of(*OF_LOOP)], saved, OF_LOOP)
    assert text == (
        "resumed from step 1_3 (1 of 1 ranks, saved 2026-03-04 14:03): weights, optimizer and samples proven"
    )


def test_ranks_that_have_the_slice_of_another_one_are_named():
    text = text_of(Source(step="1_3"), [None, 0, None], [proof_of(*OF_MODEL)] * 3)
    assert "(2 of 3 ranks, rank 1 from rank 0)" in text


def test_what_nobody_states_is_not_proven():
    assert proof_text([proof_of("weights", "optimizer", "callbacks")]) == (
        "weights, optimizer and callbacks proven; samples not proven: not compared"
    )
    assert "proven;" not in proof_text([Proof()])


def test_a_doubt_stays_whatever_is_proven_of_its_subject():
    rng = random.Random(7)
    for _ in range(300):
        proofs, truth = [], {}
        for rank in range(rng.randint(1, 3)):
            proof = Proof()
            for _ in range(rng.randint(0, 12)):
                subject = rng.choice(SUBJECTS)
                if rng.random() < 0.4:
                    why = f"reason {rng.randint(0, 3)}"
                    proof = proof.doubted(subject, why)
                    truth.setdefault(subject, {}).setdefault(why, set()).add(rank)
                else:
                    proof = proof.proven(subject)
            proofs.append(proof)
        stated = [set(proof.doubts) for proof in proofs]
        text = proof_text(proofs)
        head = text.split(";")[0].removesuffix(" proven")
        proven = set(head.replace(" and ", ", ").split(", ")) if text.split(";")[0].endswith(" proven") else set()
        for subject in OF_MODEL:
            compared = all(subject in one for one in stated)
            assert (subject in proven) == (compared and subject not in truth), (text, proofs)
        for subject, reasons in truth.items():
            for why in reasons:
                assert why in text.split(f"{subject} not proven: ")[1].split("; ")[0]


def test_a_reason_that_not_all_ranks_have_names_them():
    all_of_them = proof_of(*OF_MODEL)
    assert proof_text([all_of_them, all_of_them.doubted("callbacks", "those of rank 0")]) == (
        "weights, optimizer and samples proven; callbacks not proven: those of rank 0 (rank 1)"
    )


def test_the_line_is_printed_once_and_only_behind_a_resume(capfd):
    begin_line(ALONE).say()
    assert capfd.readouterr() == ("", "")
    line = begin_line(ALONE)
    line.resumes(Source(step="2_1"))
    resume_line().prove(*OF_MODEL)
    resume_line().doubt("Dropout starts anew", "random numbers")
    resume_line().say()
    resume_line().say()
    found = capfd.readouterr()
    assert found.err == (
        "ms_recover: resumed from step 2_1 (1 of 1 ranks): weights, optimizer, callbacks and samples proven; "
        "random numbers not proven: Dropout starts anew\n"
    )
    assert found.out == ""


@pytest.mark.parametrize(("value", "quiet"), [(None, False), ("", False), ("0", False), ("1", True), ("yes", True)])
def test_a_variable_turns_the_line_off(value, quiet, monkeypatch, capfd):
    monkeypatch.delenv(QUIET, raising=False)
    if value is not None:
        monkeypatch.setenv(QUIET, value)
    assert is_quiet() == quiet
    begin_line(ALONE).resumes(Source(step="2_1"))
    resume_line().say()
    assert (capfd.readouterr().err == "") == quiet


def test_a_note_on_a_proof_stands_behind_it():
    proof = proof_of("weights", "optimizer", "callbacks").proven("samples", "read from the beginning")
    assert proof_text([proof, proof]) == (
        "weights, optimizer, callbacks and samples proven (samples: read from the beginning)"
    )


def test_rank_0_says_what_all_ranks_have_proven(capfd):
    jobs = thread_jobs(3)

    def work(rank):
        line = ResumeLine(jobs[rank])
        line.resumes(Source(step="2_1", other_rank=0 if rank == 2 else None))
        line.prove(*OF_MODEL)
        if rank == 2:
            line.doubt("those of rank 0", "callbacks")
        line.say()

    on_all(3, work)
    assert capfd.readouterr().err == (
        "ms_recover: resumed from step 2_1 (2 of 3 ranks, rank 2 from rank 0): weights, optimizer and samples proven; "
        "callbacks not proven: those of rank 0 (rank 2)\n"
    )
