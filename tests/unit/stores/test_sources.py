"""The URLs behind what people write, and when the token may cross a network."""

import pytest

from ms_recover.cli.options import TLS_VARIABLES as OPTION_VARIABLES
from ms_recover.errors import UsageError
from ms_recover.stores.http_access import TLS_VARIABLES, Access
from ms_recover.stores.http_store import HttpStore
from ms_recover.stores.sources import DEFAULT_PORT, Source, server_url

TOKEN = b"a token of sixteen bytes or more"
FAR = "192.0.2.1"


def test_addresses():
    assert server_url("127.0.0.1:80", Access()) == "http://127.0.0.1:80"
    assert server_url("localhost", Access()) == f"http://localhost:{DEFAULT_PORT}"
    assert server_url("[::1]:9", Access()) == "http://[::1]:9"
    assert server_url(FAR, Access(token=TOKEN)) == f"https://{FAR}:{DEFAULT_PORT}"
    assert server_url(FAR, Access(insecure=True)) == f"http://{FAR}:{DEFAULT_PORT}"
    for text in ("", ":80", "a:b", "a:0", "a:70000", "::1", "a b:1", "a/b:1", "a:1:2"):
        with pytest.raises(UsageError):
            server_url(text, Access(insecure=True))


def test_a_source_is_an_address_a_url_or_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "node2").mkdir()
    given = {"https://node2/x": True, "s3://bucket/run": True, "/mnt/tree": True, "./node2": True}
    assert {text: Source.parse(text, Access()) for text in given} == {
        text: Source(url=text, any_server=any_server) for text, any_server in given.items()
    }
    assert Source.parse("localhost:80", Access()) == Source(url="http://localhost:80", any_server=False)
    paths = {"./node2": "./node2", "localhost": None, "s3://b/c": None}
    assert {text: Source.parse(text, Access()).path for text in paths} == paths
    with pytest.raises(UsageError, match=r"node2 is a folder here: write ./node2, or node2:29610"):
        Source.parse("node2", Access(insecure=True))


def test_off_loopback_a_token_is_needed():
    with pytest.raises(UsageError, match="--token-file"):
        server_url(FAR, Access())


def test_the_token_crosses_no_network_without_tls():
    with pytest.raises(UsageError, match="--insecure"):
        HttpStore(f"http://{FAR}/", Access(token=TOKEN))
    HttpStore(f"http://{FAR}/", Access(token=TOKEN, insecure=True)).close()
    HttpStore("http://127.0.0.1/", Access(token=TOKEN)).close()
    HttpStore(f"https://{FAR}/", Access(token=TOKEN)).close()
    HttpStore(f"http://{FAR}/", Access()).close()


def test_no_url_shows_its_user():
    with HttpStore("http://somebody:hushhush@127.0.0.1:8/a%20b/", Access()) as store:
        assert (store.url, store.host) == ("http://127.0.0.1:8/a%20b", "127.0.0.1:8")
    for url in ("http://", "http://x:y/", "ftp://x/", "http://x/?a=b", "http://somebody:hushhush@:80/"):
        with pytest.raises(UsageError) as caught:
            HttpStore(url, Access())
        assert "hushhush" not in str(caught.value)


def test_the_environment_gives_what_options_do_not(tmp_path):
    token = tmp_path / "token"
    token.write_bytes(TOKEN + b"\n")
    token.chmod(0o600)
    assert Access.from_environment({}) == Access()
    assert Access.from_environment({"MS_RECOVER_TOKEN": TOKEN.decode()}).token == TOKEN
    assert Access.from_environment({"MS_RECOVER_TOKEN_FILE": str(token)}).token == TOKEN
    assert Access.from_environment({"MS_RECOVER_TOKEN": "0123456789abcdef"}, token_file=str(token)).token == TOKEN
    assert Access.from_environment({"MS_RECOVER_INSECURE": "1"}).insecure
    assert not Access.from_environment({"MS_RECOVER_INSECURE": "0"}).insecure
    for environment in (
        {"MS_RECOVER_TOKEN": "short"},
        {"MS_RECOVER_TOKEN": TOKEN.decode(), "MS_RECOVER_TOKEN_FILE": str(token)},
        {"MS_RECOVER_AUTHORITY": str(tmp_path / "none")},
        {"MS_RECOVER_KEY": str(token)},
    ):
        with pytest.raises(UsageError):
            Access.from_environment(environment)
    assert OPTION_VARIABLES == TLS_VARIABLES
    assert TOKEN.decode() not in repr(Access(token=TOKEN))
