"""Stores by URL against real servers: sshd, an S3 server, a WebDAV server; and memory."""

import os
from itertools import count

import pytest

boto3 = pytest.importorskip("boto3")
pytest.importorskip("asyncssh")

from ms_recover.errors import UsageError  # noqa: E402
from ms_recover.stores.urls import open_store  # noqa: E402
from ms_recover.testing.store_suite import StoreSuite, StoreWritingSuite  # noqa: E402
from ms_recover.testing.trees import make_tree, save_manifests  # noqa: E402
from tests.support.servers import S3_ENVIRONMENT, s3_server, sshd, webdav_server  # noqa: E402

NUMBERS = count()


@pytest.fixture(scope="module")
def sftp(tmp_path_factory):
    """Run sshd for the tests of this file."""
    with sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def ssh_home(sftp, monkeypatch):
    """Use the key and the host keys of the tests."""
    monkeypatch.setenv("HOME", str(sftp.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)


@pytest.fixture(scope="module")
def s3(tmp_path_factory):
    """Run an S3 server for the tests of this file."""
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        yield server


@pytest.fixture
def bucket(s3, monkeypatch):
    """Make a bucket of the test."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3.url)
    name = f"bucket-{next(NUMBERS)}"
    client = boto3.client("s3")
    client.create_bucket(Bucket=name)
    yield name
    client.close()


@pytest.fixture(scope="module")
def webdav(tmp_path_factory):
    """Run a WebDAV server for the tests of this file."""
    with webdav_server(tmp_path_factory.mktemp("dav")) as server:
        yield server


@pytest.fixture
def opened():
    """Open stores, and close them at the end."""
    stores = []

    def open_it(url):
        stores.append(open_store(url))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()


@pytest.mark.usefixtures("ssh_home")
class TestSftp(StoreSuite):
    @pytest.fixture
    def store(self, tree, sftp, opened):
        return opened(f"sftp://127.0.0.1:{sftp.port}{tree}")


@pytest.mark.usefixtures("ssh_home")
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
    def uploading(self, bucket, opened):
        client = boto3.client("s3")
        yield (
            opened(f"s3://{bucket}/some/run 7"),
            lambda path, data: client.put_object(Bucket=bucket, Key=f"some/run 7/{path}", Body=data),
            lambda path: client.delete_object(Bucket=bucket, Key=f"some/run 7/{path}"),
        )
        client.close()


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
