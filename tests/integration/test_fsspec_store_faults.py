"""What breaks between a store and its server: never a wrong byte, and an error that says what to do."""

import os
import threading
import time

import pytest

from ms_recover.errors import (
    MissingInputError,
    PermissionDeniedError,
    StorageError,
    UsageError,
    VerificationError,
)
from ms_recover.stores.store import never
from tests.support.fault_proxy import FaultProxy, reply
from tests.support.ports import free_port
from tests.support.store_fixtures import NUMBERS

DATA = os.urandom(1 << 20) * 9
OTHER = bytes(reversed(DATA))
SECRETS = ("test-key", "test-secret-of-the-suite", "pass-of-the-url")


def read(opened_file, start=0, end=None):
    data = bytearray()
    opened_file.read_range(start, opened_file.size if end is None else end, data.extend, never)
    return bytes(data)


def refusal(kind, act, *arguments):
    """Return the one line of an error, which holds no secret."""
    with pytest.raises(kind) as found:
        act(*arguments)
    assert found.type is kind
    text = str(found.value)
    assert "\n" not in text
    assert not any(secret in text for secret in SECRETS)
    return text


@pytest.fixture
def proxy():
    """Make proxies, and close them at the end."""
    proxies = []

    def make(target, **faults):
        proxies.append(FaultProxy(target, **faults))
        return proxies[-1]

    yield make
    for one in proxies:
        one.close()


@pytest.fixture
def objects(s3, bucket):
    """Return a client of the server that put one object into the bucket, ``run/a.bin``."""
    s3.client.put_object(Bucket=bucket, Key="run/a.bin", Body=DATA)
    return s3.client


@pytest.fixture
def through(proxy, s3, bucket, objects, opened, monkeypatch):
    """Open the store of the bucket through a proxy with faults."""

    def make(**faults):
        one = proxy(s3.port, **faults)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{one.address}")
        store = opened(f"s3://{bucket}/run")
        store.first_patience, store.patience = 0.5, 20
        return one, store

    return make


@pytest.fixture
def files(sftp, tmp_path, proxy, opened):
    """Open a folder with one file, ``a.bin``, through a proxy with faults."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "a.bin").write_bytes(DATA)

    def make(**faults):
        one = proxy(sftp.port, **faults)
        with (sftp.home / ".ssh" / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{one.port} {sftp.key}")
        store = opened(f"sftp://root:pass-of-the-url@127.0.0.1:{one.port}{tmp_path}/run")
        store.first_patience, store.patience = 2, 20
        return one, store

    return make


class TestS3:
    def test_a_read_goes_on_where_the_connection_broke(self, through):
        _, store = through(break_at=[400, 100_000, 5_000_000, 5_000_001, 9_000_000])
        with store.open("a.bin") as file:
            assert read(file) == DATA
            file.check_unchanged()

    def test_a_server_that_is_killed_in_the_middle_and_started_again(self, through, s3, objects, bucket):
        def restart():
            one.target = free_port()  # it keeps objects in memory: nobody sees it without
            s3.kill()
            s3.start()
            objects.create_bucket(Bucket=bucket)
            objects.put_object(Bucket=bucket, Key="run/a.bin", Body=DATA)
            one.target = s3.port

        thread = threading.Thread(target=restart)
        one, store = through(after=3_000_000, call=thread.start)
        try:
            with store.open("a.bin") as file:
                assert read(file) == DATA
        finally:
            thread.join()

    def test_an_object_that_was_replaced_is_never_read_as_the_old_one(self, through, objects, bucket):
        _, store = through()
        before = store.stat("a.bin")
        objects.put_object(Bucket=bucket, Key="run/a.bin", Body=OTHER)  # of the same size, in the same second
        assert "plan again" in refusal(VerificationError, store.open, "a.bin", before.state)

    def test_an_object_that_is_replaced_while_it_is_read_is_an_error(self, through, objects, bucket):
        _, store = through()
        with store.open("a.bin") as file:
            assert read(file, 0, 5 << 20) == DATA[: 5 << 20]
            objects.put_object(Bucket=bucket, Key="run/a.bin", Body=OTHER)
            assert "plan again" in refusal(VerificationError, read, file, 5 << 20)
            assert "plan again" in refusal(VerificationError, file.check_unchanged)

    def test_an_object_that_vanished_is_missing(self, through, objects, bucket):
        _, store = through()
        with store.open("a.bin") as file:
            objects.delete_object(Bucket=bucket, Key="run/a.bin")
            assert "a.bin" in refusal(MissingInputError, read, file)
        assert "check the URL" in refusal(MissingInputError, store.stat, "a.bin")

    @pytest.mark.parametrize(
        ("status", "kind", "words"),
        [
            (403, PermissionDeniedError, "check the credentials"),
            (404, MissingInputError, "there is no such"),
            (500, StorageError, "repeat the command"),
            (503, StorageError, "repeat the command"),
            (301, StorageError, "check endpoint and region"),
            (307, StorageError, "check endpoint and region"),
        ],
    )
    def test_an_answer_without_bytes_is_the_error_it_means(self, through, proxy, s3, status, kind, words):
        elsewhere = proxy(s3.port)
        answer = reply(status, Location=f"http://{elsewhere.address}/stolen")
        one, store = through(answer=lambda head: answer)
        store.patience = 0.5
        for act in (store.stat, store.open, store.list):
            assert words in refusal(kind, act, "a.bin")
        one.answer = None
        with store.open("a.bin") as file:
            one.answer = lambda head: answer
            assert words in refusal(kind, read, file)
        assert elsewhere.connections == 0
        assert len(one.requests) < 40  # botocore would ask for the bucket's region without end

    def test_errors_that_pass_are_overcome(self, through):
        left = [reply(500), reply(503), b"", reply(429)]
        _, store = through(answer=lambda head: left.pop() if left and head.startswith(b"GET") else None)
        with store.open("a.bin") as file:
            assert read(file) == DATA
        assert not left

    def test_a_slow_server_is_waited_for_and_one_that_never_answers_is_not(self, through):
        one, store = through(delay=0.01)
        with store.open("a.bin") as file:
            assert read(file, 0, 1 << 20) == DATA[: 1 << 20]
        one.delay, store.time_limit, store.patience = 100, 0.5, 0.5
        assert "no answer within 0.5 s" in refusal(StorageError, store.stat, "a.bin")

    def test_a_server_that_ignores_ranges_is_refused(self, through):
        def whole(request, head):
            return b"\r\n".join(line for line in head.split(b"\r\n") if not line.lower().startswith(b"content-range"))

        _, store = through(rewrite=whole)
        with store.open("a.bin") as file:
            assert "range" in refusal(VerificationError, read, file, 0, 1000)

    def test_a_list_that_ends_early_is_an_error(self, through, bucket):
        start = b'<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated>'
        one, store = through()
        one.answer = lambda head: reply(200, start + b"</ListBucketResult>", Content_Type="application/xml")
        assert "ends early" in refusal(StorageError, store.list, "")
        one.answer = lambda head: reply(200, start, Content_Type="application/xml")
        store.patience = 0.5
        refusal(StorageError, store.list, "")

    def test_a_long_list_is_whole(self, through, objects, bucket):
        for number in range(7):
            objects.put_object(Bucket=bucket, Key=f"run/many/{number}", Body=b"")
        _, store = through()
        whole = store._page
        asked = []

        async def short(prefix, token):
            asked.append(token)
            more = {} if token is None else {"ContinuationToken": token}
            return await store.ask("list_objects_v2", Prefix=prefix, Delimiter="/", MaxKeys=3, **more)

        store._page = short
        assert [one.name for one in store.list("many")] == [str(number) for number in range(7)]
        assert len(asked) == 3
        store._page = whole
        assert len(store.list("many")) == 7

    def test_writing_goes_on_where_the_connection_broke(self, through):
        one, store = through(break_at=[300, 900, 1500])
        with store.create("b.bin") as file:
            for start in range(0, 3 * len(DATA), 1 << 20):
                file.write((DATA * 3)[start : start + (1 << 20)])
            file.commit()
        with store.open("b.bin") as written:
            assert read(written) == DATA * 3
        assert not one.break_at

    def test_a_write_that_fails_leaves_no_name_and_no_parts(self, through, objects, bucket):
        one, store = through()
        store.patience = 0.3
        with store.create("b.bin") as file:
            file.write(DATA * 3)
            one.break_every = 100
            one.cut()
            refusal(StorageError, file.commit)
            one.break_every = None
        assert [entry.name for entry in store.list("")] == ["a.bin"]
        assert "Uploads" not in objects.list_multipart_uploads(Bucket=bucket)

    def test_a_bucket_that_is_not_there_is_missing(self, through, opened):
        through()
        assert "no-such-bucket" in refusal(MissingInputError, opened("s3://no-such-bucket/run").list, "")

    def test_without_credentials_the_variables_are_named(self, through, opened, bucket, monkeypatch):
        through()
        for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
            monkeypatch.delenv(name)
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        assert "AWS_ACCESS_KEY_ID" in refusal(UsageError, opened(f"s3://{bucket}").list, "")

    def test_keys_in_a_url_are_refused_and_not_shown(self, opened):
        assert "s3://bucket/x" in refusal(UsageError, opened, "s3://test-key:test-secret-of-the-suite@bucket/x")

    def test_a_server_that_is_not_there_is_given_up_soon(self, opened, bucket, monkeypatch):
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{free_port()}")
        began = time.monotonic()
        assert "check that the server runs" in refusal(StorageError, opened(f"s3://{bucket}").list, "")
        assert time.monotonic() - began < 10


class TestSftp:
    def test_a_read_goes_on_where_the_connection_broke(self, files):
        _, store = files(break_at=[100, 3000, 100_000, 5_000_000, 9_000_000])
        with store.open("a.bin") as file:
            assert read(file) == DATA
            file.check_unchanged()

    def test_a_server_that_is_killed_in_the_middle_and_started_again(self, files, sftp):
        def restart():
            sftp.kill()
            time.sleep(0.5)
            sftp.start()

        thread = threading.Thread(target=restart)
        _, store = files(after=3_000_000, call=thread.start)
        try:
            with store.open("a.bin") as file:
                assert read(file) == DATA
        finally:
            thread.join()

    def test_an_open_file_stays_the_one_that_was_opened(self, files, tmp_path):
        _, store = files()
        with store.open("a.bin") as file:
            (tmp_path / "run" / "new").write_bytes(OTHER)
            os.utime(tmp_path / "run" / "new", (5, 5))
            (tmp_path / "run" / "new").rename(tmp_path / "run" / "a.bin")
            assert read(file) == DATA
            assert "plan again" in refusal(VerificationError, file.check_unchanged)

    def test_after_a_break_another_file_of_that_name_is_refused(self, files, tmp_path):
        one, store = files()
        with store.open("a.bin") as file:
            assert read(file, 0, 1000) == DATA[:1000]
            (tmp_path / "run" / "a.bin").write_bytes(OTHER)
            os.utime(tmp_path / "run" / "a.bin", (5, 5))
            one.cut()
            assert "plan again" in refusal(VerificationError, read, file)

    def test_a_file_that_got_shorter_is_an_error(self, files, tmp_path):
        _, store = files()
        with store.open("a.bin") as file:
            os.truncate(tmp_path / "run" / "a.bin", 5_000_000)
            assert "plan again" in refusal(VerificationError, read, file)

    def test_what_the_server_refuses_is_named(self, files, tmp_path):
        _, store = files()
        assert "a.bin" in refusal(MissingInputError, store.list, "a.bin")
        assert "none" in refusal(MissingInputError, store.list, "none")
        os.mkfifo(tmp_path / "run" / "pipe")
        (tmp_path / "run" / "link").symlink_to("nowhere")
        kinds = {entry.name: entry.kind for entry in store.list("")}
        assert kinds == {"a.bin": "file", "pipe": "other", "link": "link"}
        refusal(MissingInputError, store.stat, "link")

    def test_an_unknown_host_is_refused_and_never_added(self, files, sftp, opened, proxy):
        known = sftp.home / ".ssh" / "known_hosts"
        before, other = known.read_text(), proxy(sftp.port)
        text = refusal(StorageError, opened(f"sftp://127.0.0.1:{other.port}/").list, "")
        assert "known_hosts" in text
        assert "fingerprint" in text
        assert known.read_text() == before

    @pytest.mark.parametrize(
        ("config", "cipher"),
        [("", "aes128-gcm@openssh.com"), ("Host other\nCiphers aes192-ctr", "aes128-gcm@openssh.com")]
        + [("Ciphers aes192-ctr", "aes192-ctr"), ("Host 127.*\nCiphers aes192-ctr", "aes192-ctr")],
    )
    def test_the_cipher_is_a_quick_one_unless_others_are_configured(self, files, sftp, config, cipher):
        _, store = files()
        (sftp.home / ".ssh" / "config").write_text(config)
        try:
            store.list("")
            assert store._session.connection.get_extra_info("send_cipher") == cipher
        finally:
            (sftp.home / ".ssh" / "config").unlink()

    def test_a_host_with_another_key_is_refused(self, files, sftp, opened, proxy):
        other = proxy(sftp.port)
        known = sftp.home / ".ssh" / "known_hosts"
        with known.open("a") as file:
            file.write(f"[127.0.0.1]:{other.port} {(sftp.home / '.ssh' / 'id_ed25519.pub').read_text()}")
        refusal(StorageError, opened(f"sftp://127.0.0.1:{other.port}/").list, "")

    def test_a_key_that_is_not_accepted_is_permission_denied(self, files, sftp, opened):
        files()
        store = opened(f"sftp://nobody-of-here:pass-of-the-url@127.0.0.1:{sftp.port}/")
        assert "nobody-of-here@" in refusal(PermissionDeniedError, store.list, "")

    def test_writing_goes_on_where_the_connection_broke(self, files, tmp_path):
        one, store = files()
        with store.create("deep/b.bin") as file:
            for start in range(0, 3 * len(DATA), 1 << 20):
                file.write((DATA * 3)[start : start + (1 << 20)])
                if start in (5 << 20, 11 << 20, 24 << 20):
                    one.cut()
            file.commit()
        assert (tmp_path / "run" / "deep" / "b.bin").read_bytes() == DATA * 3
        assert os.listdir(tmp_path / "run" / "deep") == ["b.bin"]

    def test_a_write_that_cannot_be_ended_leaves_the_old_file(self, files, sftp, tmp_path):
        _, store = files()
        store.patience = 0.3
        try:
            with pytest.raises(StorageError), store.create("a.bin") as file:
                file.write(OTHER)
                sftp.kill()
                file.commit()
        finally:
            sftp.start()
        assert (tmp_path / "run" / "a.bin").read_bytes() == DATA

    def test_a_server_that_is_not_there_is_given_up_soon(self, opened, sftp):
        began = time.monotonic()
        assert "check that the server runs" in refusal(
            StorageError, opened(f"sftp://127.0.0.1:{free_port()}/").list, ""
        )
        assert time.monotonic() - began < 10


class TestMemory:
    def test_a_file_that_is_replaced_while_it_is_read_is_an_error(self, opened):
        store = opened(f"memory://faults{next(NUMBERS)}")
        store.fs.pipe_file(store.at("a.bin"), DATA)
        taken = []

        def take(data):
            if not taken:
                store.fs.pipe_file(store.at("a.bin"), OTHER)
            taken.append(bytes(data))

        with store.open("a.bin") as file, pytest.raises(VerificationError, match="plan again"):
            file.read_range(0, file.size, take, never)

    def test_a_scheme_that_nothing_knows_is_named(self, opened):
        assert "docs/stores.md" in refusal(UsageError, opened, "strange://u:pass-of-the-url@h/x")
