"""The tree of a random program: its own slices, and those of another training that lie beside them."""

from __future__ import annotations

import hashlib
import json
import re
from pathlib import Path

from ms_recover.file_names import MANIFEST_SUFFIX, SUPERSEDED_SUFFIX
from tests.support.program_causes import TOUCHED
from tests.support.random_programs import Program

_NOTED = "neighbour.json"


def note_neighbour(root: Path) -> None:
    """Note the files that lie in the tree, all of another training; once."""
    noted = root.parent / _NOTED
    if not noted.exists():
        noted.write_text(json.dumps(_digests(root)))


def add_neighbour(root: Path, before: set[str]) -> None:
    """Note the files that another training has added to those `before`."""
    added = {name: digest for name, digest in _digests(root).items() if name not in before}
    (root.parent / _NOTED).write_text(json.dumps(added))


def names_in(root: Path) -> set[str]:
    """Return the names of all slices, manifests and states in a tree."""
    return set(_digests(root))


def touched_neighbour(root: Path, program: Program) -> str | None:
    """Return what has happened to slices of another training that it did not do itself.

    One of the same prefix may be set aside, but not removed.
    """
    noted = _noted(root)
    left = _digests(root)
    if program.neighbour == "same before":
        kept = set(left.values())
        gone = sorted(name for name, digest in noted.items() if digest not in kept)
    else:
        gone = sorted(name for name, digest in noted.items() if left.get(name) != digest)
    return f"{TOUCHED}: {', '.join(gone[:3])} ({len(gone)} in all)" if gone else None


def own_manifests(root: Path, program: Program) -> list[Path]:
    """Return the manifests of the program's own slices, those of the run that was saved last in front, newest first."""
    noted = _noted(root)
    paths = [path for path in root.glob(f"ckpt_dir0/{program.prefix}*{MANIFEST_SUFFIX}") if path.name not in noted]
    found = [(path.stat().st_mtime_ns, path) for path in paths if _stands(path)]
    return [path for _, path in sorted(found, reverse=True)]


def _stands(manifest: Path) -> bool:
    return SUPERSEDED_SUFFIX not in manifest.name and slice_of(manifest).exists()


def slice_of(manifest: Path) -> Path:
    """Return the slice that a manifest is of."""
    return Path(str(manifest).removesuffix(MANIFEST_SUFFIX))


def committed_step(root: Path, program: Program) -> int:
    """Return the newest step of the whole training that the program has a slice of; 0 for none."""
    return max((_step_of(path, program) for path in own_manifests(root, program)), default=0)


def change_tree(program: Program, root: Path) -> None:
    """Damage the newest slice, where the program says so."""
    manifests = own_manifests(root, program)
    if not manifests or program.change not in ("newest flipped", "newest gone"):
        return
    path = slice_of(manifests[0])
    if program.change == "newest gone":
        path.unlink()
        manifests[0].unlink()
        return
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.chmod(0o600)
    path.write_bytes(data)
    path.chmod(0o400)


def _step_of(manifest: Path, program: Program) -> int:
    epoch, step = map(int, re.findall(r"-(\d+)_(\d+)\.", manifest.name)[-1])
    return (epoch - 1) * program.epoch_steps + step


def _noted(root: Path) -> dict[str, str]:
    path = root.parent / _NOTED
    return json.loads(path.read_text()) if path.exists() else {}


def _digests(root: Path) -> dict[str, str]:
    """Return the digests of all slices, manifests and states by their names."""
    files = [path for path in root.glob("ckpt_dir0/*-*_*") if path.is_file() and not path.name.startswith(".")]
    return {path.name: hashlib.blake2b(path.read_bytes(), digest_size=8).hexdigest() for path in files}
