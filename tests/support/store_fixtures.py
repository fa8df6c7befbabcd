"""Fixtures of stores on real servers, each started once a session."""

from itertools import count

import pytest

from tests.support.servers import S3_ENVIRONMENT, s3_server, sshd, webdav_server

NUMBERS = count()


@pytest.fixture(scope="session")
def sftp_server(tmp_path_factory):
    """Run sshd."""
    pytest.importorskip("asyncssh")
    with sshd(tmp_path_factory.mktemp("sshd")) as server:
        yield server


@pytest.fixture
def sftp(sftp_server, monkeypatch):
    """Return the server, with its key and the keys of hosts in this user's home."""
    monkeypatch.setenv("HOME", str(sftp_server.home))
    monkeypatch.delenv("SSH_AUTH_SOCK", raising=False)
    return sftp_server


@pytest.fixture(scope="session")
def s3_process(tmp_path_factory):
    """Run an S3 server, with a client of its own maker."""
    boto3 = pytest.importorskip("boto3")
    with s3_server(tmp_path_factory.mktemp("s3")) as server:
        server.client = boto3.client(
            "s3",
            endpoint_url=server.url,
            aws_access_key_id="a",
            aws_secret_access_key="b",
            region_name="us-east-1",
        )
        yield server
        server.client.close()


@pytest.fixture
def s3(s3_process, monkeypatch):
    """Return the server, as the one that the environment names."""
    for name, value in S3_ENVIRONMENT.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_ENDPOINT_URL", s3_process.url)
    return s3_process


@pytest.fixture
def bucket(s3):
    """Make a bucket of the test."""
    name = f"bucket-{next(NUMBERS)}"
    s3.client.create_bucket(Bucket=name)
    return name


@pytest.fixture(scope="session")
def webdav(tmp_path_factory):
    """Run a WebDAV server."""
    with webdav_server(tmp_path_factory.mktemp("dav")) as server:
        yield server


@pytest.fixture
def opened():
    """Open stores, and close them at the end."""
    from ms_recover.stores.urls import open_plain

    stores = []

    def open_it(url):
        stores.append(open_plain(url))
        return stores[-1]

    yield open_it
    for store in stores:
        store.close()
