"""What the verbs answer about random damaged trees is as recorded: plans, JSON and messages change on purpose only.

MS_RECOVER_WRITE_ANSWERS=1 records the answers again. To see what differs, run `tests.support.recorded_answers` with
both versions.
"""

import hashlib
import json
import os
from pathlib import Path

import pytest

from tests.support.recorded_answers import TREES, answers

RECORD = Path(__file__).parents[1] / "data" / "recorded_answers.json"


def digests_of(tree):
    kind, seed = tree.split()
    return {verb: hashlib.sha256(text.encode()).hexdigest()[:8] for verb, text in answers(kind, int(seed)).items()}


@pytest.mark.parametrize("tree", TREES)
def test_each_verb_answers_as_recorded(tree):
    found = digests_of(tree)
    recorded = json.loads(RECORD.read_text())
    if os.environ.get("MS_RECOVER_WRITE_ANSWERS"):
        recorded[tree] = found
        RECORD.write_text(json.dumps({one: recorded[one] for one in TREES if one in recorded}, indent=1) + "\n")
    differ = [verb for verb, digest in recorded[tree].items() if found[verb] != digest]
    assert not differ, f"python -m tests.support.recorded_answers {tree} shows the answers of this version"
