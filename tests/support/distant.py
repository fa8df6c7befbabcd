"""A tree that is reached as a distant one is: without inodes and links, and with requests that are counted."""

import threading

from ms_recover.errors import VerificationError
from ms_recover.stores.atomic import FileForm
from ms_recover.stores.distant_file import DistantFile
from ms_recover.stores.local_store import LocalStore
from ms_recover.stores.store import Entry, FileInfo, Store


class CountedFile(DistantFile):
    def __init__(self, store, path, expected):
        found = store.local.stat(path)
        super().__init__(f"{store.url}/{path}", found.size)
        self.store, self.path, self.expected = store, path, expected or found.state
        if found.state != self.expected:
            raise VerificationError(f"{self.name} is not what the plan saw: plan again")

    def read_range(self, start, end, take, stop):
        self.store.asked("read", self.path, end - start)
        with self.store.local.open(self.path) as opened:
            opened.read_range(start, end, take, stop)

    def check_unchanged(self):
        self.store.asked("stat", self.path)
        if self.store.local.stat(self.path).state != self.expected:
            raise VerificationError(f"{self.name} changed")

    def form(self):
        return FileForm(0o644, self.expected.mtime_ns)


class DistantStore(Store):
    """A folder as ``distant://tree``; `fails` maps paths to errors, `lists` folders to entries instead of their own."""

    def __init__(self, folder, *, fails=(), lists=(), infos=True):
        super().__init__("distant://tree")
        self.local, self.fails, self.lists, self.infos = LocalStore(str(folder)), dict(fails), dict(lists), infos
        self.requests, self.bytes, self._lock = [], 0, threading.Lock()

    def asked(self, act, path, count=0):
        with self._lock:
            self.requests.append((act, path))
            self.bytes += count
        if path in self.fails:
            raise self.fails[path]

    def of(self, act):
        return [path for one, path in self.requests if one == act]

    def list(self, folder):
        self.asked("list", folder)
        if folder in self.lists:
            return self.lists[folder]
        return [Entry(entry.name, entry.kind, self._info(folder, entry)) for entry in self.local.list(folder)]

    def _info(self, folder, entry):
        if entry.kind != "file" or not self.infos:
            return None
        return self._without_inode(self.local.stat(f"{folder}/{entry.name}" if folder else entry.name))

    def stat(self, path):
        self.asked("stat", path)
        return self._without_inode(self.local.stat(path))

    def open(self, path, expected=None):
        self.asked("open", path)
        return CountedFile(self, path, expected)

    @staticmethod
    def _without_inode(info):
        return FileInfo(size=info.size, mtime_ns=info.mtime_ns)
