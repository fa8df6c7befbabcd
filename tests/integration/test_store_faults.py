"""``apply --from URL`` through a proxy with faults, for each store: the right bytes, or an error and nothing at all."""

import os
import time

import pytest

from ms_recover.stores.network_store import NetworkStore
from ms_recover.testing.trees import make_tree, save_manifests
from tests.support.command_line import in_this_process
from tests.support.fault_proxy import FaultProxy, reply
from tests.support.serving import Nginx, leftovers, serving, split

NAME = "test-1_8.ckpt"
SLICE = f"ckpt_dir1/{NAME}"
MORE = "MS_RECOVER_EXAMPLES" in os.environ
MOMENTS = 8 if MORE else 1


class Source:
    """The tree of another node behind a proxy; `rename` and `replace` change its slice there."""

    speaks_http = True
    notices = 0.0
    """Seconds until the server sees a file that came back."""

    def __init__(self, there):
        self.slice = there / SLICE

    def rename(self):
        self.slice.rename(self.slice.with_name("other.bin"))

    def restore(self, data):
        self.slice.unlink(missing_ok=True)
        self.slice.write_bytes(data)
        os.utime(self.slice, ns=self.times)

    def replace(self):
        """Other bytes under the same name, of the same size and time."""
        data, found = bytearray(self.slice.read_bytes()), self.slice.stat()
        data[len(data) // 2] ^= 1
        self.slice.unlink()
        self.slice.write_bytes(data)
        os.utime(self.slice, ns=(found.st_atime_ns, found.st_mtime_ns))


class OnS3(Source):
    def __init__(self, there, client, bucket):
        super().__init__(there)
        self.client, self.bucket = client, bucket
        for path in sorted(there.rglob("*")):
            if path.is_file():
                client.put_object(Bucket=bucket, Key=str(path.relative_to(there)), Body=path.read_bytes())

    def rename(self):
        self.client.delete_object(Bucket=self.bucket, Key=SLICE)

    def restore(self, data):
        self.client.put_object(Bucket=self.bucket, Key=SLICE, Body=data)

    def replace(self):
        data = bytearray(self.slice.read_bytes())
        data[len(data) // 2] ^= 1
        self.client.put_object(Bucket=self.bucket, Key=SLICE, Body=bytes(data))


@pytest.fixture
def nodes(tmp_path):
    whole = make_tree(tmp_path / "whole", data_parallel=2, model_parallel=1, parameters={"w": 400_000})
    save_manifests(whole)
    here, there = split(whole, tmp_path, here=(), there=(1,))
    return here, there, (whole / "ckpt_dir1" / NAME).read_bytes()


@pytest.fixture
def proxies():
    made = []
    yield lambda port: made.append(FaultProxy(port)) or made[-1]
    for one in made:
        one.close()


@pytest.fixture(params=["serve", "nginx", "s3", "sftp"])
def source(request, nodes, proxies, tmp_path, monkeypatch):
    """Return the source, its proxy and its URL through the proxy."""
    there = nodes[1]
    monkeypatch.setattr(NetworkStore, "time_limit", 1.0)
    monkeypatch.setattr(NetworkStore, "patience", 1.0)
    if request.param == "serve":
        with serving(there) as [server]:
            proxy = proxies(server.port)
            found = Source(there)
            found.notices = 0.3
            yield found, proxy, f"http://{proxy.address}"
    elif request.param == "nginx":
        with Nginx(there, tmp_path / "nginx") as server:
            proxy = proxies(server.port)
            yield Source(there), proxy, f"http://{proxy.address}"
    elif request.param == "s3":
        s3, bucket = request.getfixturevalue("s3"), request.getfixturevalue("bucket")
        proxy = proxies(s3.port)
        monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{proxy.address}")
        yield OnS3(there, s3.client, bucket), proxy, f"s3://{bucket}"
    else:
        sftp = request.getfixturevalue("sftp")
        proxy = proxies(sftp.port)
        with (sftp.home / ".ssh" / "known_hosts").open("a") as known:
            known.write(f"[127.0.0.1]:{proxy.port} {sftp.key}")
        found = Source(there)
        found.speaks_http = False
        yield found, proxy, f"sftp://127.0.0.1:{proxy.port}{there}"


class Trial:
    """Applies with faults: what has the final name afterwards is right, and an error comes in bounded time."""

    def __init__(self, nodes, url):
        self.here, _, self.right = nodes
        self.url, self.codes = url, []
        self.target = self.here / "ckpt_dir0" / NAME

    def apply(self, fault, ends=(0, 1, 3, 4, 5)):
        begun = time.monotonic()
        done = in_this_process("apply", self.here, "--world-size", "2", "--from", self.url, "--timeout", "2")
        assert time.monotonic() - begun < 60, fault
        assert done.code in ends, (fault, done.code, done.out, done.err)
        assert "Traceback" not in done.err, (fault, done.err)
        assert not leftovers(self.here), fault
        if self.target.exists():
            assert self.target.read_bytes() == self.right, fault
            self.target.unlink()
            self.target.with_name(f"{NAME}.manifest.json").unlink(missing_ok=True)
        else:
            assert done.code != 0, fault
        self.codes.append(done.code)


@pytest.fixture
def trial(nodes, source):
    store, found = source[0], (nodes[1] / SLICE).stat()
    store.times = (found.st_atime_ns, found.st_mtime_ns)
    return Trial(nodes, source[2])


def test_no_fault_gives_a_wrong_slice(source, trial):
    store, proxy, _ = source
    before = proxy.count
    trial.apply("none", [0])
    length = proxy.count - before
    assert length > len(trial.right)

    proxy.break_every = len(trial.right) // 5  # the connection breaks at every chunk
    trial.apply("breaks", [0])
    proxy.break_every, proxy.delay = None, 0.002
    trial.apply("slow", [0])
    proxy.delay = 0.0

    for number in range(MOMENTS):
        at = int((number + 0.5) / MOMENTS * length)
        proxy.break_at = {proxy.count + at}
        trial.apply(f"a break at {at}", [0])
        proxy.break_at, proxy.corrupt_at = set(), {proxy.count + at}
        trial.apply(f"a wrong bit at {at}")
        proxy.corrupt_at = set()
        for act in (store.rename, store.replace):
            proxy.after, proxy.call = proxy.count + at, act
            trial.apply(f"{act.__name__} at {at}")
            proxy.after = None
            store.restore(trial.right)
            time.sleep(store.notices)
    assert set(trial.codes) != {0}

    if isinstance(store, OnS3) or not store.speaks_http:  # test_remote has servers over HTTP that freeze
        proxy.delay = 100
        trial.apply("frozen", [1])
        proxy.delay = 0.0
        proxy.cut()
    trial.apply("none at the end", [0])


@pytest.mark.skipif(not MORE, reason="only with MS_RECOVER_EXAMPLES: the stores' own tests have each answer")
def test_no_answer_gives_a_wrong_slice(source, trial, proxies):
    store, proxy, _ = source
    if not store.speaks_http:
        return  # it has no statuses and no redirects, and its lists end with a message
    elsewhere = proxies(proxy.target)
    place = {"Location": f"http://{elsewhere.address}/x"}
    for status, headers in ((403, {}), (404, {}), (500, {}), (301, place), (302, place), (307, place)):
        for part in (f"{NAME} ".encode(), b""):  # for the slice, and for everything
            answer = reply(status, b"no", **headers)
            proxy.answer = lambda head, part=part, answer=answer: answer if part in head.split(b"\r\n")[0] else None
            trial.apply(f"{status} for {part!r}", (1, 3, 4, 5))
    proxy.answer = None
    assert elsewhere.connections == 0

    shortened = []

    def shorter(request, head):
        line = request.split(b"\r\n")[0]
        if not (b"list-type=2" in line or b"/ HTTP" in line or b"v1/inventory" in line):
            return head
        shortened.append(b" 200 " in head.split(b"\r\n")[0] and cut(head) != head)
        return cut(head)

    proxy.rewrite = shorter
    trial.apply("lists that are cut", (0, 1, 3))
    assert trial.codes[-1] in ((1, 3) if any(shortened) else (0,))  # nginx sends lists in chunks, without a length
    proxy.rewrite = None
    trial.apply("none at the end", [0])


def cut(head):
    """Return a head whose length is half of what it was."""
    lines = head.split(b"\r\n")
    for index, line in enumerate(lines):
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            lines[index] = b"Content-Length: %d" % (int(value) // 2)
    return b"\r\n".join(lines)
