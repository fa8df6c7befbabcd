"""The tree of a random job of several ranks: what lies in it, and how one rank loses something."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

from ms_recover.file_names import MANIFEST_SUFFIX, STATE_SUFFIX, SUPERSEDED_SUFFIX
from ms_recover.formats.manifest import read_manifest


def manifests_of(root: Path, rank: int) -> list[Path]:
    """Return the manifests of a rank's slices, newest step first."""
    found = []
    for path in root.glob(f"ckpt_dir{rank}/*{MANIFEST_SUFFIX}"):
        if SUPERSEDED_SUFFIX not in path.name and slice_of(path).exists():
            manifest = read_manifest(path)
            found.append((manifest.cumulative_step or 0, path.stat().st_mtime_ns, path))
    return [path for _, _, path in sorted(found, reverse=True)]


def committed(root: Path, ranks: int) -> list[int]:
    """Return the newest step of each rank, counted from the first; 0 for none."""
    newest = [manifests_of(root, rank)[:1] for rank in range(ranks)]
    return [(read_manifest(paths[0]).cumulative_step or 0) if paths else 0 for paths in newest]


def steps_with_states(root: Path, rank: int, *, states: bool) -> list[int]:
    """Return the steps of which a rank has a slice with its manifest, and its state where there are `states`."""
    found = [one for one in manifests_of(root, rank) if not states or _state_of(one).exists()]
    return [read_manifest(one).cumulative_step or 0 for one in found]


def slice_of(manifest: Path) -> Path:
    """Return the slice that a manifest is of."""
    return Path(str(manifest).removesuffix(MANIFEST_SUFFIX))


def newest_run(root: Path, rank: int) -> str:
    """Return the run of the newest slice of a rank, or of rank 0; empty for none."""
    found = manifests_of(root, rank) or manifests_of(root, 0)
    return read_manifest(found[0]).run_id or "" if found else ""


def newest_file(root: Path, rank: int) -> str:
    """Return the newest slice of a rank, or of any."""
    found = manifests_of(root, rank) or [one for other in range(8) for one in manifests_of(root, other)]
    return str(slice_of(found[0])) if found else f"{root}/ckpt_dir{rank}/none-1_1.ckpt"


def copy_folder(root: Path, rank: int, to: Path) -> None:
    """Keep a copy of a rank's folder."""
    if (root / f"ckpt_dir{rank}").exists():
        shutil.copytree(root / f"ckpt_dir{rank}", to, dirs_exist_ok=True)


def lose(root: Path, what: str, rank: int, instead: Path) -> bool:
    """Take from a rank what it loses; `instead` is the folder that lies there then; return whether it had that."""
    folder, found = root / f"ckpt_dir{rank}", manifests_of(root, rank)
    if what == "none":
        return True
    if what == "folder":
        shutil.rmtree(folder, ignore_errors=True)
    elif what == "other experiment" or (what == "older copy" and instead.exists()):
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(instead, folder)
    elif not found or (what in ("two steps", "older copy") and len(found) < 2):
        return False
    elif what in ("newest", "two steps", "older copy"):
        gone = {"newest": found[:1], "two steps": found[:2], "older copy": found[:-1]}[what]
        for path in gone:
            _remove(slice_of(path), path, _state_of(path))
    elif what in ("flipped", "flipped state"):
        return _flip(slice_of(found[0]) if what == "flipped" else _state_of(found[0]))
    else:
        _remove({"slice": slice_of(found[0]), "state": _state_of(found[0]), "manifest": found[0]}[what])
    return True


def _state_of(manifest: Path) -> Path:
    return Path(f"{slice_of(manifest)}{STATE_SUFFIX}")


def _remove(*paths: Path) -> None:
    for path in paths:
        path.unlink(missing_ok=True)


def _flip(path: Path) -> bool:
    """Change one bit in the middle, and nothing else."""
    if not path.exists():
        return False
    status = path.stat()
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(status.st_mode & 0o777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))
    return True
