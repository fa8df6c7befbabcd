import pytest

from tests.support.store_fixtures import bucket, opened, s3, s3_process, sftp, sftp_server, webdav  # noqa: F401


@pytest.fixture
def watched(monkeypatch, tmp_path):
    """Whatever a splitter starts, opens or makes: nothing of it may be left at the end of the test."""
    from tests.support.splitting import Watched

    watch = Watched(monkeypatch, tmp_path)
    yield watch
    try:
        watch.check()
    finally:
        watch.end()
