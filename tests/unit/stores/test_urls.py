import sys

import pytest

from ms_recover.errors import UsageError
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.url_parts import UrlParts
from ms_recover.stores.urls import is_url, open_plain, open_store, shown_url


@pytest.mark.parametrize(
    "url", ["http://host/x", "https://h:1", "s3://bucket/run", "sftp://u@h/p", "file:///x", "memory://x"]
)
def test_a_scheme_makes_a_url(url):
    assert is_url(url)


@pytest.mark.parametrize(
    "path", ["/a", "a/b", "./http://x", "http:/x", "c:/x", "x://y", "", "a b://c", "://x", "/s3://x"]
)
def test_other_roots_are_paths(path):
    assert not is_url(path)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("sftp://alice:secret@host:22/ckpt", "sftp://alice@host:22/ckpt"),
        ("sftp://alice@host/ckpt", "sftp://alice@host/ckpt"),
        ("https://token@host/ckpt", "https://host/ckpt"),
        ("https://user:p%40ss@host:8/ckpt?sig=secret#secret", "https://host:8/ckpt"),
        ("s3://key:secret@bucket/run7", "s3://bucket/run7"),
        ("s3://bucket/run#7?x", "s3://bucket/run#7?x"),
        ("memory://x/y", "memory://x/y"),
    ],
)
def test_secrets_in_a_url_are_not_shown(url, shown):
    assert shown_url(url) == shown


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("webdav://bob@host/x/", "webdav://host/x"),
        ("webdavs://bob:secret@host:8/x", "webdavs://host:8/x"),
        ("sftp://bob:secret@host/x", "sftp://bob@host/x"),
        ("abfs://container@account.dfs.core.windows.net/x", "abfs://container@account.dfs.core.windows.net/x"),
    ],
)
def test_a_user_is_shown_where_it_is_part_of_the_place(url, shown):
    assert UrlParts.of(url).shown == shown == shown_url(url).rstrip("/")


def test_a_password_in_the_clear_is_refused_without_the_user(recover_ckpt):
    pytest.importorskip("webdav4")
    refused = recover_ckpt("scan", "webdav://bob:secret@192.0.2.1/x")
    assert refused.code == 2
    assert "webdav://192.0.2.1/x" in refused.err
    assert "bob" not in refused.err
    assert "secret" not in refused.err


def test_a_path_is_a_local_tree_by_its_real_path(tmp_path, monkeypatch):
    (tmp_path / "tree").mkdir()
    (tmp_path / "link").symlink_to("tree")
    monkeypatch.chdir(tmp_path)
    for root in ("link", tmp_path / "link", f"file://{tmp_path}/link", f"file://localhost{tmp_path}/link"):
        store = open_store(root)
        assert isinstance(store, LocalStore)
        assert store.url == str(tmp_path / "tree")


def test_a_folder_that_is_named_like_a_url_can_be_given(tmp_path, monkeypatch):
    (tmp_path / "http:" / "x").mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert open_store("./http://x").url == str(tmp_path / "http:" / "x")


def test_escapes_in_a_file_url_are_read(tmp_path):
    assert open_store(f"file://{tmp_path}/a%20b").url == f"{tmp_path}/a b"


@pytest.mark.parametrize("url", ["file://otherhost/x", "file://"])
def test_a_file_of_another_host_is_refused(url):
    with pytest.raises(UsageError, match="another host"):
        open_store(url)


def test_the_disks_of_nodes_take_an_engine():
    with pytest.raises(UsageError, match="--engine"):
        open_store("node://*/data/ckpt")


def test_a_missing_package_is_named_with_its_extra_and_without_secrets(monkeypatch):
    monkeypatch.setitem(sys.modules, "asyncssh", None)
    monkeypatch.delitem(sys.modules, "ms_recover.stores.sftp_store", raising=False)
    with pytest.raises(UsageError, match=r"pip install '\.\[remote\]'") as found:
        open_store("sftp://alice:secret@host/ckpt")
    assert "secret" not in str(found.value)


def test_a_url_that_was_shown_opens_the_same_store_again(monkeypatch):
    from types import SimpleNamespace

    opened = []
    module = SimpleNamespace(SftpStore=lambda url: opened.append(url) or SimpleNamespace(url=shown_url(url)))
    monkeypatch.setitem(sys.modules, "ms_recover.stores.sftp_store", module)
    open_plain(open_plain("sftp://alice:pass7@again/ckpt").url)
    assert opened == ["sftp://alice:pass7@again/ckpt"] * 2
