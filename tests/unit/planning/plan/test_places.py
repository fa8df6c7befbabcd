"""What keeps the files of a plan from being written where they belong."""

from dataclasses import replace

import pytest

from ms_recover.errors import FormatError, PermissionDeniedError, StorageError, VerificationError
from ms_recover.model.actions import FileState
from ms_recover.model.options import PlanOptions
from ms_recover.model.places import DiskFacts, FolderFacts, Obstacle, Places, TargetFacts
from ms_recover.model.plan import DocumentWrite, GivenUpSlice, GroupWrite, MetaWrite, RankVerdict, StrategyWrite
from ms_recover.planning.plan.places import (
    Target,
    code_of,
    copies_of,
    error_of,
    folder_to_follow,
    judge_places,
    obstacle_of,
    other_folders,
    targets_of,
)
from tests.support.inventories import pairs, slice_file, tree
from tests.support.plans import make_plan

ROOT = "/disk/tree"
NAME = "test-2_8.ckpt"
SEEN = FileState(100, 1)


def target_of(rank, **changes):
    return replace(Target(rank=rank, path=f"ckpt_dir{rank}/{NAME}", suffix=".manifest.json", bytes=8192), **changes)


def places_of(*ranks, folder=None, there=None, disk=None, shared=()):
    """Return the places of ranks: plain directories on one disk, changed by `folder`; `there` lies under each name."""
    folders = {}
    for rank in ranks:
        real = f"{ROOT}/ckpt_dir{rank}"
        folders[f"ckpt_dir{rank}"] = replace(FolderFacts(real=real, base=real, disk=1), **folder or {})
    return Places(
        root="tree",
        real_root=ROOT,
        user="me",
        folders=folders,
        targets={f"ckpt_dir{rank}/{NAME}": there for rank in ranks if there is not None},
        disks={} if disk is None else {1: disk},
        shared=frozenset(shared),
    )


def plan_of(*kept, follow=()):
    plan = make_plan(tree([slice_file(rank) for rank in range(4)], pairs(4)), PlanOptions(quick=True))
    ranks = tuple(RankVerdict(rank, "ok", "keep", "", f"ckpt_dir{rank}/{NAME}") for rank in kept)
    return replace(plan, ranks=ranks, follow=tuple(follow))


def judged(targets, places, plan=None, **how):
    return judge_places(plan or plan_of(), targets, places, **how)


def kinds(found):
    return [(one.rank, one.kind) for one in found.obstacles]


@pytest.mark.parametrize(
    ("folder", "there", "kind", "words"),
    [
        ({"fault": "no folder", "at": "tree/x"}, None, "in the way", "tree/x is no directory"),
        ({"fault": "nowhere", "at": "tree/x"}, None, "device", "leads nowhere"),
        ({"fault": "circle", "at": "tree/x"}, None, "device", "in a circle"),
        ({"fault": "unreadable", "at": "tree/x", "words": "input/output error"}, None, "device", "input/output error"),
        ({"real": "/other/ckpt_dir0"}, None, "elsewhere", "--follow /other"),
        ({"real": f"{ROOT}/ckpt_dir3", "linked": True}, None, "elsewhere", "directory of rank 3"),
        ({"real": f"{ROOT}/{'d' * 256}"}, None, "name", "256 bytes, and the file system takes 255"),
        ({"real": ROOT + "/d" * 2040}, None, "name", "longer than the system takes"),
        ({"writable": False}, None, "denied", "permission denied for user me; check"),
        ({"writable": False, "read_only": True}, None, "denied", "read-only; mount it"),
        ({"writable": False, "base": ROOT}, None, "denied", "where ckpt_dir0 has to be made"),
        ({}, TargetFacts(kind="unknown", words="stale handle"), "device", "stale handle"),
        ({}, TargetFacts(kind="folder"), "in the way", "is no file"),
        ({}, TargetFacts(kind="other"), "in the way", "is no file"),
        ({"sticky": True}, TargetFacts(kind="file", foreign=True), "denied", "another user's"),
        ({}, TargetFacts(blocked_by="a folder is there"), "in the way", "a folder is there"),
    ],
)
def test_what_is_in_the_way_is_named_with_its_kind(folder, there, kind, words):
    found = obstacle_of(target_of(0), places_of(0, folder=folder, there=there))
    assert (found.rank, found.path, found.kind) == (0, f"ckpt_dir0/{NAME}", kind)
    assert words in found.reason


@pytest.mark.parametrize(
    ("folder", "there", "changes"),
    [
        ({}, None, {}),
        ({}, TargetFacts(kind="file"), {}),
        ({}, TargetFacts(kind="file", linked=True), {}),
        ({}, TargetFacts(kind="file", foreign=True), {}),
        ({"sticky": True}, TargetFacts(kind="file"), {}),
        ({"sticky": True}, TargetFacts(foreign=True), {}),
        ({"base": ROOT}, TargetFacts(kind="folder"), {}),
        ({}, TargetFacts(kind="file", blocked_by="a folder"), {"renamed": True}),
        ({"real": f"{ROOT}/{'d' * 255}"}, None, {}),
        ({"real": f"{ROOT}/ckpt_dir0/deeper", "linked": True}, None, {}),
    ],
)
def test_what_can_be_written_has_no_obstacle(folder, there, changes):
    assert obstacle_of(target_of(0, **changes), places_of(0, folder=folder, there=there)) is None


def test_a_document_may_lie_where_a_link_leads_within_the_tree():
    elsewhere = places_of(0, folder={"real": f"{ROOT}/ckpt_dir3"})
    assert obstacle_of(replace(target_of(0), rank=None), elsewhere) is None


def test_a_link_under_the_name_of_a_document_is_not_replaced():
    linked = places_of(0, there=TargetFacts(kind="file", linked=True))
    assert obstacle_of(target_of(0, plain=True), linked).kind == "in the way"


def test_what_is_written_beside_a_slice_needs_room_for_its_name():
    def found(length, disk=None, **changes):
        target = target_of(0, path="ckpt_dir0/" + "n" * length, suffix="+" * 20, **changes)
        return obstacle_of(target, places_of(0, disk=disk))

    longest = next(length for length in range(255, 0, -1) if found(length) is None)
    assert found(longest + 1).kind == "name"
    assert found(235, renamed=True) is None
    assert found(236, renamed=True).kind == "name"
    assert found(longest, DiskFacts(longest_name=143)).kind == "name"
    assert found(longest, DiskFacts()) is None


def test_links_are_followed_where_the_operator_says_so_and_not_into_the_directory_of_another_rank():
    def found(real, follow):
        return obstacle_of(target_of(1), places_of(1, folder={"real": real, "linked": True}), follow)

    assert found("/big/tree/ckpt_dir1", ["/other", "/big/tree"]) is None
    assert found("/big/tree/ckpt_dir1", ["/other"]).kind == "elsewhere"
    assert "directory of rank 2" in found("/big/tree/ckpt_dir2", ["/big/tree"]).reason
    assert found("/big/treetop/ckpt_dir1", ["/big/tree"]).kind == "elsewhere"


@pytest.mark.parametrize(
    ("real", "named"),
    [("/big/ckpt_dir3", "/big"), ("/big/slices", "/big/slices"), ("/rank_3", "/rank_3"), ("/big/rank_0", "/big")],
)
def test_the_directory_to_follow_is_that_of_all_ranks(real, named):
    assert folder_to_follow(real) == named


def test_a_file_that_a_plan_just_made_did_not_see_is_in_the_way():
    there = places_of(0, there=TargetFacts(kind="file", state=SEEN))
    assert kinds(judged([target_of(0)], there, just_made=True)) == [(0, "in the way")]
    assert kinds(judged([target_of(0)], there)) == []
    for changes in ({"replaces": SEEN}, {"any_file": True}, {"renamed": True}):
        assert kinds(judged([target_of(0, **changes)], there, just_made=True)) == []
    assert kinds(judged([target_of(0)], places_of(0, there=TargetFacts(kind="link")), just_made=True)) == []


def test_two_names_of_one_place_are_refused_and_a_place_of_its_own_is_not():
    same = {"real": "/big/all", "base": "/big/all", "linked": True}
    both = judged([target_of(0), target_of(1)], places_of(0, 1, folder=same), plan_of(follow=["/big"]))
    assert kinds(both) == [(1, "elsewhere")]
    assert f"is the same file as ckpt_dir0/{NAME}, of rank 0" in both.obstacles[0].reason
    kept = judged([target_of(1)], places_of(0, 1, folder=same), plan_of(0, follow=["/big"]))
    assert kinds(kept) == [(1, "elsewhere")]
    own = judged([target_of(0), target_of(1)], places_of(0, 1, folder={"linked": True}))
    assert kinds(own) == []


def test_a_directory_cannot_be_made_where_a_file_is_to_be():
    below = replace(target_of(1), path=f"ckpt_dir0/{NAME}/x")
    places = places_of(0)
    deeper = FolderFacts(real=f"{ROOT}/ckpt_dir0/{NAME}", base=f"{ROOT}/ckpt_dir0")
    places = replace(places, folders={**places.folders, f"ckpt_dir0/{NAME}": deeper})
    assert kinds(judged([target_of(0), replace(below, rank=0)], places)) == [(0, "in the way")]


NEED = 8192 + (64 << 10) + 8
"""Bytes that a slice of 8 KiB takes, with its manifest and state."""


@pytest.mark.parametrize(
    ("disk", "full"),
    [
        (None, []),
        (DiskFacts(), []),
        (DiskFacts(free=2 * NEED), []),
        (DiskFacts(free=2 * NEED - 1), [1]),
        (DiskFacts(free=NEED - 1), [0, 1]),
        (DiskFacts(free=2 * NEED, block=1 << 20), [0, 1]),
        (DiskFacts(free=2 * NEED, files=6), []),
        (DiskFacts(free=2 * NEED, files=5), [0, 1]),
    ],
)
def test_slices_without_room_are_named(disk, full):
    found = judged([target_of(0), target_of(1)], places_of(0, 1, disk=disk))
    assert kinds(found) == [(rank, "space") for rank in full]
    assert not found.one_at_a_time


def test_slices_that_give_their_room_back_are_written_one_after_the_other():
    old = TargetFacts(kind="file", state=FileState(8192, 9), freed=NEED)
    places = places_of(0, 1, there=old, disk=DiskFacts(free=NEED))
    replacing = [target_of(rank, replaces=FileState(8192, 9)) for rank in (0, 1)]
    found = judged(replacing, places)
    assert (kinds(found), found.one_at_a_time) == ([], True)
    kept = judged([replace(one, kept=True) for one in replacing], places)
    assert kinds(kept) == [(1, "space")]


def test_what_was_written_before_or_shares_its_blocks_takes_no_room():
    written = TargetFacts(kind="file", state=FileState(8192, 9))
    full = DiskFacts(free=0)
    assert kinds(judged([target_of(0)], places_of(0, there=written, disk=full))) == []
    assert kinds(judged([target_of(0, bytes=8191)], places_of(0, there=written, disk=full))) == [(0, "space")]
    beside = DiskFacts(free=NEED - 8192)
    shared = places_of(0, disk=beside, shared=[f"ckpt_dir0/{NAME}"])
    assert kinds(judged([target_of(0)], shared)) == []
    assert kinds(judged([target_of(0)], places_of(0, disk=beside))) == [(0, "space")]
    assert kinds(judged([target_of(0, bytes=0)], places_of(0, disk=full))) == []


def test_what_is_not_tried_after_a_failure_gives_no_code():
    plan = make_plan(tree([slice_file(rank) for rank in range(1, 4)], pairs(4)), PlanOptions(quick=True))
    target, rank_list = plan.actions[0].target, "ckpt_dir0/group_info.pb"
    newer = GivenUpSlice(rank=3, path="newer.ckpt", state=None, reason="")
    document = DocumentWrite(target="meta.json", value=2, replaces=None, reason="")
    plan = replace(plan, set_aside=(newer,), documents=(document,))
    on = {
        path: Obstacle(rank=rank, path=path, kind=kind, reason="")
        for rank, path, kind in (
            (0, target, "elsewhere"),
            (0, rank_list, "in the way"),
            (3, "newer.ckpt", "denied"),
            (None, "meta.json", "in the way"),
        )
    }
    others = [rank_list, "newer.ckpt", "meta.json"]
    assert code_of(replace(plan, obstacles=tuple(on.values()))) == FormatError.exit_code
    assert code_of(replace(plan, obstacles=tuple(on[one] for one in others))) == VerificationError.exit_code
    assert code_of(replace(plan, obstacles=tuple(on[one] for one in others[1:]))) == PermissionDeniedError.exit_code
    assert code_of(replace(plan, obstacles=(on["meta.json"],))) == VerificationError.exit_code


def test_the_gravest_obstacle_gives_the_code_and_each_its_error():
    lost = judged([target_of(0)], places_of(0, folder={"writable": False})).obstacles
    full = judged([target_of(1)], places_of(1, disk=DiskFacts(free=0))).obstacles
    assert isinstance(error_of(lost[0]), PermissionDeniedError)
    assert isinstance(error_of(full[0]), StorageError)
    assert code_of(plan_of()) == 0
    both = replace(plan_of(), obstacles=(*lost, *full))
    assert code_of(both) == max(PermissionDeniedError.exit_code, StorageError.exit_code)
    away = obstacle_of(target_of(0), places_of(0, folder={"real": "/x"}))
    shut = obstacle_of(target_of(0), places_of(0, there=TargetFacts(kind="folder")))
    assert isinstance(error_of(away), FormatError)
    assert isinstance(error_of(shut), VerificationError)


def test_the_targets_of_a_plan_are_its_slices_and_what_lies_beside_them():
    lists = {rank: members for rank, members in pairs(4).items() if rank != 3}
    plan = make_plan(tree([slice_file(rank) for rank in range(3)], lists), PlanOptions(quick=True, world_size=4))
    found = {(one.path, one.any_file, one.bytes) for one in targets_of(plan)}
    assert found == {(f"ckpt_dir3/{NAME}", False, 100), ("ckpt_dir3/group_info.pb", True, 0)}


def test_only_what_is_tried_gives_the_code():
    """A slice that is given up is not renamed where something else fails, so that what keeps it gives no code."""
    mild, grave = sorted((FormatError, VerificationError, StorageError), key=lambda error: error.exit_code)[::2]
    kinds_of = {FormatError: "elsewhere", VerificationError: "in the way", StorageError: "space"}
    newer = GivenUpSlice(rank=3, path="newer.ckpt", state=None, reason="")
    document = DocumentWrite(target="meta.json", value=2, replaces=None, reason="")
    plan = replace(plan_of(), set_aside=(newer,), documents=(document,))
    for kept in (0, 3):
        failing = Obstacle(rank=kept, path="rank_list", kind=kinds_of[mild], reason="")
        aside = Obstacle(rank=3, path="newer.ckpt", kind=kinds_of[grave], reason="")
        assert code_of(replace(plan, obstacles=(failing, aside))) == mild.exit_code
    first = Obstacle(rank=None, path="meta.json", kind=kinds_of[grave], reason="")
    given_up = Obstacle(rank=3, path="newer.ckpt", kind=kinds_of[mild], reason="")
    assert code_of(replace(plan, obstacles=(given_up, first))) == mild.exit_code


def test_each_file_of_a_plan_says_what_may_lie_under_its_name():
    newer = GivenUpSlice(rank=3, path="ckpt_dir3/newer.ckpt", state=SEEN, reason="")
    document = DocumentWrite(target="meta.json", value=2, replaces=SEEN, reason="")
    record = MetaWrite(rank=1, target="ckpt_dir1/meta.json", file=NAME, replaces=None, reason="")
    strategy = StrategyWrite(2, "ckpt_dir2/strategy.ckpt", 0, "ckpt_dir0/strategy.ckpt", "s")
    lists = GroupWrite(0, "ckpt_dir0/group_info.pb", (0, 2))
    plan = replace(plan_of(), set_aside=(newer,), documents=(document,))
    plan = replace(plan, meta_files=(record,), strategy_files=(strategy,), group_files=(lists,))
    assert targets_of(plan) == [
        Target(rank=0, path="ckpt_dir0/group_info.pb", any_file=True),
        Target(rank=1, path="ckpt_dir1/meta.json", any_file=True),
        Target(rank=2, path="ckpt_dir2/strategy.ckpt", any_file=True),
        Target(rank=3, path="ckpt_dir3/newer.ckpt", suffix=".superseded.manifest.json", renamed=True),
        Target(rank=None, path="meta.json", replaces=SEEN, plain=True),
    ]


def test_copies_and_folders_are_those_of_the_slices():
    plan = make_plan(tree([slice_file(rank) for rank in range(1, 4)], pairs(4)), PlanOptions(quick=True))
    assert copies_of(plan) == [(f"ckpt_dir2/{NAME}", f"ckpt_dir0/{NAME}")]
    assert other_folders(plan) == {f"ckpt_dir{rank}" for rank in range(4)}


def test_a_document_of_the_root_is_not_written_where_a_link_leads_out():
    root = FolderFacts(real="/other", base="/other", disk=1)
    places = replace(places_of(), folders={"": root})
    found = obstacle_of(Target(rank=None, path="latest.txt"), places)
    assert found.reason.startswith(". leads out of tree through a link, to /other")
    inside = replace(root, real=ROOT, base=ROOT)
    assert obstacle_of(Target(rank=None, path="latest.txt"), replace(places, folders={"": inside})) is None


def test_a_path_may_be_as_long_as_the_system_takes():
    def found(length):
        real = (ROOT + "/d" * 2048)[: length - 1 - len(NAME)]
        real = real[:-1] + "d" if real.endswith("/") else real
        return obstacle_of(target_of(0, suffix="", renamed=True), places_of(0, folder={"real": real}))

    assert found(4095) is None
    assert found(4096).kind == "name"


def test_a_slice_that_is_set_aside_when_it_is_replaced_stays():
    plan = make_plan(tree([slice_file(rank) for rank in range(1, 4)], pairs(4)), PlanOptions(quick=True))
    (action,) = plan.actions
    for aside in (None, f"ckpt_dir0/{NAME}.outvoted"):
        (target,) = targets_of(replace(plan, actions=(replace(action, set_aside=aside),), group_files=()))
        assert (target.rank, target.kept, target.bytes) == (0, aside is not None, 100)


@pytest.mark.parametrize(("count", "words"), [(1, "1 slice is to be written"), (2, "2 slices are to be written")])
def test_the_reason_counts_the_slices_that_find_no_room(count, words):
    found = judged([target_of(rank) for rank in range(count)], places_of(*range(count), disk=DiskFacts(free=0)))
    assert words in found.obstacles[0].reason
