"""The files of a backup that are no objects: its mark, and the index of each step. The layout is in docs/formats.md."""

from __future__ import annotations

import json
import re
from typing import Any

import xxhash

from ms_recover.errors import FormatError, UsageError
from ms_recover.model.backup import BACKUP_VERSION, BackupFile, BackupIndex
from ms_recover.model.manifest import DIGEST
from ms_recover.model.steps import Step
from ms_recover.stores.paths import check_path

INDEXES = "steps"
MOST_INDEX_BYTES = 1 << 28

_FORMAT = "ms_recover.backup"
_DIGEST = re.compile(rf"{DIGEST}:([0-9a-f]{{32}})\Z", re.ASCII)
_MOST_NUMBER = 1 << 63


def object_path(digest: str, size: int) -> str:
    """Return where the bytes of a digest lie in a backup."""
    match = _DIGEST.match(digest)
    if match is None:
        raise ValueError(f"{digest[:100]!r} is no digest of this version")
    return f"objects/{match[1][:2]}/{match[1]}-{size}"


def encode_mark() -> bytes:
    """Return the mark of a backup."""
    return json.dumps({"format": _FORMAT, "version": BACKUP_VERSION}).encode() + b"\n"


def check_mark(data: bytes, where: str) -> None:
    """Check the mark of a backup; a FormatError when it is none of this version."""
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict) or found.get("format") != _FORMAT:
        raise FormatError(f"{where} is not the mark of a backup: name another folder")
    if found.get("version") != BACKUP_VERSION:
        raise FormatError(f"{where}: this version of ms_recover reads backups of version {BACKUP_VERSION} only")


def encode_index(index: BackupIndex) -> bytes:
    """Return an index as it is written."""
    fields = {
        "version": BACKUP_VERSION,
        "step": str(index.step),
        "run_id": index.run_id,
        "world_size": index.world_size,
        "root": index.root,
        "made": index.made,
        "files": [
            {"path": one.path, "digest": one.digest, "bytes": one.size, "mode": one.mode, "mtime_ns": one.mtime_ns}
            for one in index.files
        ],
    }
    return json.dumps(fields, indent=0, ensure_ascii=False).encode("utf-8", "surrogateescape") + b"\n"


def index_path(index: BackupIndex) -> str:
    """Return the path of an index: its step, and a digest of the files, so that equal backups are one."""
    digest = xxhash.xxh3_64(index.run_id.encode("utf-8", "surrogateescape") + b"\0")
    for one in index.files:
        line = f"{one.path}\0{one.digest}\0{one.size}\0{one.mode}\0{one.mtime_ns}\n"
        digest.update(line.encode("utf-8", "surrogateescape"))
    return f"{INDEXES}/{index.step}-{digest.hexdigest()}.json"


def decode_index(data: bytes, where: str) -> BackupIndex:
    """Read an index.

    Raises
    ------
    FormatError
        When it is malformed, or names a path that is none below a root.
    """
    try:
        fields = json.loads(data.decode("utf-8", "surrogateescape"))  # as it is written: names need not be text
        if fields["version"] != BACKUP_VERSION:
            raise ValueError(f"version {fields['version']!r} is not {BACKUP_VERSION}")
        files = tuple(_file(one) for one in fields["files"])
        paths = {one.path for one in files}
        if len(paths) < len(files):
            raise ValueError("a path stands there twice")
        return BackupIndex(
            step=Step.parse(_text(fields["step"])),
            run_id=_text(fields["run_id"]),
            world_size=_number(fields["world_size"]),
            root=_text(fields["root"]),
            made=_number(fields["made"]),
            files=files,
        )
    except (KeyError, TypeError, ValueError, RecursionError, UsageError) as error:
        raise FormatError(f"{where} is not the index of a backup ({type(error).__name__}: {error})") from None


def _file(fields: dict[str, Any]) -> BackupFile:
    path, digest, size = _text(fields["path"]), _text(fields["digest"]), _number(fields["bytes"])
    if not check_path(path):
        raise ValueError("a file has no path")
    object_path(digest, size)
    mode, mtime_ns = _number(fields["mode"]), _number(fields["mtime_ns"])
    return BackupFile(path=path, digest=digest, size=size, mode=mode & 0o777, mtime_ns=mtime_ns)


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise TypeError(f"{value!r:.100} is no text")
    return value


def _number(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not 0 <= value < _MOST_NUMBER:
        raise TypeError(f"{value!r:.100} is no number")
    return value
