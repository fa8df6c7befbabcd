"""Patterns guessed from the paths of foreign layouts: given back, each reads the files."""

import shutil

import pytest

from ms_recover.model.steps import Step
from ms_recover.scanning.naming import Pattern, SliceName
from ms_recover.scanning.pattern_guess import guess_pattern
from ms_recover.testing.trees import make_tree

FOREIGN = [
    "worker_{rank}/net-{epoch}_{step}.ckpt",
    "node0/card{rank}/net-{epoch}_{step}.ckpt",
    "out/{rank}/net-{epoch}_{step}.ckpt",
    "net_rank_{rank}-{epoch}_{step}.ckpt",
    "net-{rank}-{epoch}_{step}.safetensors",
    "{epoch}_{step}/rank_{rank}.ckpt",
    "epoch_{epoch}/step_{step}/rank{rank}.ckpt",
    "step_{step}/r{rank}/model.ckpt",
    "worker{rank}/model_{step}.ckpt",
    "iter_{step}/mp_rank_{rank}/model.safetensors",
    "all/net-{epoch}_{step}-rank{rank}.ckpt",
    "p{rank}/e{epoch}/s{step}.ckpt",
    "w{rank}/r{rank}.net-{epoch}_{step}.ckpt",
    "step_{step}/worker_{rank}/net-{epoch}_{step}.ckpt",
    "job7/llama2_7b_part{rank}-{epoch}_{step}.ckpt",
    "x/{rank}_{step}.ckpt",
    "x/{step}/{rank}.ckpt",
]
STEPS = {8: [Step(1, 100), Step(1, 200), Step(2, 100)], 4: [Step(1, 200)], 2: [Step(1, 8)]}


def paths_of(form, ranks, steps):
    return sorted({form.format(rank=rank, epoch=step.epoch, step=step.step) for rank in range(ranks) for step in steps})


@pytest.mark.parametrize("ranks", STEPS)
@pytest.mark.parametrize("form", FOREIGN)
def test_the_rank_the_epoch_and_the_step_are_found(form, ranks):
    paths = paths_of(form, ranks, STEPS[ranks])
    guess = guess_pattern(paths)
    assert guess is not None
    assert (guess.pattern, guess.files, guess.ranks) == (form, len(paths), ranks)


@pytest.mark.parametrize("form", [*FOREIGN, "x/{rank}.{epoch}.{step}.ckpt", "a/b{rank}/net_1-{epoch}_{step}.ckpt"])
def test_whatever_is_guessed_reads_each_file_as_one_slice(form):
    for ranks, steps in STEPS.items():
        paths = paths_of(form, ranks, steps)
        guess = guess_pattern(paths)
        names = [Pattern.parse(guess.pattern).slice_name(path) for path in paths]
        assert all(isinstance(name, SliceName) for name in names)
        assert len({(name.rank, name.step) for name in names}) == len(paths)


def test_several_prefixes_and_reruns_are_read_by_one_pattern():
    forms = [
        "w{rank}/net-{epoch}_{step}.ckpt",
        "w{rank}/net_1-{epoch}_{step}.ckpt",
        "w{rank}/other-{epoch}_{step}.ckpt",
    ]
    paths = [path for form in forms for path in paths_of(form, 4, STEPS[8])]
    guess = guess_pattern(paths)
    assert guess.pattern == "w{rank}/{prefix}-{epoch}_{step}.ckpt"
    assert guess.files == len(paths)


@pytest.mark.parametrize(
    "paths",
    [
        [],
        ["net-1_8.ckpt"],
        ["a.ckpt", "b.ckpt"],
        ["w00/n-1_8.ckpt", "w01/n-1_8.ckpt"],  # with leading zeros
        ["{0}/n-1_8.ckpt", "{1}/n-1_8.ckpt"],
    ],
)
def test_nothing_is_guessed_where_no_pattern_reads_ranks(paths):
    assert guess_pattern(paths) is None


@pytest.mark.parametrize("form", FOREIGN)
def test_the_printed_pattern_reads_the_tree(form, tmp_path, recover_ckpt):
    name = form.rpartition("/")[2]
    made = make_tree(tmp_path / "made", directory="{rank}", steps=[Step(2, 16)])
    tree = tmp_path / "tree"
    for rank in range(4):
        path = tree / form.format(rank=rank, epoch=2, step=16)
        path.parent.mkdir(parents=True, exist_ok=True)
        source = made / str(rank) / "test-2_16.ckpt"
        shutil.copyfile(source, path) if path.suffix == ".ckpt" else path.write_bytes(b"junk")
    refused = recover_ckpt("plan", tree)
    assert refused.code == 3
    assert f"4 *{name[name.rindex('.') :]} files, for example {form.format(rank=0, epoch=2, step=16)}" in refused.err
    printed = refused.err.rpartition("--pattern ")[2].strip().strip("'")
    assert Pattern.parse(printed)
    found = recover_ckpt("scan", tree, "--pattern", printed, "--json").json
    assert found["ranks"] == [0, 1, 2, 3]
    assert len(found["slices"]) == 4


def test_many_numbers_that_never_vary_are_text():
    form = "job7/llama2_7b/run3/2026-11-22/w{rank}/e{epoch}/s{step}-part0.ckpt"
    assert guess_pattern(paths_of(form, 8, STEPS[8])).pattern == form


def test_leading_zeros_are_named(tmp_path, recover_ckpt):
    make_tree(tmp_path, directory="worker_0{rank}")
    refused = recover_ckpt("plan", tmp_path)
    assert refused.code == 3
    assert refused.err.rstrip().endswith("a rank or step with leading zeros is not known")


def test_in_the_directory_of_a_rank_the_folder_above_is_named(tmp_path, recover_ckpt):
    tree = make_tree(tmp_path / "tree", directory="checkpoint/rank_{rank}")
    refused = recover_ckpt("plan", tree / "checkpoint/rank_3")
    assert refused.code == 3
    assert refused.err.rstrip().endswith(
        f"the directory of rank 3 alone: name the folder of all ranks: recover-ckpt plan {tree}/checkpoint"
    )
