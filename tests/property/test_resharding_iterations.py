"""Random jobs in MindFormers' format: each rank's files and what metadata.json says, against whole tensors."""

from __future__ import annotations

import tempfile
from pathlib import Path
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from ms_recover import api
from ms_recover.errors import UsageError
from ms_recover.formats.common_info import read_common, read_tracker
from ms_recover.formats.shard_metadata import read_metadata
from ms_recover.model.reshard import ReshardOptions
from tests.property.test_recovery import MEMORY
from tests.support.examples import examples
from tests.support.reshard import COUNTER, contents_of, make_job_tree, random_arrays, random_job, write_strategies

REFUSALS = ("metadata.json cannot state", "cut it differently")
COMMON = (("global_batch_size", 4),)


@settings(max_examples=examples(30))
@given(st.integers(0, (1 << 32) - 1))
def test_files_hold_what_metadata_says_and_cut_back_they_are_the_source(seed: int) -> None:
    source = Random(seed)
    arrays = random_arrays(source)
    shapes = {name: array.shape for name, array in arrays.items() if name != COUNTER}
    for name in list(shapes)[: source.randint(0, len(shapes))]:
        arrays[f"adam_m.{name}"] = arrays[name].copy()
        shapes[f"adam_m.{name}"] = shapes[name]
    job, target = random_job(source, shapes), random_job(source, shapes)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        root = make_job_tree(Path(folder) / "source", job, arrays, manifests=source.random() < 0.5)
        there, back = Path(folder) / "there", Path(folder) / "back"
        strategy = str(write_strategies(Path(folder) / "target", target))
        wanted = ReshardOptions(strategy=strategy, form="mindformers", common=COMMON)
        try:
            plan = api.plan_reshard(api.scan(root), there, wanted)
        except UsageError as error:
            assert any(text in str(error) for text in REFUSALS), error  # noqa: PT017 (most are not refused)
            return
        outcome = api.reshard(plan, verify=False, compare=True)
        assert (outcome.exit_code, outcome.errors) == (0, ())
        steps = int(arrays[COUNTER])
        iteration = there / f"iteration_{steps:08d}"
        assert read_tracker(there / "latest_checkpointed_iteration.txt") == steps
        assert read_common(iteration / "common.json").global_step == steps
        metadata = read_metadata(iteration / "metadata.json")
        for rank in range(target.ranks):
            held = {name: target.held(arrays, rank, name) for name in arrays}
            if not any(name.startswith("adam_m.") and part is not None for name, part in held.items()):
                del held[COUNTER]
            found = {}
            for path in iteration.glob(f"*-{rank:07d}-{target.ranks:07d}.safetensors"):
                listed = contents_of(path)
                states = {name for name in listed if name.startswith("adam_m.") or name == COUNTER}
                assert states == (listed.keys() if "-opt-" in path.name else set())
                found |= listed
            assert found == {name: (part.shape, part.tobytes()) for name, part in held.items() if part is not None}
            for name, one in metadata.parameters.items():
                for fragment, items in zip(one.chunks, metadata.stored[name], strict=True):
                    if any(item.storage_rank == rank for item in items):
                        box = tuple(slice(*extent) for extent in one.region_of(fragment))
                        assert found[name][1] == arrays[name][box].tobytes()
        assert "COMPLETE" in _answer(there)
        wanted = ReshardOptions(strategy=str(write_strategies(Path(folder) / "source_again", job)), form="ckpt")
        plan = api.plan_reshard(api.scan(there), back, wanted)
        assert api.reshard(plan, verify=False).exit_code == 0
        for rank in range(job.ranks):
            (path,) = back.glob(f"rank_{rank}/*-0_*.ckpt")
            expected, again = contents_of(root / f"ckpt_dir{rank}" / "test-1_8.ckpt"), contents_of(path)
            counter = expected.pop(COUNTER)
            assert again.pop(COUNTER, counter) == counter
            assert again == expected


def _answer(root: Path) -> str:
    from ms_recover.reporting.plan_text import plan_text

    return plan_text(api.plan(api.scan(root)), None)
