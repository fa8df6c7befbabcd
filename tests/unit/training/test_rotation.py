import pytest

from ms_recover.execution.state_files import CLAIM
from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX
from ms_recover.formats.manifest import encode_manifest
from ms_recover.formats.manifest_json import parse_origin
from ms_recover.formats.state import encode_state
from ms_recover.model.manifest import Digests, Manifest, RunStep, TrainingRecord
from ms_recover.model.state import SliceClaim
from ms_recover.model.steps import Step
from ms_recover.planning.tree.lineage import RunRecord
from ms_recover.training import held_slices
from ms_recover.training.deciding.held_slice import Held, prefix_of
from ms_recover.training.deciding.rotation import Earlier, Keeping
from ms_recover.training.held_slices import find_earlier, held_slice, read_folder


def keep(count, **schedule):
    return [Keeping(count, set(), **schedule)]


def rotate(folder, prefix, savers, floor, earlier=Earlier(), runs=1):  # noqa: B008 (frozen)
    """Rotate the slices of a start that saved every committed slice with its prefix."""
    mine = [held_slice(str(folder), path.name) for path in folder.iterdir()]
    mine = [one for one in mine if one and one.prefix == prefix and not one.aside]
    mine = [one for one in mine if (folder / f"{one.path}{MANIFEST_SUFFIX}").exists()]
    return held_slices.rotate(mine, savers, floor, earlier, runs)


def save(folder, *names, committed=True):
    for name in names:
        (folder / f"{name}.ckpt").write_bytes(name.encode())
        if committed:
            (folder / f"{name}.ckpt{MANIFEST_SUFFIX}").write_text("{}")


def steps(gone):
    return [one.step for one in gone]


def left(folder):
    slices = {path.name.removesuffix(".ckpt") for path in folder.glob("*.ckpt")}
    manifests = {path.name.removesuffix(f".ckpt{MANIFEST_SUFFIX}") for path in folder.glob(f"*{MANIFEST_SUFFIX}")}
    assert manifests <= slices
    return sorted(slices)


@pytest.mark.parametrize(
    ("count", "floor", "stay"),
    [
        (2, "3_4", ["test-2_10", "test-3_4"]),
        (1, "3_4", ["test-3_4"]),
        (1, "2_10", ["test-2_10", "test-3_4"]),
        (2, "2_4", ["test-2_10", "test-2_4", "test-3_4"]),
        (1, "0_0", ["test-1_4", "test-2_10", "test-2_4", "test-3_4"]),
        (9, "3_4", ["test-1_4", "test-2_10", "test-2_4", "test-3_4"]),
    ],
)
def test_the_newest_stay_and_what_some_rank_may_need(tmp_path, count, floor, stay):
    save(tmp_path, "test-1_4", "test-2_4", "test-2_10", "test-3_4")
    gone = steps(rotate(tmp_path, "test", [Keeping(count, set())], Step.parse(floor)))
    assert left(tmp_path) == stay
    assert gone == sorted(gone, reverse=True)
    assert len(gone) + len(stay) == 4


def test_slices_of_other_runs_are_let_alone(tmp_path):
    others = ["test_1-1_4", "test_1-2_4", "atest-1_4", "test-x-1_4", "te.t-1_4", "test-1_4_breakpoint"]
    save(tmp_path, *others, "test-1_4", "test-1_8")
    save(tmp_path, "tXst-1_4")
    assert steps(rotate(tmp_path, "test", keep(1), Step(1, 8))) == [Step(1, 4)]
    assert left(tmp_path) == sorted([*others, "test-1_8", "tXst-1_4"])
    assert steps(rotate(tmp_path, "te.t", keep(1), Step(9, 9))) == []


def test_slices_that_do_not_count_take_no_place(tmp_path):
    save(tmp_path, "test-1_4", "test-1_8")
    save(tmp_path, "test-1_2", "test-2_4", committed=False)
    assert steps(rotate(tmp_path, "test", keep(1), Step(1, 8))) == [Step(1, 4)]
    assert left(tmp_path) == ["test-1_2", "test-1_8", "test-2_4"]


A, B, C = "a", "b", "c"
STARTED = {A: 1000, B: 2000, C: 3000}


def save_run(folder, run, prefix, *steps, resumed_from=None, aside=False, origin="saved", base="test"):
    """Write slices of a run, whose epochs have 8 steps, with manifests that are whole."""
    for text in steps:
        step = Step.parse(text)
        name = f"{prefix}-{step}.ckpt{'.superseded' if aside else ''}"
        training = TrainingRecord(STARTED[run], resumed_from, epoch_steps=8, base_prefix=base)
        manifest = Manifest(
            run,
            0,
            1,
            step,
            (step.epoch - 1) * 8 + step.step,
            f"{prefix}-{step}.ckpt",
            1,
            Digests(f"xxh3_128:{0:032x}"),
            (),
            (0,),
            provenance=parse_origin(origin),
            training=training,
        )
        (folder / name).write_bytes(b"x")
        (folder / f"{name}{MANIFEST_SUFFIX}").write_bytes(encode_manifest(manifest))


def there(folder):
    return sorted(path.name.removesuffix(MANIFEST_SUFFIX) for path in folder.glob(f"*{MANIFEST_SUFFIX}"))


def earlier(folder, run, prefix, resumed_from=None, rank=0):
    record = RunRecord(run_id=run, started=STARTED[run], resumed_from=resumed_from, newest=Step(0, 0))
    return find_earlier(str(folder), "test", prefix, record, rank)


def rotate_runs(folder, run, prefix, savers, floor, resumed_from=None, runs=1):
    known = earlier(folder, run, prefix, resumed_from)
    rotate(folder, prefix, savers, Step.parse(floor), known, runs)
    return [name.removesuffix(".ckpt") for name in there(folder)]


def test_slices_are_counted_over_the_runs_that_training_went_on_from(tmp_path):
    save_run(tmp_path, A, "test", "1_8", "2_8")
    save_run(tmp_path, B, "test_1", "3_8", resumed_from=RunStep(A, Step(2, 8), STARTED[A]))
    assert rotate_runs(tmp_path, B, "test_1", keep(2), "0_0", RunStep(A, Step(2, 8), STARTED[A])) == [
        "test-1_8",
        "test-2_8",
        "test_1-3_8",
    ]
    assert rotate_runs(tmp_path, B, "test_1", keep(2), "3_8", RunStep(A, Step(2, 8), STARTED[A])) == [
        "test-2_8",
        "test_1-3_8",
    ]


def claim(folder, name, run, prefix, base="test"):
    """Write the state file of a slice that was not committed."""
    claimed = SliceClaim(base, prefix, run, STARTED[run])
    (folder / f"{name}.ckpt{STATE_SUFFIX}").write_bytes(encode_state({CLAIM: claimed.values}))


def test_what_a_kill_has_left_without_a_manifest_goes(tmp_path):
    """A removal that was cut off behind the manifest, or the slice; nothing that its state file does not claim."""
    save_run(tmp_path, A, "test", "1_8")
    save_run(tmp_path, B, "test_1", "1_2", "1_6", "2_8", "3_8", resumed_from=RunStep(A, Step(1, 8), STARTED[A]))
    for name in ("test-1_2", "test-1_4", "test-3_8"):
        claim(tmp_path, name, A, "test")
    for name in ("test-1_2", "test-3_8", "test-1_1", "other-1_2", "test-1_3", "test-1_5", "test-1_7"):
        (tmp_path / f"{name}.ckpt").write_bytes(b"x")  # of test-1_4 the state alone is left
    claim(tmp_path, "other-1_2", A, "other", base="other")
    claim(tmp_path, "test-1_3", C, "test")  # of a run that this one does not go on from
    claim(tmp_path, "test-1_5", A, "test_2")  # it was written beside another slice
    (tmp_path / f"test-1_7.ckpt{STATE_SUFFIX}").write_bytes(b"of a version that claims nothing")
    before = {path.name for path in tmp_path.iterdir()}
    rotate_runs(tmp_path, B, "test_1", keep(4), "2_8", RunStep(A, Step(1, 8), STARTED[A]))
    gone = {f"test-1_2.ckpt{end}" for end in ("", STATE_SUFFIX)} | {f"test-1_4.ckpt{STATE_SUFFIX}"}
    gone |= {f"test-1_8.ckpt{end}" for end in ("", MANIFEST_SUFFIX)}
    assert {path.name for path in tmp_path.iterdir()} == before - gone


def test_of_more_runs_the_newest_slices_stay(tmp_path):
    save_run(tmp_path, A, "test", "1_4", "1_8", "2_4")
    save_run(tmp_path, B, "test_1", "2_8", "3_4", "3_8", resumed_from=RunStep(A, Step(2, 4), STARTED[A]))
    from_b = RunStep(B, Step(3, 8), STARTED[B])
    save_run(tmp_path, C, "test_2", "4_4", "4_8", resumed_from=from_b)
    kept = rotate_runs(tmp_path, C, "test_2", keep(2), "4_8", from_b, runs=2)
    assert kept == ["test_1-3_4", "test_1-3_8", "test_2-4_4", "test_2-4_8"]


def test_a_run_that_nothing_was_begun_from_stays(tmp_path):
    """Finished or not, in place or set aside: nobody has said that it is worth less."""
    save_run(tmp_path, A, "test", "1_8", "3_4", aside=True)
    save_run(tmp_path, C, "test_2", "1_4")
    save_run(tmp_path, B, "test_1", "1_8", "2_8", "3_8")
    for floor in ("2_8", "3_8"):
        assert rotate_runs(tmp_path, B, "test_1", keep(2), floor)[:2] == [
            "test-1_8.ckpt.superseded",
            "test-3_4.ckpt.superseded",
        ]
    assert {path.name for path in tmp_path.glob("test_2-*.ckpt")} == {"test_2-1_4.ckpt"}


def test_a_slice_that_links_older_ones_to_the_lineage_stays_as_long_as_they_do(tmp_path):
    """A run whose slices would all go, while a tail that an older one saved waits until training has come as far."""
    save_run(tmp_path, A, "test", "1_8", "2_8", "9_8")
    from_a = RunStep(A, Step(2, 8), STARTED[A])
    save_run(tmp_path, B, "test_1", "3_4", "3_8", resumed_from=from_a)
    from_b = RunStep(B, Step(3, 8), STARTED[B])
    save_run(tmp_path, C, "test_2", "4_8", "5_8", "9_7", "9_8", resumed_from=from_b)
    assert rotate_runs(tmp_path, C, "test_2", keep(2), "9_7", from_b) == [
        "test-9_8",
        "test_1-3_8",
        "test_2-9_7",
        "test_2-9_8",
    ]
    assert rotate_runs(tmp_path, C, "test_2", keep(2), "9_8", from_b) == ["test_2-9_7", "test_2-9_8"]


@pytest.mark.parametrize("what", ["no experiment", "another experiment", "another file", "another rank", "sealed"])
def test_what_the_lineage_does_not_claim_stays(tmp_path, what):
    base = {"no experiment": None, "another experiment": "test_1"}.get(what, "test")
    origin = "sealed by structure" if what == "sealed" else "saved"
    save_run(tmp_path, A, "test", "1_4", "1_8", base=base, origin=origin)
    if what == "another file":  # somebody keeps the best ones under a name of their own
        for step in ("1_4", "1_8"):
            for end in ("", MANIFEST_SUFFIX):
                (tmp_path / f"test-{step}.ckpt{end}").rename(tmp_path / f"best-{step}.ckpt{end}")
    before = there(tmp_path)
    from_a = RunStep(A, Step(1, 8), STARTED[A])
    save_run(tmp_path, B, "test_1", "2_4", "2_8", "3_8", resumed_from=from_a)
    known = earlier(tmp_path, B, "test_1", from_a, rank=1 if what == "another rank" else 0)
    rotate(tmp_path, "test_1", keep(2), Step(3, 8), known)
    assert there(tmp_path) == sorted([*before, "test_1-2_8.ckpt", "test_1-3_8.ckpt"])


def test_what_a_resume_left_behind_of_its_own_run_goes_likewise(tmp_path):
    save_run(tmp_path, A, "test", "1_8", "2_8")
    save_run(tmp_path, A, "test", "3_8", aside=True)
    save_run(tmp_path, B, "test_1", "3_4", resumed_from=RunStep(A, Step(2, 8), STARTED[A]))
    kept = rotate_runs(tmp_path, B, "test_1", keep(2), "3_4", RunStep(A, Step(2, 8), STARTED[A]))
    assert kept == ["test-2_8", "test-3_8.ckpt.superseded", "test_1-3_4"]


def test_two_savers_keep_what_either_keeps(tmp_path):
    save_run(tmp_path, A, "test", "1_8", "2_7", "2_8", "3_1")
    save_run(
        tmp_path, B, "test_1", *(f"3_{step}" for step in range(2, 9)), resumed_from=RunStep(A, Step(3, 1), STARTED[A])
    )
    every = [Step(3, step) for step in range(2, 9)]
    savers = [Keeping(2, set(every), every=1), Keeping(20, {every[-1]}, every=8)]
    kept = rotate_runs(tmp_path, B, "test_1", savers, "3_8", RunStep(A, Step(3, 1), STARTED[A]))
    assert kept == ["test-1_8", "test-2_8", "test_1-3_7", "test_1-3_8"]


def test_a_schedule_that_changed_takes_no_slice_away(tmp_path):
    save_run(tmp_path, A, "test", "1_3", "1_6")
    save_run(tmp_path, B, "test_1", "1_8", resumed_from=RunStep(A, Step(1, 6), STARTED[A]))
    kept = rotate_runs(
        tmp_path, B, "test_1", [Keeping(2, {Step(1, 8)}, every=4)], "1_8", RunStep(A, Step(1, 6), STARTED[A])
    )
    assert kept == ["test-1_6", "test_1-1_8"]


def test_slices_of_nobody_and_of_other_names_stay(tmp_path):
    save_run(tmp_path, A, "other", "1_8")
    save_run(tmp_path, A, "test", "1_4", origin="sealed by structure")
    (tmp_path / "test-1_2.ckpt").write_bytes(b"no manifest")
    save_run(tmp_path, B, "test_1", "1_8", "2_8")
    assert rotate_runs(tmp_path, B, "test_1", keep(2), "2_8") == ["other-1_8", "test-1_4", "test_1-1_8", "test_1-2_8"]
    assert (tmp_path / "test-1_2.ckpt").exists()


@pytest.mark.parametrize(
    ("names", "prefix"),
    [
        ([], "net"),
        (["other-1_1.ckpt", "network-1_1.ckpt", "net.ckpt"], "net"),
        (["net-1_1.ckpt"], "net_1"),
        (["net-1_1.safetensors", "net_4-1_1.ckpt"], "net_5"),
        (["net-1_1.ckpt.superseded", "net_1-1_1.ckpt.2.superseded"], "net_2"),
    ],
)
def test_each_start_has_names_of_its_own(tmp_path, names, prefix):
    for name in names:
        (tmp_path / name).touch()
    assert next_prefix(tmp_path, "net") == prefix


def next_prefix(folder, base):
    held = Held(read_folder(str(folder)), base)
    return prefix_of(base, held.next_start([path.name for path in folder.iterdir()]))


def test_numbers_of_starts_are_those_of_manifests(tmp_path):
    """`resnet_50` and `lr_0.01` are names that a program gave; what lies under the next name is never touched."""
    save_run(tmp_path, A, "resnet_50", "1_8", base="resnet_50")
    assert next_prefix(tmp_path, "resnet") == "resnet"
    save_run(tmp_path, B, "resnet", "1_8", base="resnet")
    assert next_prefix(tmp_path, "resnet") == "resnet_1"
    assert next_prefix(tmp_path, "resnet_50") == "resnet_50_1"
    save_run(tmp_path, C, "resnet_1", "1_8", base="resnet_1")
    assert next_prefix(tmp_path, "resnet") == "resnet_2"
    (tmp_path / f"resnet_2-1_8.ckpt{MANIFEST_SUFFIX}").write_text("of a slice that somebody removed")
    assert next_prefix(tmp_path, "resnet") == "resnet_3"


def test_states_go_with_their_slices(tmp_path):
    save(tmp_path, "test-1_4", "test-1_8")
    for name in ("test-1_4", "test-1_8"):
        (tmp_path / f"{name}.ckpt{STATE_SUFFIX}").write_bytes(b"state")
    rotate(tmp_path, "test", keep(1), Step(1, 8))
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        f"test-1_8.ckpt{end}" for end in ("", MANIFEST_SUFFIX, STATE_SUFFIX)
    ]


def test_what_was_outvoted_stays(tmp_path):
    save(tmp_path, "test-1_4", "test-2_4", "test-3_4")
    outvoted = [f"test-1_4.ckpt{number}.outvoted{end}" for number in ("", ".2") for end in ("", MANIFEST_SUFFIX)]
    for name in outvoted:
        (tmp_path / name).write_bytes(b"{}")
    rotate(tmp_path, "test", keep(1), Step(3, 4))
    assert left_besides(tmp_path, outvoted) == ["test-3_4"]


def left_besides(folder, names):
    """Return the slices that are left, behind a check that these files are."""
    assert {path.name for path in folder.glob("*outvoted*")} == set(names)
    for name in names:
        (folder / name).unlink()
    return left(folder)
