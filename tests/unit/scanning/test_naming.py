import pytest

from ms_recover.errors import UsageError
from ms_recover.model.inventory import RankPath
from ms_recover.model.steps import Step
from ms_recover.scanning.naming import (
    Pattern,
    SliceName,
    Unused,
    never_a_slice,
    outvoted_reason,
    rank_in_path,
    read_rank_directory,
    read_slice_name,
    strategy_rank,
)

CKPT_DIR = RankPath(("ckpt_dir", ""))


@pytest.mark.parametrize(
    ("name", "rank"),
    [("ckpt_dir0", 0), ("rank_12", 12), ("ckpt_dir01", None), ("rank_", None), ("rank_x", None), ("xrank_1", None)],
)
def test_rank_directories(name, rank):
    found = read_rank_directory(name)
    assert (found and found[0]) == rank
    if found:
        assert found[1].of(7) == name.replace(str(rank), "7")


@pytest.mark.parametrize(
    ("name", "prefix", "step"),
    [
        ("test-1_77.ckpt", "test", Step(1, 77)),
        ("test_1-2_77.ckpt", "test_1", Step(2, 77)),
        ("a-b-c-10_2.ckpt", "a-b-c", Step(10, 2)),
        ("net-0_0.ckpt", "net", Step(0, 0)),
        ("test_1-2_77.safetensors", "test_1", Step(2, 77)),
    ],
)
def test_slice_names(name, prefix, step):
    found = read_slice_name(CKPT_DIR, 3, name)
    assert found == SliceName(3, step, prefix, RankPath(("ckpt_dir", f"/{name}")))
    assert found.place.of(5) == f"ckpt_dir5/{name}"


@pytest.mark.parametrize("suffix", ["ckpt", "safetensors"])
def test_mindformers_names_carry_the_rank(suffix):
    found = read_slice_name(RankPath(("rank_", "")), 3, f"llama_rank_3-2_100.{suffix}")
    assert isinstance(found, SliceName)
    assert (found.prefix, found.step) == ("llama", Step(2, 100))
    assert found.place.of(3) == f"rank_3/llama_rank_3-2_100.{suffix}"
    assert found.place.of(11) == f"rank_11/llama_rank_11-2_100.{suffix}"


@pytest.mark.parametrize(
    ("name", "prefix", "of_eleven"),
    [
        ("CKP_rank_3_1-1_2.ckpt", "CKP_1", "CKP_rank_11_1-1_2.ckpt"),  # MindFormers, started again
        ("CKP_rank_3_x-1_2.ckpt", "CKP_x", "CKP_rank_11_x-1_2.ckpt"),
        ("rank_3-1_2.ckpt", "", "rank_11-1_2.ckpt"),
        ("lora_rank_8_rank_3-1_2.ckpt", "lora_rank_8", "lora_rank_8_rank_11-1_2.ckpt"),  # the last is the rank
        ("CKP_rank_3x-1_2.ckpt", "CKP_rank_3x", "CKP_rank_3x-1_2.ckpt"),  # no rank
    ],
)
@pytest.mark.parametrize("pattern", [None, "rank_{rank}/{prefix}-{epoch}_{step}.ckpt"])
def test_the_rank_in_a_name_is_replaced_for_another_rank_wherever_it_stands(name, prefix, of_eleven, pattern):
    if pattern is None:
        found = read_slice_name(RankPath(("rank_", "")), 3, name)
    else:
        found = Pattern.parse(pattern).slice_name(f"rank_3/{name}")
    assert isinstance(found, SliceName)
    assert (found.prefix, found.path) == (prefix, f"rank_3/{name}")
    assert found.place.of(11) == f"rank_11/{of_eleven}"


@pytest.mark.parametrize(
    "name",
    [
        "CKP_rank_2-1_2.ckpt",
        "CKP_rank_2_1-1_2.ckpt",
        "rank_2-1_2.ckpt",
        "CKP_rank_2_x-1_2.ckpt",
        "CKP_rank_03-1_2.ckpt",
    ],
)
@pytest.mark.parametrize("pattern", [None, "rank_{rank}/{prefix}-{epoch}_{step}.ckpt"])
def test_a_name_of_another_rank_is_no_slice(name, pattern):
    if pattern is None:
        found = read_slice_name(RankPath(("rank_", "")), 3, name)
    else:
        found = Pattern.parse(pattern).slice_name(f"rank_3/{name}")
    assert isinstance(found, Unused)
    assert found.kind == "other rank"


def test_a_rank_in_the_prefix_of_a_pattern_that_names_the_rank_itself_stays():
    found = Pattern.parse("x/{prefix}_rank_{rank}-{epoch}_{step}.ckpt").slice_name("x/lora_rank_8_rank_3-1_2.ckpt")
    assert isinstance(found, SliceName)
    assert (found.prefix, found.place.of(5)) == ("lora_rank_8", "x/lora_rank_8_rank_5-1_2.ckpt")


@pytest.mark.parametrize(
    ("name", "rank"),
    [
        ("strategy.ckpt", -1),
        ("strategy.json", -1),
        ("ckpt_strategy_rank_3.ckpt", 3),
        ("ckpt_strategy_rank_3_rank_3.ckpt", 3),
        ("strategy_rank_12.json", 12),
        ("ckpt_strategy.ckpt", -1),
        ("ckpt_strategy_rank_3_rank_4.ckpt", None),
        ("strategy_rank_x.ckpt", None),
        ("strategy_rank_03.ckpt", None),
        ("strategy.txt", None),
        ("my_strategy.ckpt", None),
        ("strategy-1_2.ckpt", None),
    ],
)
def test_names_of_strategy_files(name, rank):
    assert strategy_rank(name) == rank


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("test-1_77.tmp", "interrupted save"),
        (".test-1_77.ckpt.ms_recover.tmp", "interrupted recovery"),
        ("test-graph.meta", "graph"),
        ("test-2_77.ckpt.superseded", "set aside"),
        ("test-2_77.ckpt.outvoted", "nothing proved it damaged"),
        ("test-2_77.safetensors.2.outvoted", "nothing proved it damaged"),
        ("test-1_77_breakpoint.ckpt", "exception"),
        ("test-1_77.partial.ckpt", "could not be recovered whole"),
        ("llama_rank_3-1_77.partial.safetensors", "could not be recovered whole"),
        ("test-1_77.complete.ckpt", "put together by recover-ckpt complete"),
        ("test-1_77.complete.safetensors", "put together by recover-ckpt complete"),
        ("test-1_77_breakpoint.safetensors", "exception"),
        ("llama_rank_4-1_77.safetensors", "rank 4"),
        ("llama_rank_4-1_77.ckpt", "rank 4"),
    ],
)
def test_what_is_reported_and_never_used(name, why):
    found = read_slice_name(CKPT_DIR, 3, name)
    assert isinstance(found, Unused)
    assert why in found.reason


@pytest.mark.parametrize(
    "name", ["strategy.ckpt", "train.log0", "test.ckpt", "test-1.ckpt", "test-1_77.ckpt.bak", "-1_2.ckpt"]
)
def test_other_files_are_no_slices(name):
    assert read_slice_name(CKPT_DIR, 3, name) is None


def test_pattern_reads_and_tells_paths():
    pattern = Pattern.parse("run/r{rank}/{prefix}-e{epoch}s{step}.r{rank}.ckpt")
    found = pattern.slice_name("run/r12/my-net-e3s40.r12.ckpt")
    assert found is not None
    assert (found.rank, found.prefix, found.step) == (12, "my-net", Step(3, 40))
    assert found.place.of(7) == "run/r7/my-net-e3s40.r7.ckpt"
    assert pattern.slice_name("run/r12/my-net-e3s40.r11.ckpt") is None


def test_pattern_text_is_literal_but_for_its_fields():
    assert Pattern.parse("a.b/{rank}-{epoch}_{step}.ckpt").slice_name("aXb/1-1_2.ckpt") is None


def test_a_prefix_with_braces_stays_as_it_is():
    found = Pattern.parse("{rank}/{prefix}-{epoch}_{step}.ckpt").slice_name("1/{step}-2_3.ckpt")
    assert found is not None
    assert found.place.of(4) == "4/{step}-2_3.ckpt"


@pytest.mark.parametrize(
    "text",
    [
        "x/{epoch}_{step}",
        "{rank}/{epoch}",
        "{rank}/{prefix}_{prefix}-{epoch}_{step}",
        "{rank}/{what}-{epoch}_{step}",
        "/{rank}/{epoch}_{step}",
        "../{rank}/{epoch}_{step}",
        "{rank}//{epoch}_{step}",
    ],
)
def test_bad_patterns_are_usage_errors(text):
    with pytest.raises(UsageError):
        Pattern.parse(text)


def test_rank_in_path():
    assert rank_in_path("/data/rank_3/ckpt_dir5/group_info.pb") == 5
    assert rank_in_path("/data/x/group_info.pb") is None


@pytest.mark.parametrize("ending", ["outvoted", "2.outvoted", "superseded", "outvoted.manifest.json", "outvoted.state"])
def test_no_pattern_makes_a_slice_of_what_is_set_aside(ending):
    name = f"8.ckpt.{ending}"
    assert Pattern.parse("ckpt_dir{rank}/{step}.{prefix}").slice_name(f"ckpt_dir3/{name}") is not None
    assert never_a_slice(name)


def test_commands_take_an_outvoted_slice_back_or_remove_it():
    path = "ckpt_dir3/test-2_77.ckpt"
    names = [f"test-2_77.ckpt{end}" for end in ("", ".manifest.json", ".outvoted", ".outvoted.state")]
    reason = outvoted_reason("/my tree", f"{path}.outvoted", names, near=True)
    slice_path, aside = f"'/my tree/{path}'", f"'/my tree/{path}.outvoted'"
    assert f"to take it back: rm -f '/my tree/{path}.manifest.json' && mv -f {aside} {slice_path} && mv -f " in reason
    assert f"'/my tree/{path}.outvoted.state' '/my tree/{path}.state'; then plan with --lost" in reason
    assert reason.endswith(f"to remove it: rm -f {aside} '/my tree/{path}.outvoted.state'")
    assert "mv -f" not in outvoted_reason("s3://b/run", f"{path}.outvoted", names, near=False)
