"""The trees that MindFormers wrote, file by file, and what of them is lost with some files."""

from __future__ import annotations

import tarfile
from collections.abc import Iterable
from functools import cache
from pathlib import Path

from tests.support.mindformers import DATA, truth

Box = tuple[tuple[int, int], ...]


@cache
def _members(tree: str) -> tuple[tuple[str, bytes], ...]:
    with tarfile.open(DATA / tree / "tree.tar.xz") as archive:
        found = []
        for member in archive:
            file = archive.extractfile(member)
            if file is not None:
                found.append((member.name.partition("/")[2], file.read()))
    return tuple(found)


def unpack(tree: str, root: Path, *iterations: int) -> Path:
    """Write a tree as MindFormers left it, with its modes, or some of its iterations; the tracker names the last."""
    kept = tuple(f"iteration_{number:08d}" for number in iterations or (100, 200))
    root.mkdir(parents=True, exist_ok=True)
    for name, data in _members(tree):
        folder, _, base = name.rpartition("/")
        if folder and folder not in kept:
            continue
        path = root / name
        path.parent.mkdir(mode=0o750, exist_ok=True)
        path.write_bytes(data if folder else str(max(iterations or (200,))).encode())
        path.chmod(0o400 if base.endswith(".safetensors") else 0o640)
    return root


def contents(root: Path) -> dict[str, bytes]:
    """Return the bytes of each file, but for manifests."""
    files = (path for path in sorted(root.rglob("*")) if path.is_file() and not path.name.endswith(".manifest.json"))
    return {str(path.relative_to(root)): path.read_bytes() for path in files}


def of_rank(tree: str, *ranks: int) -> list[str]:
    """Return the names of the files of ranks."""
    return [name for name, file in truth(tree)["files"].items() if file["rank"] in ranks]


def lost_shards(tree: str, gone: Iterable[str]) -> set[tuple[int, str, Box]]:
    """Return what no file holds but those that are gone: rank, parameter and region."""
    known, gone = truth(tree), set(gone)
    left = {shard for name, file in known["files"].items() if name not in gone for shard in file["shards"]}
    lost = set()
    for name in gone:
        file = known["files"][name]
        for shard in file["shards"]:
            if shard not in left:
                one = known["shards"][shard]
                box = tuple((at, at + length) for at, length in zip(one["offset"], one["local_shape"], strict=True))
                lost.add((file["rank"], one["parameter"], box))
    return lost
