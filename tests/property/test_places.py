"""What plan promises, apply does: by whatever lies in the places of a recovery."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from tests.support.circumstances import CIRCUMSTANCES, HALF, LISTS, RANKS, Scene
from tests.support.command_line import in_this_process
from tests.support.examples import examples

NOT_THERE = {"no directory", "a file", "a link that leads in a circle", "a link that leads nowhere"}
"""Circumstances of a directory in which a link to it leads to no directory of another rank."""


def contents(top: Path) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(top.rglob("*")) if path.is_file()}


@settings(max_examples=examples(24))
@given(
    st.dictionaries(st.integers(0, RANKS - 1), st.sampled_from(sorted(CIRCUMSTANCES)), min_size=1, max_size=3),
    st.booleans(),
    st.randoms(use_true_random=False),
)
@example({0: "a link to another rank's directory", 1: "a directory under the rank list's name"}, False, Random(1))
@example({0: "a link to another rank's directory", 1: "a file"}, False, Random(1))
def test_a_plan_that_ends_with_0_is_applied_with_0_and_any_other_names_what_to_do(
    struck: dict[int, str], manifests: bool, chance: Random
) -> None:
    struck = {rank: name for rank, name in struck.items() if (rank + HALF) % RANKS not in struck or rank < HALF}
    for rank in [rank for rank, name in struck.items() if name == "a link to another rank's directory"]:
        if struck.get((rank + 1) % HALF) in NOT_THERE:
            del struck[(rank + 1) % HALF]
    with tempfile.TemporaryDirectory() as folder:
        scene = Scene.make(Path(folder), manifests=manifests)
        truth = {rank: scene.slice(rank).read_bytes() for rank in range(RANKS)}
        for rank in struck:
            scene.lose(rank)
        for rank, name in struck.items():
            CIRCUMSTANCES[name].strike(scene, rank)
            event(name)
        outside = contents(scene.disk)
        options: list[object] = []
        while True:
            plan = in_this_process("plan", scene.root, *options)
            blocking = {rank: name for rank, name in struck.items() if CIRCUMSTANCES[name].words}
            assert (plan.code == 0) == (not blocking), (struck, plan.out, plan.err)
            assert "plan again" not in plan.out
            if not blocking:
                break
            for words in {CIRCUMSTANCES[name].words for name in blocking.values()}:
                assert words in plan.out or LISTS in plan.err, (words, plan.out)
            if chance.random() < 0.5:
                applied = in_this_process("apply", scene.root, *options)
                assert applied.code == plan.code, (struck, applied.out)
                assert "plan again" not in applied.out + applied.err
                assert options or contents(scene.disk) == outside
            rank = chance.choice(sorted(blocking))
            name = struck[rank]
            circumstance = CIRCUMSTANCES[name]
            if circumstance.mend is not None:
                del struck[rank]
                circumstance.mend(scene, rank)
            else:  # an option is for all ranks
                struck = {other: what for other, what in struck.items() if what != name}
                options += circumstance.options(scene, rank)
        applied = in_this_process("apply", scene.root, *options)
        assert applied.code == 0, (applied.out, applied.err)
        assert {rank: scene.slice(rank).read_bytes() for rank in range(RANKS)} == truth
        again = in_this_process("plan", scene.root, *options, "--detailed-exitcode")
        assert again.code == 0, again.out
