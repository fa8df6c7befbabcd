"""What may be the matter with the place of a slice that is to be written, each with the truth of it.

A circumstance strikes the directory of a rank whose slice is lost, or the target in it. It says whether anything keeps
the slice from being written there, and how that is mended.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from ms_recover.file_names import MANIFEST_SUFFIX, temporary_name
from ms_recover.testing.trees import make_tree, save_manifests

RANKS = 8
LISTS = "the rank lists contradict each other"
"""What a plan of such a tree ends with, before it looks at places: one list is found in two directories."""
HALF = RANKS // 2
STEP_NAME = "-1_8.ckpt"


@dataclass(frozen=True)
class Scene:
    """A tree on which circumstances act, and the disk beside it to which links may lead."""

    root: Path
    disk: Path
    prefix: str = "test"
    kind: str = "ckpt_dir"

    @classmethod
    def make(cls, top: Path, *, manifests: bool, prefix: str = "test") -> Scene:
        root, disk = top / "tree", top / "disk"
        make_tree(root, data_parallel=2, model_parallel=HALF, name=prefix + "-{step}.ckpt")
        if manifests:
            save_manifests(root)
        disk.mkdir()
        return cls(root, disk, prefix)

    def folder(self, rank: int) -> Path:
        return self.root / f"{self.kind}{rank}"

    def slice(self, rank: int) -> Path:
        return self.folder(rank) / f"{self.prefix}{STEP_NAME}"

    def lose(self, rank: int) -> None:
        """Lose the slice of a rank, and its manifest."""
        self.slice(rank).unlink()
        for path in self.folder(rank).glob(f"*{MANIFEST_SUFFIX}"):
            path.unlink()


@dataclass(frozen=True)
class Circumstance:
    """Something that is the matter with a rank's place.

    Attributes
    ----------
    strike : callable
        Takes the scene and the rank, whose slice is lost.
    mend : callable or None
        Makes it possible to write; None where it is possible all along.
    words : str
        In the reason that the plan gives.
    options : callable
        The options that make it possible instead of `mend`, where it takes some.
    """

    strike: Callable[[Scene, int], object]
    mend: Callable[[Scene, int], object] | None = None
    words: str = ""
    options: Callable[[Scene, int], tuple[object, ...]] = lambda scene, rank: ()


def _nothing(scene: Scene, rank: int) -> None:
    pass


def _replace_folder(scene: Scene, rank: int, to: Path | str) -> None:
    shutil.rmtree(scene.folder(rank))
    scene.folder(rank).symlink_to(to)


def _out(scene: Scene, rank: int) -> None:
    (scene.disk / f"{scene.kind}{rank}").mkdir()
    _replace_folder(scene, rank, scene.disk / f"{scene.kind}{rank}")


def _inside(scene: Scene, rank: int) -> None:
    there = scene.root / "disk" / f"{scene.kind}{rank}"
    there.mkdir(parents=True)
    _replace_folder(scene, rank, there)


def _of_another_rank(scene: Scene, rank: int) -> None:
    _replace_folder(scene, rank, scene.folder((rank + 1) % HALF))


def _out_of_another_rank(scene: Scene, rank: int) -> None:
    other = scene.disk / f"{scene.kind}{rank + 1}"
    other.mkdir(exist_ok=True)
    _replace_folder(scene, rank, other)


def _file(scene: Scene, rank: int) -> None:
    shutil.rmtree(scene.folder(rank))
    scene.folder(rank).write_text("not a directory")


def _own_folder(scene: Scene, rank: int) -> None:
    scene.folder(rank).unlink()
    scene.folder(rank).mkdir()


def _at_target(make: Callable[[Path], object]) -> Callable[[Scene, int], None]:
    def strike(scene: Scene, rank: int) -> None:
        make(scene.slice(rank))

    return strike


def _remove_target(scene: Scene, rank: int) -> None:
    path = scene.slice(rank)
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink()


def _socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as one:
        here = os.open(path.parent, os.O_RDONLY)
        try:
            one.bind(f"/proc/self/fd/{here}/{path.name}")  # whose own path may be too long
        finally:
            os.close(here)


def _unfinished(path: Path) -> None:
    path.with_name(temporary_name(path.name)).mkdir()


def _remove_unfinished(scene: Scene, rank: int) -> None:
    path = scene.slice(rank)
    path.with_name(temporary_name(path.name)).rmdir()


def _no_folder(scene: Scene, rank: int) -> None:
    shutil.rmtree(scene.folder(rank))


def _list_is(make: Callable[[Path], object]) -> Callable[[Scene, int], None]:
    def strike(scene: Scene, rank: int) -> None:
        path = scene.folder(rank) / "group_info.pb"
        path.unlink()
        make(path)

    return strike


def _remove_list(scene: Scene, rank: int) -> None:
    (scene.folder(rank) / "group_info.pb").rmdir()


CIRCUMSTANCES = {
    "nothing": Circumstance(_nothing),
    "no directory": Circumstance(_no_folder),
    "a link out of the root": Circumstance(_out, None, "leads out of", lambda scene, rank: ("--follow", scene.disk)),
    "a link within the root": Circumstance(_inside),
    "a link to another rank's directory": Circumstance(_of_another_rank, _own_folder, "through a link"),
    "a link to another rank's directory out of the root": Circumstance(
        _out_of_another_rank, _own_folder, "through a link"
    ),
    "a file": Circumstance(_file, _own_folder, "is no directory"),
    "a link that leads in a circle": Circumstance(
        lambda scene, rank: _replace_folder(scene, rank, scene.folder(rank).name), _own_folder, "in a circle"
    ),
    "a link that leads nowhere": Circumstance(
        lambda scene, rank: _replace_folder(scene, rank, "nowhere"), _own_folder, "leads nowhere"
    ),
    "a directory under the slice's name": Circumstance(
        _at_target(Path.mkdir), _remove_target, "is no file, and in the way"
    ),
    "a pipe under the slice's name": Circumstance(_at_target(os.mkfifo), _remove_target, "is no file, and in the way"),
    "a socket under the slice's name": Circumstance(_at_target(_socket), _remove_target, "is no file, and in the way"),
    "a dangling link under the slice's name": Circumstance(_at_target(lambda path: path.symlink_to("nowhere"))),
    "a looping link under the slice's name": Circumstance(_at_target(lambda path: path.symlink_to(path.name))),
    "a directory under the temporary name": Circumstance(
        _at_target(_unfinished), _remove_unfinished, "in the way of a temporary file"
    ),
    "a directory under the rank list's name": Circumstance(
        _list_is(Path.mkdir), _remove_list, "is no file, and in the way"
    ),
    "a dangling link under the rank list's name": Circumstance(_list_is(lambda path: path.symlink_to("nowhere"))),
    "a rank list of noise": Circumstance(_list_is(lambda path: path.write_bytes(b"\xff" * 9))),
}
