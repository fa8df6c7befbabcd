"""Whether each file of a plan can be written where it belongs: the one place that decides it (pure).

A plan is judged by it when it is made, and again when it is applied. Each target whose place is another one than its
name says, in which something lies that may not be replaced, or for which there is no room, has an obstacle that names
the cause and the next step. Nothing else keeps a plan from being applied as long as the tree stays as it is.
"""

from __future__ import annotations

import posixpath
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from ms_recover.errors import FormatError, MsRecoverError, PermissionDeniedError, StorageError, VerificationError
from ms_recover.file_names import MANIFEST_SUFFIX, SUPERSEDED_SUFFIX, rank_in_folder, ranks_in_folders, temporary_name
from ms_recover.model.actions import CopyAction, FileState
from ms_recover.model.places import DiskFacts, FolderFacts, Obstacle, ObstacleKind, Places
from ms_recover.model.plan import Action, Plan, waves_of

_LONGEST_PATH = 4095
_SHOWN = 24
"""Characters of a long name."""
_SPARE_BYTES = 64 << 10
"""Room beside a slice: its manifest and its state."""
_SPARE_FILES = 3

_ERRORS: dict[ObstacleKind, type[MsRecoverError]] = {
    "elsewhere": FormatError,
    "in the way": VerificationError,
    "denied": PermissionDeniedError,
    "name": StorageError,
    "space": StorageError,
    "device": StorageError,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """One file that a plan writes or renames.

    Attributes
    ----------
    rank : int or None
        None for a document of all ranks.
    suffix : str
        Behind its name: that of the longest name beside it.
    replaces : FileState or None
        What the plan saw under a slice's name.
    any_file : bool
        Whether any file may lie there: small files are compared when they are written.
    bytes : int
        Of a slice.
    kept : bool
        The slice that is replaced stays, under another name.
    renamed : bool
        The file is there, and gets another name.
    plain : bool
        A link under the name is not replaced.
    """

    rank: int | None
    path: str
    suffix: str = ""
    replaces: FileState | None = None
    any_file: bool = False
    bytes: int = 0
    kept: bool = False
    renamed: bool = False
    plain: bool = False


def error_of(obstacle: Obstacle) -> MsRecoverError:
    """Return the error of writing a file in spite of an obstacle."""
    return _ERRORS[obstacle.kind](obstacle.reason)


def code_of(plan: Plan) -> int:
    """Return the gravest exit code of the obstacles that applying a plan meets, 0 without one.

    What comes after something that failed is not tried: lists and records of a rank after its slice, slices that are
    given up and documents after everything else.
    """
    slices = {action.target for action in plan.actions}
    aside = {slice_.path for slice_ in plan.set_aside}
    documents = {document.target for document in plan.documents}
    failed = {obstacle.rank for obstacle in plan.obstacles if obstacle.path in slices}
    written: list[Obstacle] = []
    given_up: list[Obstacle] = []
    announced: list[Obstacle] = []
    for obstacle in plan.obstacles:
        if obstacle.path in aside:
            given_up.append(obstacle)
        elif obstacle.path in documents:
            announced.append(obstacle)
        elif obstacle.path in slices or obstacle.rank not in failed:
            written.append(obstacle)
    met = written or given_up or announced[:1]  # the first document that fails ends the last phase
    return max((_ERRORS[obstacle.kind].exit_code for obstacle in met), default=0)


def targets_of(plan: Plan) -> list[Target]:
    """Return the files that a plan writes, in the order in which it does."""
    targets = [_of_action(action) for wave in waves_of(plan.actions) for action in wave]
    targets += [Target(rank=write.rank, path=write.target, any_file=True) for write in plan.group_files]
    targets += [Target(rank=write.rank, path=write.target, any_file=True) for write in plan.meta_files]
    targets += [Target(rank=write.rank, path=write.target, any_file=True) for write in plan.strategy_files]
    aside = SUPERSEDED_SUFFIX + MANIFEST_SUFFIX
    targets += [Target(rank=given.rank, path=given.path, suffix=aside, renamed=True) for given in plan.set_aside]
    targets += [Target(rank=None, path=last.target, replaces=last.replaces, plain=True) for last in plan.documents]
    return targets


def _of_action(action: Action) -> Target:
    return Target(
        rank=action.rank,
        path=action.target,
        suffix=MANIFEST_SUFFIX,
        replaces=action.replaces,
        bytes=action.bytes,
        kept=action.set_aside is not None,
    )


def copies_of(plan: Plan) -> list[tuple[str, str]]:
    """Return source and target of the slices that are copied as they are."""
    return [(action.source, action.target) for action in plan.actions if isinstance(action, CopyAction)]


def other_folders(plan: Plan) -> set[str]:
    """Return the directories of the slices that a plan keeps or reads."""
    paths = {verdict.path for rank in plan.ranks for verdict in rank.files if verdict.path is not None}
    return {posixpath.dirname(path) for path in paths}


@dataclass(frozen=True, slots=True)
class Judged:
    """What keeps a plan from being applied.

    Attributes
    ----------
    obstacles : tuple of Obstacle
        In the order of the targets.
    one_at_a_time : bool
        There is room for all that has no obstacle only if each slice is replaced before the next is written.
    """

    obstacles: tuple[Obstacle, ...] = ()
    one_at_a_time: bool = False


def judge_places(plan: Plan, targets: Sequence[Target], places: Places, *, just_made: bool = False) -> Judged:
    """Find what keeps files of a plan, those of `targets_of` or some of them, from being written where they belong.

    In one that was `just_made` nothing under a target's name can be what the plan itself wrote.
    """
    obstacles: dict[str, Obstacle] = {}
    for target in targets:
        obstacle = obstacle_of(target, places, plan.follow)
        if obstacle is None and just_made:
            obstacle = _unseen(target, places)
        if obstacle is not None:
            obstacles[target.path] = obstacle
    for obstacle in _in_one_place(plan, targets, places):
        obstacles.setdefault(obstacle.path, obstacle)
    full, one_at_a_time = _without_room([target for target in targets if target.path not in obstacles], places)
    obstacles |= {obstacle.path: obstacle for obstacle in full}
    return Judged(tuple(obstacles[target.path] for target in targets if target.path in obstacles), one_at_a_time)


def obstacle_of(target: Target, places: Places, follow: Sequence[str] = ()) -> Obstacle | None:
    """Return what keeps one file from being written, room aside; `follow` has the directories links may lead to."""
    folder = places.folders[posixpath.dirname(target.path)]
    for kind, reason in _reasons(target, folder, places, follow):
        return Obstacle(rank=target.rank, path=target.path, kind=kind, reason=reason)
    return None


def _reasons(
    target: Target, folder: FolderFacts, places: Places, follow: Sequence[str]
) -> Iterator[tuple[ObstacleKind, str]]:
    """Yield why a file cannot be written, the plainest reason first."""
    yield from _no_folder(target, folder, places)
    yield from _elsewhere(target, folder, places, follow)
    yield from _long_name(target, folder, places)
    if not folder.writable:
        why = (
            "the file system is mounted read-only" if folder.read_only else f"permission denied for user {places.user}"
        )
        advice = "mount it for writing" if folder.read_only else "check who owns it, or run as that user"
        made = "" if folder.base == folder.real else f", where {posixpath.dirname(target.path)} has to be made"
        yield "denied", f"{folder.base} may not be written{made}: {why}; {advice}, then apply"
    if folder.base == folder.real:
        yield from _in_the_way(target, folder, places)


def _no_folder(target: Target, folder: FolderFacts, places: Places) -> Iterator[tuple[ObstacleKind, str]]:
    belongs = f"where the directory {posixpath.dirname(target.path)} belongs"
    if folder.fault == "no folder":
        yield "in the way", f"{folder.at} is no directory and lies {belongs}: move it away, then apply"
    elif folder.fault in ("nowhere", "circle"):
        where = "nowhere" if folder.fault == "nowhere" else "in a circle"
        yield "device", f"{folder.at} is a link that leads {where}, {belongs}: put a directory there, then apply"
    elif folder.fault is not None:
        yield "device", f"{folder.at} cannot be looked at, {belongs}: {folder.words}; check the device, then apply"


def _elsewhere(
    target: Target, folder: FolderFacts, places: Places, follow: Sequence[str]
) -> Iterator[tuple[ObstacleKind, str]]:
    path = posixpath.dirname(target.path) or "."
    inside = _below(folder.real, places.real_root)
    if inside is None:
        followed = next((top for top in follow if _below(folder.real, top) is not None), None)
        if followed is None:
            wanted = folder_to_follow(folder.real)
            yield (
                "elsewhere",
                (
                    f"{path} leads out of {places.root} through a link, to {folder.real}: to have it written there say "
                    f"--follow {wanted}, or give that disk as a root of its own"
                ),
            )
            return
        inside = [posixpath.basename(followed), *(_below(folder.real, followed) or ())]
        vague = len(inside) > 1
    else:
        vague = folder.real != posixpath.normpath(posixpath.join(places.real_root, path))
    if target.rank is None:
        return
    # What a link takes into another rank's directory would count as that rank's.
    for other in ranks_in_folders(inside, vague=vague):
        if other != str(target.rank):
            yield (
                "elsewhere",
                (
                    f"{path} leads to the directory of rank {other} through a link, {folder.real}: nothing is written "
                    f"there; give rank {target.rank} a directory of its own, then apply"
                ),
            )


def _below(path: str, top: str) -> list[str] | None:
    """Return the directories from one down to another, None where that is not below it."""
    if path == top:
        return []
    ahead = posixpath.join(top, "")
    return path[len(ahead) :].split("/") if path.startswith(ahead) else None


def folder_to_follow(real: str) -> str:
    """Return the directory to name so that slices may be written in another: that of all ranks' beside it."""
    above, name = posixpath.split(real)
    named = rank_in_folder(name, posixpath.basename(above)) is not None
    return above if named and above not in ("", "/") else real


def _long_name(target: Target, folder: FolderFacts, places: Places) -> Iterator[tuple[ObstacleKind, str]]:
    name = posixpath.basename(target.path)
    longest = name + target.suffix if target.renamed else temporary_name(name + target.suffix)
    added = len(_encoded(longest)) - len(_encoded(name))
    disk = _disk(folder, places)
    most = disk.longest_name if disk is not None else 255
    for part in folder.real.split("/"):
        if len(_encoded(part)) > most:
            length = len(_encoded(part))
            yield "name", f"a directory is called {part[:_SHOWN]}..., {length} bytes, and the file system takes {most}"
    full = len(_encoded(posixpath.join(folder.real, longest)))
    if len(_encoded(longest)) > most:
        yield (
            "name",
            (
                f"the file name {name[:_SHOWN]}... is too long: it has {len(_encoded(name))} bytes, names of what is "
                f"written beside it are up to {added} longer, and the file system takes {most}: rename the slices of "
                "all ranks"
            ),
        )
    elif full > _LONGEST_PATH:
        yield "name", f"the path of {target.path} is longer than the system takes: give a root that lies less deep"


def _encoded(name: str) -> bytes:
    return name.encode(errors="surrogateescape")


def _in_the_way(target: Target, folder: FolderFacts, places: Places) -> Iterator[tuple[ObstacleKind, str]]:
    entry, full = places.targets.get(target.path), posixpath.join(places.root, target.path)
    if entry is None:
        return
    if entry.kind == "unknown":
        yield "device", f"{full} cannot be looked at: {entry.words}; move it away, then apply"
    if entry.kind in ("folder", "other"):
        yield "in the way", f"{full} is no file, and in the way of one: move it away, then apply"
    if entry.linked and target.plain:
        yield "in the way", f"{full} is a link: remove it, then apply"
    if folder.sticky and entry.kind is not None and entry.foreign:
        yield (
            "denied",
            (
                f"{full} is another user's, and only that one may replace it: permission denied for user "
                f"{places.user}; run as the owner"
            ),
        )
    if entry.blocked_by and not target.renamed:
        yield "in the way", entry.blocked_by


def _unseen(target: Target, places: Places) -> Obstacle | None:
    """Return the obstacle that a file is which a plan did not see under a slice's name."""
    entry = places.targets.get(target.path)
    if entry is None or entry.kind != "file" or target.any_file or target.renamed or target.replaces is not None:
        return None
    full = posixpath.join(places.root, target.path)
    reason = f"{full} is there, and no slice that counts: move it away, then apply"
    return Obstacle(rank=target.rank, path=target.path, kind="in the way", reason=reason)


def _in_one_place(plan: Plan, targets: Sequence[Target], places: Places) -> Iterator[Obstacle]:
    """Yield the targets that are one file with another rank's, or lie in one: that is written, or kept."""
    files = {target.path for target in targets}
    inside = {path: above for path in places.folders for above in _and_above(path) if above in files}
    for target in targets:
        folder = posixpath.dirname(target.path)
        if folder in inside:
            reason = f"{target.path} belongs in a directory, and {inside[folder]} is to be a file: rename one of them"
            yield Obstacle(rank=target.rank, path=target.path, kind="in the way", reason=reason)
    known: dict[str, tuple[int | None, str]] = {}
    if not any(folder.linked for folder in places.folders.values()):
        return
    for verdict in plan.ranks:
        for file in verdict.files:
            if file.verdict == "keep" and file.path is not None:
                known.setdefault(_real(file.path, places), (file.rank, file.path))
    for target in targets:
        rank, path = known.setdefault(_real(target.path, places), (target.rank, target.path))
        if path != target.path:
            whose = "" if rank is None else f", of rank {rank}"
            yield Obstacle(
                rank=target.rank,
                path=target.path,
                kind="elsewhere",
                reason=f"{target.path} is the same file as {path}{whose} through a link: give rank {target.rank} a "
                "directory of its own, then apply",
            )


def _and_above(path: str) -> Iterator[str]:
    while path:
        yield path
        path = posixpath.dirname(path)


def _real(path: str, places: Places) -> str:
    folder = places.folders.get(posixpath.dirname(path))
    real = folder.real if folder is not None else posixpath.join(places.real_root, posixpath.dirname(path))
    return posixpath.join(real, posixpath.basename(path))


def _disk(folder: FolderFacts, places: Places) -> DiskFacts | None:
    return places.disks.get(folder.disk) if folder.disk is not None else None


def _without_room(targets: Sequence[Target], places: Places) -> tuple[list[Obstacle], bool]:
    """Return the slices for which there is no room, and whether that is so unless each is written after the other."""
    by_disk: dict[int | None, list[Target]] = defaultdict(list)
    for target in targets:
        if target.bytes:
            by_disk[places.folders[posixpath.dirname(target.path)].disk].append(target)
    obstacles: list[Obstacle] = []
    one_at_a_time = False
    for wanted in by_disk.values():
        facts = _disk(places.folders[posixpath.dirname(wanted[0].path)], places)
        if facts is None:
            continue
        if facts.files is not None and facts.files < _SPARE_FILES * len(wanted):
            base = places.folders[posixpath.dirname(wanted[0].path)].base
            reason = (
                f"the file system of {base} has room for {facts.files:,} more files, and {len(wanted)} slices with "
                "what lies beside them are to be written: remove files there, then apply"
            )
            obstacles += _no_room(wanted, reason)
        elif facts.free is not None:
            full, alone = _beyond(wanted, facts.free, facts.block, places)
            obstacles += full
            one_at_a_time |= alone
    return obstacles, one_at_a_time


def _beyond(wanted: Sequence[Target], free: int, block: int, places: Places) -> tuple[list[Obstacle], bool]:
    """Return the slices of one file system that find no room in their order, and whether the others need that order."""
    needs = {target.path: _need(target, block, places) for target in wanted}
    total, used, together = sum(needs.values()), 0, 0
    beyond = []
    for target in wanted:
        entry, need = places.targets.get(target.path), needs[target.path]
        if used + need > free:
            beyond.append(target)
            continue
        together += need
        used += need - (entry.freed if entry is not None and need and not target.kept else 0)
    if not beyond:
        return [], together > free
    base = places.folders[posixpath.dirname(wanted[0].path)].base
    slices = f"{len(wanted)} slices are" if len(wanted) > 1 else "1 slice is"
    reason = (
        f"there is no room on the file system of {base}: {slices} to be written, {total:,} bytes with what lies beside "
        f"them, and {free:,} are free; free {max(total - free, block):,} bytes, then apply"
    )
    return _no_room(beyond, reason), together > free


def _no_room(targets: Iterable[Target], reason: str) -> list[Obstacle]:
    return [Obstacle(rank=target.rank, path=target.path, kind="space", reason=reason) for target in targets]


def _need(target: Target, block: int, places: Places) -> int:
    """Return the bytes that a slice takes with what lies beside it, until the one that it replaces is gone."""
    entry = places.targets.get(target.path)
    state = entry.state if entry is not None else None
    if state is not None and state != target.replaces and state.bytes == target.bytes:
        return 0  # written before, by this same plan
    size = 0 if target.path in places.shared else -(-target.bytes // block) * block
    return size + _SPARE_BYTES + target.bytes // 1024
