"""Which store a root is: a local path, or a URL whose scheme says it."""

from __future__ import annotations

import os
import re
from importlib import import_module
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit, urlunsplit

from ms_recover.errors import UsageError, install_extra
from ms_recover.file_names import BACKUP_MARK
from ms_recover.stores.url_parts import WITH_USER

if TYPE_CHECKING:
    from ms_recover.stores.store import Store

_URL = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://", re.ASCII)
_OF_INDEX = re.compile(r"(.+)/(steps/[^/]+\.json)\Z", re.DOTALL)
_HTTP = ("http", "https")
_STORES = {
    **dict.fromkeys(_HTTP, ("http_store", "HttpStore")),
    **dict.fromkeys(("s3", "s3a"), ("s3_store", "S3Store")),
    **dict.fromkeys(("sftp", "ssh"), ("sftp_store", "SftpStore")),
}
"""Modules and classes; fsspec itself opens every other scheme."""

_SAME = {"s3a": "s3", "ssh": "sftp"}
"""Schemes of one kind of store."""

_given: dict[str, str] = {}
"""URLs with secrets that this process was given, by what is shown of them."""


def is_url(root: str | os.PathLike[str]) -> bool:
    """Whether a root is a URL; a local folder that is named like one can be given as ``./http:...``."""
    return _URL.match(os.fspath(root)) is not None


def shown_url(url: str) -> str:
    """Return a URL without the secrets in it: passwords, users that may be tokens, and queries of web servers."""
    parts = urlsplit(url)
    userinfo, at, host = parts.netloc.rpartition("@")
    user = userinfo.partition(":")[0] + at if parts.scheme in WITH_USER and userinfo else ""
    if parts.scheme in _HTTP:
        parts = parts._replace(query="", fragment="")
    return urlunsplit(parts._replace(netloc=user + host)) if at or parts.scheme in _HTTP else url


def place_of(root: str | os.PathLike[str]) -> str:
    """Return where a path or URL leads, to compare it with others: links are followed, secrets left out.

    Raises
    ------
    UsageError
        When it is a ``file://`` of another host.
    """
    text = os.fspath(root)
    match = _URL.match(text)
    if match is None:
        return os.path.realpath(text)
    scheme = match[1].lower()
    if scheme == "file":
        return os.path.realpath(_local_path(text))
    return f"{_SAME.get(scheme, scheme)}://{shown_url(text).partition('://')[2].rstrip('/')}"


def open_store(root: str | os.PathLike[str]) -> Store:
    """Open the store of a tree; that of a backup is the tree that was copied, and only read.

    The path of an index in a backup, ``BACKUP/steps/NAME.json``, is that tree with the step of this index.

    Raises
    ------
    FormatError
        When it is a backup that is damaged.
    MissingInputError
        When there is no such index.
    MsRecoverError
        As `open_plain`.
    """
    match = _OF_INDEX.match(os.fspath(root))
    if match is not None:
        above = open_plain(match[1])
        found = _as_backup(above, match[2])
        if found is not None:
            return found
        above.close()
    store = open_plain(root)
    return _as_backup(store) or store


def _as_backup(store: Store, first: str | None = None) -> Store | None:
    """Return the tree of a backup, with the step of one index; None for what is none. It is closed by an error."""
    try:
        if not store.near or os.path.lexists(os.path.join(store.url, BACKUP_MARK)):
            from ms_recover.stores.backup_store import BackupStore, is_backup

            if is_backup(store):
                return BackupStore(store, first)
    except BaseException:
        store.close()
        raise
    return None


def root_of_run(root: str | os.PathLike[str], run_id: str) -> str:
    """Return the root of the tree that shows a run: of a backup in which two runs saved one step another than itself.

    Errors are those of `open_store`.
    """
    from ms_recover.stores.backup_store import BackupStore

    with open_store(root) as store:
        return store.root_of(run_id) if isinstance(store, BackupStore) else os.fspath(root)


def open_plain(root: str | os.PathLike[str]) -> Store:
    """Open what lies at a path or URL as it is: a local store for a path or ``file://``, otherwise by the scheme.

    Passwords in a URL count for this process: the URL that the store shows opens the same store again.

    Raises
    ------
    UsageError
        When the URL is invalid, nothing opens such URLs, or a package that it takes is not installed.
    MsRecoverError
        When the store cannot be reached.
    """
    text = os.fspath(root)
    match = _URL.match(text)
    scheme = match[1].lower() if match is not None else "file"
    if scheme == "file":
        from ms_recover.stores.local_store import LocalStore

        return LocalStore(os.path.realpath(_local_path(text) if match is not None else text))
    shown = shown_url(text)
    if scheme == "node":
        raise UsageError(f"{shown}: the disks of nodes are reached by their workers: add --engine dask://HOST:PORT")
    if shown != text:
        _given[shown] = text
    module, name = _STORES.get(scheme, ("fsspec_store", "FsspecStore"))
    try:
        store: Store = getattr(import_module(f"ms_recover.stores.{module}"), name)(_given.get(text, text))
    except ImportError as error:
        raise UsageError(
            f"{shown}: {scheme}:// takes a package that is not installed ({error.name or error}): "
            + install_extra("remote")
        ) from None
    return store


def _local_path(url: str) -> str:
    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path:
        raise UsageError(f"{url} names a file of another host: write file:///path")
    return unquote(parts.path)
