"""Plans from files: what they must state, and that their paths name what they claim."""

import json
from dataclasses import replace

import pytest

from ms_recover.errors import FormatError
from ms_recover.formats.plan_json import plan_from_json, plan_to_json
from ms_recover.model.actions import CopyAction, FileState, Replica
from ms_recover.model.compose import ComposeAction, ComposedParameter, MissingRegion, Piece, Runs
from ms_recover.model.inventory import Note
from ms_recover.model.manifest import DIGEST
from ms_recover.model.plan import DocumentWrite, GivenUpSlice, GroupWrite, Plan, RankVerdict, RejectedStep
from ms_recover.model.shard_metadata import CommonInfo
from ms_recover.model.slices import Parameter
from ms_recover.model.steps import Step

STEP = Step(2, 77)
SOME = f"{DIGEST}:{'0123456789abcdef' * 2}"


def replica(rank, digest=SOME):
    return Replica(rank, f"ckpt_dir{rank}/test-2_77.ckpt", FileState(100, 7), digest)


COPY = CopyAction(
    rank=0,
    replica=replica(4),
    target="ckpt_dir0/test-2_77.ckpt",
    replaces=FileState(7, -3),
    reason="rank 4 holds the same slice",
    evidence="vote",
    group=(0, 4, 8),
    alternatives=(replica(8, None),),
    borrowed=("bn.moving_mean",),
)
COMPOSE = ComposeAction(
    rank=1,
    sources=(replica(2), replica(3)),
    model=1,
    parameters=(
        ComposedParameter(
            Parameter("w", "Float32", (4, 4), 64),
            (
                Piece(0, Runs(0, 0, 8, ((4, 8, 16),)), 32, SOME, (1,)),
                Piece(1, Runs(0, 8, 8, ((4, 8, 16),)), 32),
            ),
        ),
        ComposedParameter(Parameter("empty", "Float32", (0, 4), 0), ()),
    ),
    target="ckpt_dir1/test-2_77.ckpt",
    replaces=None,
    reason="by layouts",
    group=(1, 5),
)
PLAN = Plan(
    root="/tree",
    world_size=9,
    world_size_from="manifests",
    step=STEP,
    actions=(COPY, COMPOSE),
    group_files=(GroupWrite(0, "ckpt_dir0/group_info.pb", (0, 4, 8)),),
    ranks=(
        RankVerdict(0, "missing", "copy", "why", COPY.target, 4, COPY.source, "vote"),
        RankVerdict(
            1, "unreadable", "unrecoverable", "why", missing=(MissingRegion("w", ((0, 4),), 8, "x"),), bytes=80
        ),
    ),
    rejected_steps=(RejectedStep(Step(3, 1), "two are gone", another_run=True),),
    notes=(Note("a\udcff.ckpt", "not UTF-8"),),
    run_id="run-1",
    disagreements=("they differ",),
    considered=STEP,
    world_size_guessed=True,
    warnings=("an older step",),
)
LOST = replace(
    PLAN,
    step=None,
    actions=(),
    group_files=(),
    partials=(replace(COMPOSE, kind="partial", target="ckpt_dir1/test-2_77.partial.ckpt"),),
)


ASIDE = replace(
    PLAN,
    actions=(
        replace(COPY, set_aside=f"{COPY.target}.outvoted"),
        replace(COMPOSE, replaces=FileState(5, 1), set_aside=f"{COMPOSE.target}.outvoted"),
    ),
    set_aside=(
        GivenUpSlice(rank=0, path="ckpt_dir0/test_1-1_2.ckpt", state=FileState(9, 8), reason="of a rerun"),
        GivenUpSlice(rank=2, path="ckpt_dir2/test_1-1_2.ckpt", state=None, reason="of a rerun"),
    ),
)


@pytest.mark.parametrize("plan", [PLAN, LOST, ASIDE], ids=["recoverable", "lost", "set aside"])
def test_a_plan_is_read_as_it_was_written(plan):
    text = json.dumps(plan_to_json(plan))
    assert plan_from_json(text, "p") == plan
    assert json.dumps(plan_to_json(plan_from_json(text, "p"))) == text


def test_a_plan_of_an_earlier_version_of_the_tool_is_read():
    data = json.loads(json.dumps(plan_to_json(PLAN)))
    del data["world_size_guessed"], data["warnings"], data["rejected_steps"][0]["another_run"]
    read = plan_from_json(json.dumps(data), "p")
    expected = replace(
        PLAN, world_size_guessed=False, warnings=(), rejected_steps=(RejectedStep(Step(3, 1), "two are gone"),)
    )
    assert read == expected


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda plan: plan["actions"][0].update(set_aside="ckpt_dir0/test-2_77.ckpt"), "does not end in .outvoted"),
        (lambda plan: plan["actions"][1].update(set_aside="ckpt_dir0/test-2_77.ckpt.outvoted"), "behind that name"),
        (lambda plan: plan["actions"][0].update(set_aside="/x.outvoted"), "set_aside"),
        (lambda plan: plan["actions"][0].update(replaces=None), "replaces none"),
        (lambda plan: plan["set_aside"][0].update(path="ckpt_dir1/test_1-1_2.ckpt"), "names rank 1"),
        (lambda plan: plan["set_aside"][0].update(path="ckpt_dir0/group_info.pb"), "no name of a slice"),
        (lambda plan: plan["set_aside"][0].update(path="ckpt_dir0/test-2_77.ckpt"), "keeps, writes or reads"),
        (lambda plan: plan["set_aside"][1].update(path="ckpt_dir2/test-2_77.ckpt"), "keeps, writes or reads"),
        (lambda plan: plan["set_aside"].append(plan["set_aside"][0]), "sets a slice aside twice"),
        (lambda plan: plan.update(step=None, actions=[], group_files=[]), "sets slices aside, but has no step"),
    ],
)
def test_a_plan_sets_nothing_else_aside_than_what_it_may(change, why):
    data = json.loads(json.dumps(plan_to_json(ASIDE)))
    change(data)
    with pytest.raises(FormatError, match=why):
        plan_from_json(json.dumps(data), "p")


def compose(**change):
    return lambda plan: plan["actions"][1].update(change)


def piece(**change):
    return lambda plan: plan["actions"][1]["parameters"][0]["pieces"][0].update(change)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda plan: plan["actions"][0].update(group=[0, 8]), "not both are in the group"),
        (lambda plan: plan["actions"][0].update(source_digest="md5:0"), "source_digest"),
        (lambda plan: plan["actions"][0].update(source_digest=SOME + "\n"), "source_digest"),
        (lambda plan: plan["actions"][0].update(rank=1 << 24), "rank"),
        (lambda plan: plan["actions"][0].update(bytes=1 << 63), "bytes"),
        (lambda plan: plan["actions"][0].update(evidence="hearsay"), "evidence"),
        (lambda plan: plan["actions"][0].update(target="ckpt_dir4/test-2_77.ckpt"), "another action|names rank 4"),
        (lambda plan: plan["actions"][0].update(target="ckpt_dir3/test-2_77.ckpt"), "names rank 3"),
        (lambda plan: plan["actions"][0].update(target="ckpt_dir1/test-2_77.ckpt"), "one target"),
        (lambda plan: plan["actions"][0].update(target="ckpt_dir7/test-2_77.ckpt"), "names rank 7"),
        (lambda plan: plan["actions"][0].update(target="ckpt_dir0/test-1_77.ckpt"), "names step 1_77, not 2_77"),
        (lambda plan: plan["actions"][0].update(target="ckpt_dir0/strategy.ckpt"), "does not name step 2_77"),
        (lambda plan: plan["actions"][0].update(source="ckpt_dir5/test-2_77.ckpt"), "names rank 5"),
        (lambda plan: plan["actions"][0]["alternatives"][0].update(path="ckpt_dir5/test-2_77.ckpt"), "names rank 5"),
        (lambda plan: plan["group_files"][0].update(target="ckpt_dir0/strategy.ckpt"), "not called group_info.pb"),
        (lambda plan: plan["group_files"][0].update(target="ckpt_dir4/group_info.pb"), "names rank 4"),
        (lambda plan: plan["group_files"][0].update(restore_ranks=[4, 8]), "rank list of rank 0"),
        (lambda plan: plan["ranks"][0].update(state="fine"), "state"),
        (lambda plan: plan.update(step=None), "no step"),
        (lambda plan: plan.update(partials=[plan["actions"][1]]), "partials"),
        (compose(model=2), "2 sources"),
        (compose(kind="complete"), "complete"),
        (piece(source=2), "not listed"),
        (piece(alternatives=[2]), "not listed"),
        (piece(runs=[0, 0, 0, []]), "runs"),
        (piece(runs=[0, 0, 8, [[0, 8, 16]]]), "runs"),
        (piece(runs=[0, 0, 8, [[1, 0, 0]] * 65]), "runs"),
        (piece(runs=[0, 0, 8, [[5, 8, 16]]]), "behind its parameter"),
        (piece(runs=[0, 0, 8, [[3, 8, 16]]]), "are not 64 bytes"),
        (piece(source_bytes=24), "behind its parameter"),
    ],
)
def test_a_plan_that_states_what_is_impossible_is_refused(change, why):
    plan = json.loads(json.dumps(plan_to_json(PLAN)))
    change(plan)
    with pytest.raises(FormatError, match="plan again") as refused:
        plan_from_json(json.dumps(plan), "plan.json")
    refused.match(why)
    assert refused.value.exit_code == 3


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{",
        '{"version": 2}',
        '{"version": 2, "version": 2, "actions": []}',
        "[" * 100_000,
        '{"a":NaN}',
        "\udcff",
    ],
)
def test_other_texts_are_no_plans(text):
    with pytest.raises(FormatError, match=r"plan\.json is not a recovery plan|plan\.json is not text"):
        plan_from_json(text, "plan.json")


@pytest.mark.parametrize("root", ["", "/a\0b", "/\ud800"])
def test_a_root_that_is_no_path_is_refused(root):
    plan = json.dumps(plan_to_json(replace(PLAN, root=root)))
    with pytest.raises(FormatError, match=r"which is no path|half of a character"):
        plan_from_json(plan, "plan.json")


@pytest.mark.parametrize("code", [0xD800, 0xDC7F, 0xDD00, 0xDFFF])
def test_half_a_character_anywhere_in_a_plan_is_refused(code):
    half = chr(code)
    for change in ({"notes": (Note("a", half),)}, {"warnings": (half,)}, {"run_id": half}):
        with pytest.raises(FormatError, match=rf"U\+{code:04X}, half of a character"):
            plan_from_json(json.dumps(plan_to_json(replace(PLAN, **change))), "plan.json")


COMMON = CommonInfo(step_num=8, members=("step_num",))
DOCUMENTS = tuple(
    DocumentWrite(target, value, state, "lost", sources=("iteration_00000008/a",), unknown=("x",), assumed=("y",))
    for target, value, state in [
        ("iteration_00000008/common.json", COMMON, FileState(4, 5)),
        ("latest_checkpointed_iteration.txt", 8, None),
    ]
)
OF_ITERATION = replace(
    PLAN, step=Step(-1, 8), considered=Step(-1, 8), actions=(), group_files=(), ranks=(), documents=DOCUMENTS
)


def test_documents_of_a_plan_are_read_as_they_were_written():
    text = json.dumps(plan_to_json(OF_ITERATION))
    assert plan_from_json(text, "plan.json") == OF_ITERATION
    damaged = text.replace('"text": "8"', '"text": "eight"')
    assert damaged != text
    with pytest.raises(FormatError, match="unusable tracker"):
        plan_from_json(damaged, "plan.json")
    with pytest.raises(FormatError, match="two actions have one target"):
        plan_from_json(json.dumps(plan_to_json(replace(OF_ITERATION, documents=2 * DOCUMENTS))), "plan.json")
