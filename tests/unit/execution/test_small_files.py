import os

import pytest

from ms_recover.errors import FormatError, VerificationError
from ms_recover.execution.destination import LocalDestination
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.execution.small_files import write_document, write_meta, write_rank_list, write_strategy_file
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.resume_records import decode_meta
from ms_recover.model.actions import FileState
from ms_recover.model.plan import DocumentWrite, GroupWrite, MetaWrite, StrategyWrite
from ms_recover.model.steps import Step
from ms_recover.stores.digest import digest_of
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.local_store import LocalStore

NAME = "group_info.pb"
WRITE = GroupWrite(rank=3, target=f"ckpt_dir3/{NAME}", restore_ranks=(1, 3))


@pytest.fixture
def target(tmp_path):
    (tmp_path / "ckpt_dir3").mkdir()
    return tmp_path / WRITE.target


def test_a_planned_list_is_written_once_and_belongs_to_the_owner_of_its_directory(target, tmp_path):
    if os.geteuid() == 0:
        os.chown(target.parent, 65534, 65534)
    assert write_rank_list(LocalDestination(str(tmp_path)), WRITE)
    assert read_group_info(target, owner=3).restore_ranks == (1, 3)
    assert target.stat().st_uid == target.parent.stat().st_uid
    before = target.stat().st_ino
    assert not write_rank_list(LocalDestination(str(tmp_path)), WRITE)
    assert target.stat().st_ino == before


def test_a_damaged_list_that_the_plan_saw_is_replaced(target, tmp_path):
    target.write_bytes(b"\xff damaged")
    assert write_rank_list(LocalDestination(str(tmp_path)), WRITE, damaged=True)
    assert read_group_info(target, owner=3).restore_ranks == (1, 3)


@pytest.mark.parametrize("content", [b"", b"\xff damaged"])
def test_a_file_that_the_plan_did_not_see_is_kept(content, target, tmp_path):
    target.write_bytes(content)
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        write_rank_list(LocalDestination(str(tmp_path)), WRITE)
    assert target.read_bytes() == content


@pytest.mark.parametrize("damaged", [True, False])
def test_a_sound_list_that_appeared_after_the_plan_is_kept(damaged, target, tmp_path):
    write_group_info(target, [2, 3])
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        write_rank_list(LocalDestination(str(tmp_path)), WRITE, damaged=damaged)
    assert read_group_info(target).restore_ranks == (2, 3)


@pytest.mark.parametrize("make", [os.mkfifo, os.mkdir])
def test_what_is_no_regular_file_is_kept(make, target, tmp_path):
    make(target)
    with pytest.raises(VerificationError, match="in the way of one: move it away"):
        write_rank_list(LocalDestination(str(tmp_path)), WRITE, damaged=True)


def test_a_directory_that_is_a_link_out_of_the_tree_gets_no_list(tmp_path):
    (tmp_path / "root").mkdir()
    (tmp_path / "outside").mkdir()
    (tmp_path / "root" / "ckpt_dir3").symlink_to(tmp_path / "outside")
    with pytest.raises(FormatError, match="through a link"):
        write_rank_list(LocalDestination(str(tmp_path / "root")), WRITE)
    assert list((tmp_path / "outside").iterdir()) == []


SLICE, OTHER = "net-1_8.ckpt", "net-1_4.ckpt"
META = MetaWrite(rank=3, target="rank_3/meta.json", file=SLICE, replaces=None, reason="")


@pytest.fixture
def meta(tmp_path):
    (tmp_path / "rank_3").mkdir()
    (tmp_path / "rank_3" / SLICE).touch()
    return tmp_path / META.target


def write_record(root, replaces=None):
    write = MetaWrite(rank=3, target=META.target, file=SLICE, replaces=replaces, reason="")
    return write_meta(LocalDestination(str(root)), write, Step(1, 8))


def test_a_record_names_the_slice_and_is_written_once(meta, tmp_path):
    assert write_record(tmp_path)
    assert decode_meta(meta.read_bytes(), "") == (Step(1, 8), SLICE)
    before = meta.stat().st_ino
    assert not write_record(tmp_path)
    assert meta.stat().st_ino == before


def test_a_record_of_a_slice_that_is_not_there_is_not_written(meta, tmp_path):
    (tmp_path / "rank_3" / SLICE).unlink()
    with pytest.raises(VerificationError, match=f"is to name {SLICE}, which is not there: plan again"):
        write_record(tmp_path)
    assert not meta.exists()


@pytest.mark.parametrize(("replaces", "written"), [(OTHER, True), (None, False), ("net-1_2.ckpt", False)])
def test_only_the_record_that_the_plan_saw_is_replaced(replaces, written, meta, tmp_path):
    there = MetaWrite(rank=3, target=META.target, file=OTHER, replaces=None, reason="")
    (tmp_path / "rank_3" / OTHER).touch()
    assert write_meta(LocalDestination(str(tmp_path)), there, Step(1, 4))
    if written:
        assert write_record(tmp_path, replaces)
    else:
        with pytest.raises(VerificationError, match="changed after the plan was made; nothing was replaced"):
            write_record(tmp_path, replaces)
    assert decode_meta(meta.read_bytes(), "")[1] == (SLICE if written else OTHER)


def test_a_record_that_cannot_be_read_is_replaced(meta, tmp_path):
    meta.write_bytes(b"{cut off")
    assert write_record(tmp_path, OTHER)
    assert decode_meta(meta.read_bytes(), "") == (Step(1, 8), SLICE)


@pytest.fixture
def strategies(tmp_path):
    """A root, and how the strategy file of rank 0 is copied to rank 3 there."""
    for name in ("ckpt_dir0", "ckpt_dir3"):
        (tmp_path / name).mkdir()
    (tmp_path / "ckpt_dir0" / "strategy.ckpt").write_bytes(b"layouts")
    paths = [f"ckpt_dir{rank}/strategy.ckpt" for rank in (3, 0)]

    def write(planned=b"layouts"):
        due = StrategyWrite(rank=3, target=paths[0], source_rank=0, source=paths[1], digest=digest_of(planned))
        return write_strategy_file(LocalDestination(str(tmp_path)), due, LocalStore(str(tmp_path)))

    return write, tmp_path / paths[0]


def test_a_strategy_file_is_copied_once(strategies):
    write, path = strategies
    assert write()
    assert (path.read_bytes(), write()) == (b"layouts", False)


def test_no_other_strategy_file_is_replaced_and_none_is_copied_that_changed(strategies):
    write, path = strategies
    with pytest.raises(VerificationError, match=r"strategy\.ckpt changed after the plan was made: plan again"):
        write(b"others")
    assert not path.exists()
    path.write_bytes(b"of another run")
    with pytest.raises(VerificationError, match="appeared or changed after the plan was made"):
        write()
    assert path.read_bytes() == b"of another run"
    path.unlink()
    path.mkdir()
    with pytest.raises(VerificationError, match=r"appeared or changed after the plan was made|in the way of one"):
        write()


TRACKER = "latest_checkpointed_iteration.txt"


def document(replaces=None):
    return DocumentWrite(target=TRACKER, value=200, replaces=replaces, reason="it is missing")


def test_a_document_is_durable_at_once_and_written_once(tmp_path):
    syncs = DirectorySyncs()
    destination = LocalDestination(str(tmp_path), syncs=syncs)
    assert write_document(destination, document())
    assert syncs.paths == []  # what names the documents before it waits for nothing
    path = tmp_path / TRACKER
    assert path.read_text().strip() == "200"
    before = path.stat().st_ino
    assert not write_document(destination, document())
    assert path.stat().st_ino == before


def test_only_the_document_that_the_plan_saw_is_replaced(tmp_path):
    path = tmp_path / TRACKER
    path.write_text("100")
    with pytest.raises(VerificationError, match="nothing was replaced: plan again"):
        write_document(LocalDestination(str(tmp_path)), document())
    assert path.read_text() == "100"
    status = path.stat()
    assert write_document(LocalDestination(str(tmp_path)), document(FileState(status.st_size, status.st_mtime_ns)))
    assert path.read_text().strip() == "200"
