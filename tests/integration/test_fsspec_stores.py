"""Stores by URL against real servers: sshd, an S3 server, a WebDAV server; and memory."""

import os

import pytest

from ms_recover.errors import UsageError
from ms_recover.testing.store_suite import StoreSuite, StoreWritingSuite
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.store_fixtures import NUMBERS


class TestSftp(StoreSuite):
    @pytest.fixture
    def store(self, tree, sftp, opened):
        return opened(f"sftp://127.0.0.1:{sftp.port}{tree}")


class TestSftpWriting(StoreWritingSuite):
    @pytest.fixture
    def store(self, sftp, tmp_path, opened):
        (tmp_path / "target").mkdir()
        return opened(f"sftp://127.0.0.1:{sftp.port}{tmp_path}/target")


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
        tree = make_tree(
            webdav.root / tmp_path.name, data_parallel=2, model_parallel=2, parameters={"w": 300_000, "b": 7}
        )
        save_manifests(tree)
        (tree / "empty.bin").write_bytes(b"")
        return tree

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

    @pytest.mark.parametrize("name", ["a#b.bin", "100%.bin", "a%2Fb.bin"])
    def test_names_stay_as_they_are(self, store, name):
        """Its client and the servers differ in what such names mean: they are refused, never guessed."""
        with pytest.raises(UsageError), store.create(f"folder/{name}") as file:
            file.commit()
