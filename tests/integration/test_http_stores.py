"""The suite of stores on real web servers: recover-ckpt serve and nginx, over HTTP and HTTPS."""

import time

import pytest

from ms_recover.stores.http_access import Access
from ms_recover.stores.http_store import HttpStore
from ms_recover.testing.store_suite import StoreSuite, fill
from tests.support.serving import Nginx, make_certificates, serving

TOKEN = b"a token of sixteen bytes or more"


@pytest.fixture(scope="module")
def certificates(tmp_path_factory):
    return make_certificates(tmp_path_factory.mktemp("certificates"))


class OneServer(StoreSuite):
    """The suite with one server for all tests of a class: the tree is filled anew for each."""

    @pytest.fixture(scope="class")
    @classmethod
    def served(cls, tmp_path_factory):
        return fill(tmp_path_factory.mktemp("served") / "tree")

    @pytest.fixture
    def tree(self, served, url):
        for path in sorted(served.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        fill(served)
        return served

    @pytest.fixture
    def store(self, tree, url, access):
        with HttpStore(url, access, timeout=5) as store:
            yield store

    @pytest.fixture(scope="class")
    @classmethod
    def access(cls):
        return Access()


class OurServer(OneServer):
    @pytest.fixture
    def store(self, tree, url, access):
        with HttpStore(url, access, timeout=5) as store:
            assert store.inventory()  # it does not scan all the time, and here it has a new tree
            yield store

    def put(self, tree, path, data):
        time.sleep(0.3)
        super().put(tree, path, data)


class TestServeOverHttp(OurServer):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, served):
        with serving(served) as [server]:
            yield server.url


class TestServeOverHttps(OurServer):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, served, certificates, tmp_path_factory):
        token = tmp_path_factory.mktemp("token") / "token"
        token.write_bytes(TOKEN)
        token.chmod(0o600)
        files = ["--certificate", certificates / "named.pem", "--key", certificates / "named.key"]
        with serving(served, options=[*files, "--token-file", token]) as [server]:
            assert server.url.startswith("https://")
            yield server.url

    @pytest.fixture(scope="class")
    @classmethod
    def access(cls, certificates):
        return Access(token=TOKEN, authority=str(certificates / "ours.ca"))


class Exported(OneServer):
    keeps_modes = False


class TestNginx(Exported):
    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, served, tmp_path_factory):
        with Nginx(served, tmp_path_factory.mktemp("nginx") / "nginx") as server:
            yield server.url


class TestNginxOverHttps(Exported):
    """With listings in JSON."""

    @pytest.fixture(scope="class")
    @classmethod
    def url(cls, served, certificates, tmp_path_factory):
        files = certificates / "named.pem", certificates / "named.key"
        folder = tmp_path_factory.mktemp("nginx") / "nginx"
        with Nginx(served, folder, certificate=files, as_json=True) as server:
            yield server.url

    @pytest.fixture(scope="class")
    @classmethod
    def access(cls, certificates):
        return Access(authority=str(certificates / "ours.ca"))
