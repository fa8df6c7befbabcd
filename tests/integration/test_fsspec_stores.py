"""Stores by URL against real servers: sshd, an S3 server, a WebDAV server; and memory."""

import os
import subprocess
import sys
import time

import pytest

from ms_recover.errors import UsageError
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.leftovers import OLD_SECONDS
from ms_recover.testing.store_suite import StoreSuite, StoreWritingSuite, fill
from tests.support.store_fixtures import NUMBERS


class TestSftp(StoreSuite):
    @pytest.fixture
    def store(self, tree, sftp, opened):
        return opened(f"sftp://127.0.0.1:{sftp.port}{tree}")


def check_leftovers(store, folder):
    """What killed writers left goes at the next write there when it is old, and nothing else does."""
    old, young = time.time() - 2 * OLD_SECONDS, time.time() - OLD_SECONDS / 2
    with_age = {
        ".b.bin.0123abcd.ms_recover.tmp": old,
        ".other.bin.89abcdef.ms_recover.tmp": old,
        ".young.bin.89abcdef.ms_recover.tmp": young,
        ".b.bin.ms_recover.tmp": old,
        ".b.bin.0123ABCD.ms_recover.tmp": old,
        ".b.bin.0123abcd.tmp": old,
        "b.bin.0123abcd.ms_recover.tmp": old,
        "mine.bin": old,
    }
    for name, moment in with_age.items():
        (folder / name).write_bytes(b"left")
        os.utime(folder / name, (moment, moment))
    for _ in range(2):
        with store.create("b.bin") as file:
            file.write(b"new")
            file.commit(FileForm(0o600, 5 * 10**9))
    assert sorted(os.listdir(folder)) == sorted(["b.bin", *list(with_age)[2:]])
    assert (folder / "b.bin").read_bytes() == b"new"


class TestSftpWriting(StoreWritingSuite):
    @pytest.fixture
    def store(self, sftp, tmp_path, opened):
        (tmp_path / "target").mkdir()
        return opened(f"sftp://127.0.0.1:{sftp.port}{tmp_path}/target")

    def test_leftovers(self, store, tmp_path):
        check_leftovers(store, tmp_path / "target")

    def test_a_killed_writer_leaves_one_that_is_known(self, store, sftp, tmp_path):
        code = (
            "import os, sys; from ms_recover.stores.urls import open_plain\n"
            "file = open_plain(sys.argv[1]).create('b.bin').__enter__(); file.write(bytes(9 << 20)); file._receive()\n"
            "os.kill(os.getpid(), 9)"
        )
        subprocess.run([sys.executable, "-c", code, store.url], check=False, timeout=60)
        [left] = os.listdir(tmp_path / "target")
        os.utime(tmp_path / "target" / left, (5, 5))
        with store.create("other.bin") as file:
            file.commit()
        assert os.listdir(tmp_path / "target") == ["other.bin"]


class Uploaded:
    """A tree in a store of objects, put there by its own client."""

    keeps_times = keeps_modes = False

    @pytest.fixture
    def store(self, tree, uploading):
        store, self.upload, self.forget = uploading
        for path in sorted(tree.rglob("*")):
            if path.is_file():
                self.upload(str(path.relative_to(tree)), path.read_bytes())
        return store

    def put(self, tree, path, data):
        super().put(tree, path, data)
        self.upload(path, data)

    def take_away(self, tree, path):
        super().take_away(tree, path)
        self.forget(path)


class TestS3(Uploaded, StoreSuite):
    @pytest.fixture
    def uploading(self, s3, bucket, opened):
        return (
            opened(f"s3://{bucket}/some/run 7"),
            lambda path, data: s3.client.put_object(Bucket=bucket, Key=f"some/run 7/{path}", Body=data),
            lambda path: s3.client.delete_object(Bucket=bucket, Key=f"some/run 7/{path}"),
        )


class TestS3Writing(StoreWritingSuite):
    keeps_times = False

    @pytest.fixture
    def store(self, bucket, opened):
        return opened(f"s3://{bucket}")


class TestMemory(Uploaded, StoreSuite):
    @pytest.fixture
    def uploading(self, opened):
        store = opened(f"memory://tree{next(NUMBERS)}")
        return (
            store,
            lambda path, data: store.fs.pipe_file(store.at(path), data),
            lambda path: store.fs.rm(store.at(path)),
        )


class TestMemoryWriting(StoreWritingSuite):
    keeps_times = False

    @pytest.fixture
    def store(self, opened):
        return opened(f"memory://written{next(NUMBERS)}")


MORE = pytest.mark.skipif("MS_RECOVER_EXAMPLES" not in os.environ, reason="only with MS_RECOVER_EXAMPLES")
"""WebDAV goes the way of memory, through fsspec's own interface."""


@MORE
class TestWebdav(StoreSuite):
    keeps_modes = False

    @pytest.fixture
    def tree(self, webdav, tmp_path):
        return fill(webdav.root / tmp_path.name)

    @pytest.fixture
    def store(self, tree, webdav, opened):
        return opened(f"webdav://127.0.0.1:{webdav.port}/{tree.name}")


@MORE
class TestWebdavWriting(StoreWritingSuite):
    keeps_times = False

    @pytest.fixture
    def store(self, webdav, tmp_path, opened):
        (webdav.root / tmp_path.name).mkdir()
        return opened(f"webdav://127.0.0.1:{webdav.port}/{tmp_path.name}")

    def test_leftovers(self, store, webdav, tmp_path):
        check_leftovers(store, webdav.root / tmp_path.name)

    @pytest.mark.parametrize("name", ["a#b.bin", "100%.bin", "a%2Fb.bin"])
    def test_names_stay_as_they_are(self, store, name):
        """Its client and the servers differ in what such names mean: they are refused, never guessed."""
        with pytest.raises(UsageError), store.create(f"folder/{name}") as file:
            file.commit()
