import pytest

from ms_recover.formats.plan_paths import name_problem
from ms_recover.model.steps import Step


@pytest.mark.parametrize(
    "path",
    [
        "ckpt_dir3/test-1_8.ckpt",
        "ckpt_dir3/test_1-1_8.safetensors",
        "rank_3/test_rank_3-1_8.ckpt",
        "checkpoints/rank_3/test_rank_3_1-1_8.ckpt",
        "ckpt_dir3/test-1_8.partial.ckpt",
        "job7/3/model-1_8.ckpt",
        "all/test_rank_3-1_8.ckpt",
        "rank_3/lora_rank_8_rank_3-1_8.ckpt",
        "host-3/epoch1/step8.ckpt",
        "r3/slices/1_8.r3.ckpt",
        "run/r3/test-e1s8.r3.ckpt",
        "1/8/3.ckpt",
        "rank_3/epoch-1_1/test-1_8.ckpt",
    ],
)
def test_a_path_that_names_its_rank_and_step_is_right(path):
    assert name_problem(path, 3, Step(1, 8)) is None


@pytest.mark.parametrize(
    ("path", "problem"),
    [
        ("ckpt_dir2/test-1_8.ckpt", "names rank 2"),
        ("rank_30/test-1_8.ckpt", "names rank 30"),
        ("ckpt_dir3/test_rank_2-1_8.ckpt", "names rank 2"),
        ("rank_3/test_rank_2_1-1_8.ckpt", "names rank 2"),
        ("rank_3/test_rank_2_x-1_8.ckpt", "names rank 2"),
        ("rank_3/lora_rank_3_rank_2-1_8.safetensors", "names rank 2"),
        ("ckpt_dir2/test_rank_3-1_8.ckpt", "names rank 2"),
        ("ckpt_dir3/test-1_9.ckpt", "names step 1_9"),
        ("ckpt_dir3/test-8_1.ckpt", "names step 8_1"),
        ("ckpt_dir3/test.ckpt", "does not name step 1_8"),
        ("job/33/model-1_8.ckpt", "does not name rank 3"),
        ("job/test-3_8.ckpt", "names step 3_8"),
        ("host-3/epoch1/step9.ckpt", "does not name step 1_8"),
        ("ckpt_dir33/test-1_8.ckpt", "names rank 33"),
        ("ckpt_dir/test-1_8.ckpt", "does not name rank 3"),
        ("ckpt_dir4/test3-1_8.ckpt", "names rank 4"),
        ("ckpt_dir3/rank_4/test-1_8.ckpt", "names rank 4"),
        ("ckpt_dir3/test-11_8.ckpt", "names step 11_8"),
        ("ckpt_dir3/x1_8-3_8.ckpt", "names step 3_8"),
        ("r13/slices/1_8.r31.ckpt", "does not name rank 3"),
        ("r3/slices/1_9.r3.ckpt", "does not name step 1_8"),
    ],
)
def test_a_path_of_another_rank_or_step_is_named(path, problem):
    assert problem in name_problem(path, 3, Step(1, 8))


def test_a_rank_that_stands_only_in_the_step_is_not_named():
    assert name_problem("job/test-3_8.ckpt", 3, Step(3, 8)) == "does not name rank 3"
    assert name_problem("job/3/test-3_8.ckpt", 3, Step(3, 8)) is None
    assert name_problem("lists/3/group_info.pb", 3, None) is None
    assert name_problem("lists/group_info.pb", 3, None) == "does not name rank 3"
    assert name_problem("ckpt_dir4/group_info.pb", 3, None) == "names rank 4"
