"""The proof of all ranks is the worst of them, in one clause."""

import random

import pytest

from ms_recover.training.deciding.sample_proof import SampleProof, combined


def test_the_clause_of_a_resume_states_what_is_known():
    assert SampleProof("proven").text == "samples proven"
    assert SampleProof("proven", note="by the epoch before").text == "samples proven (by the epoch before)"
    assert SampleProof("unproven", "sink mode").text == "samples not proven: sink mode"
    assert SampleProof("differs", "column 'x'").text == "samples are others: column 'x'"


@pytest.mark.parametrize("seed", range(50))
def test_all_ranks_have_the_proof_of_the_worst(seed):
    rng = random.Random(seed)
    outcomes = rng.choices(["proven", "unproven", "differs"], [4, 1, 1], k=rng.randint(1, 5))
    proofs = [SampleProof(one, "" if one == "proven" else f"why {rank}") for rank, one in enumerate(outcomes)]
    found = combined([proof.encoded() for proof in proofs])
    worst = "differs" if "differs" in outcomes else "unproven" if "unproven" in outcomes else "proven"
    assert found.outcome == worst
    ranks = [rank for rank, one in enumerate(outcomes) if one == worst]
    if worst != "proven":
        named = "" if len(ranks) == len(outcomes) else f"on rank(s) {', '.join(map(str, ranks))} "
        assert found.why == f"{named}why {ranks[0]}"
