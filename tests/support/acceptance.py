"""Small checkpoint trees for the acceptance tests, and a quick way to run the command line over them."""

from __future__ import annotations

import importlib
import json
import multiprocessing
import os
import shutil
import sys
import traceback
from collections.abc import Iterable, Mapping, Sequence
from configparser import ConfigParser
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from ms_recover.execution.manifests import make_manifest, write_manifest
from ms_recover.execution.rank_lists import write_group_info
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.group_info import read_group_info
from ms_recover.formats.header import read_header
from ms_recover.formats.strategy import encode_strategy
from ms_recover.model.provenance import SAVED
from ms_recover.model.steps import Step
from ms_recover.model.strategy import Strategy
from ms_recover.testing.trees import SLICE_MODE
from tests.support.cuts import CutTensor, cut_layout, slice_of

_setup = ConfigParser()
_setup.read(Path(__file__).parents[2] / "setup.cfg")
ENTRY = tuple(
    dict(
        line.replace(" ", "").split("=")
        for line in _setup["options.entry_points"]["console_scripts"].split("\n")
        if line
    )["recover-ckpt"].split(":")
)
"""Module and function that the installed command calls."""

_BEGIN = 1_700_000_000


@dataclass
class Tree:
    """A training of ``pp`` stages of ``dp`` x ``mp`` ranks, saved as MindSpore saves it, without manifests.

    Rank ``stage * dp * mp + replica * mp + part``. Every stage has two weights and a moment that are cut over the
    model-parallel ranks, a norm that all ranks of the stage hold whole, and a counter without layout.

    Parameters
    ----------
    root : Path
        Where; made.
    dp, mp, pp : int
        Sizes of the data, model and pipeline dimensions.
    form : str
        ``"ckpt"`` or ``"safetensors"``.
    lists, strategies : bool
        Write ``group_info.pb``, ``strategy.ckpt`` beside the slices.
    directory : str
        Form of the rank directories.
    crossed : bool
        Cut ``out.weight`` over the data-parallel ranks: no rank holds the whole slice of another, and a slice that is
        lost is composed.
    """

    root: Path
    dp: int = 2
    mp: int = 2
    pp: int = 1
    form: str = "ckpt"
    lists: bool = True
    strategies: bool = True
    directory: str = "ckpt_dir{rank}"
    crossed: bool = False
    truth: dict[Path, bytes] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for rank in self.ranks:
            self.folder(rank).mkdir(parents=True, exist_ok=True)
            self.describe(rank)

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.dp * self.mp * self.pp

    @property
    def ranks(self) -> range:
        """All ranks."""
        return range(self.size)

    def folder(self, rank: int) -> Path:
        """Return a rank's directory."""
        return self.root / self.directory.format(rank=rank)

    def path(self, rank: int, step: str = "2_77", prefix: str = "test") -> Path:
        """Return the path of a slice."""
        return self.folder(rank) / f"{prefix}-{step}.{self.form}"

    def manifest(self, rank: int, step: str = "2_77", prefix: str = "test") -> Path:
        """Return the path of a slice's manifest."""
        path = self.path(rank, step, prefix)
        return path.with_name(path.name + MANIFEST_SUFFIX)

    def group(self, rank: int) -> list[int]:
        """Return the ranks that hold the whole slice of a rank."""
        if self.crossed:
            return [rank]
        stage, inner = divmod(rank, self.dp * self.mp)
        return [stage * self.dp * self.mp + replica * self.mp + inner % self.mp for replica in range(self.dp)]

    def tensors(self, stage: int, seed: object) -> dict[str, CutTensor]:
        """Return the global tensors of a stage."""
        source = np.random.default_rng(_number(f"{stage} {seed}"))
        head = f"stage{stage}." if self.pp > 1 else ""
        matrix = (self.dp, self.mp)

        def made(name: str, shape: tuple[int, ...], *axes: Sequence[int]) -> CutTensor:
            values = source.standard_normal(shape).astype(np.float32)
            return CutTensor("Float32", values, cut_layout(head + name, matrix, *axes))

        wide, tall, across = (4, 4 * (self.dp if self.crossed else self.mp)), (4 * self.mp, 4), int(self.crossed)
        return {
            head + "dense.weight": made("dense.weight", tall, (0,), ()),
            head + "out.weight": made("out.weight", wide, (), (across,)),
            head + "norm.weight": made("norm.weight", (8,), ()),
            head + "moment1.dense.weight": made("moment1.dense.weight", tall, (0,), ()),
            "global_step": CutTensor("Int32", np.array(_trained(seed), np.int32)),
        }

    def describe(self, rank: int) -> None:
        """Write a rank's list and strategy file."""
        if self.lists:
            write_group_info(self.folder(rank) / "group_info.pb", self.group(rank))
        if self.strategies:
            stage = rank // (self.dp * self.mp)
            layouts = tuple(one.layout for one in self.tensors(stage, 0).values() if one.layout is not None)
            (self.folder(rank) / "strategy.ckpt").write_bytes(encode_strategy(Strategy((stage,), 2, layouts)))

    def save(
        self,
        *steps: str,
        prefix: str = "test",
        age: int = 0,
        ranks: Iterable[int] | None = None,
        run: str | None = None,
    ) -> Tree:
        """Save steps on all ranks, or on some.

        Parameters
        ----------
        *steps : str
            ``"2_77"`` where none is given.
        prefix : str
            Of the names; another prefix has other contents.
        age : int
            Hours before the present of the tree at which the slices were written; steps lie minutes apart.
        ranks : iterable of int, optional
            Who saves.
        run : str, optional
            Write manifests too, as a training of this run id does.
        """
        for order, step in enumerate(steps or ("2_77",)):
            made = [self.tensors(stage, f"{prefix} {step}") for stage in range(self.pp)]
            for rank in self.ranks if ranks is None else ranks:
                self.put(rank, slice_of(made[rank // (self.dp * self.mp)], rank, form=self.form), step, prefix)
                when = (_BEGIN - 3600 * age + 60 * order) * 10**9
                os.utime(self.path(rank, step, prefix), ns=(when, when))
                if run is not None:
                    self.commit(rank, step, prefix, run)
        return self

    def put(self, rank: int, data: bytes, step: str = "2_77", prefix: str = "test") -> None:
        """Write a slice that is right by definition."""
        path = self.path(rank, step, prefix)
        path.unlink(missing_ok=True)
        path.write_bytes(data)
        path.chmod(SLICE_MODE)
        self.truth[path] = data

    def commit(self, rank: int, step: str = "2_77", prefix: str = "test", run: str = "run-1") -> None:
        """Write the manifest that a training writes beside a slice as it is now."""
        path = str(self.path(rank, step, prefix))
        listed = self.folder(rank) / "group_info.pb"
        group = read_group_info(listed).restore_ranks if listed.exists() else self.group(rank)
        made = replace(make_manifest(path, rank, Step.parse(step), self.size, tuple(group), run), provenance=SAVED)
        write_manifest(path, made)

    def flip(self, rank: int, parameter: str = "norm.weight", step: str = "2_77", prefix: str = "test") -> None:
        """Flip one bit of a parameter's contents; size, mode and times stay as they are."""
        path = self.path(rank, step, prefix)
        header = read_header(path)
        names = [one.name for one in header.parameters]
        start = header.contents[names.index(parameter)][0].start
        data = bytearray(path.read_bytes())
        data[start + 1] ^= 0x10
        overwrite(path, bytes(data))
        assert path.read_bytes() != self.truth[path]

    def lose(self, *ranks: int) -> None:
        """Remove ranks' directories."""
        for rank in ranks:
            shutil.rmtree(self.folder(rank))

    def wrong(self, paths: Iterable[Path] | None = None) -> list[str]:
        """Return the slices that are not there or not, byte for byte, what was saved."""
        asked = self.truth if paths is None else paths
        return sorted(
            str(path.relative_to(self.root))
            for path in asked
            if not path.is_file() or path.read_bytes() != self.truth[path]
        )

    def contents(self) -> dict[str, bytes]:
        """Return every slice below the root and its bytes, manifests and other small files left out."""
        found = self.root.rglob(f"*.{self.form}")
        return {
            str(path.relative_to(self.root)): path.read_bytes()
            for path in found
            if path.is_file() and not path.name.startswith("strategy")
        }


def _trained(seed: object) -> int:
    """Return the steps since the beginning at the step that a seed ends with, of 77 an epoch; 0 without one."""
    epoch, _, step = str(seed).rpartition(" ")[2].rpartition("_")
    return (int(epoch) - 1) * 77 + int(step) if epoch else 0


def _number(text: str) -> int:
    return int.from_bytes(text.encode(), "big")


def overwrite(path: Path, data: bytes) -> None:
    """Change a file's bytes silently: inode, mode and times stay."""
    status = path.stat()
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.write(data)
        file.truncate()
    path.chmod(status.st_mode & 0o7777)
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


class Done:
    """The end of a command.

    Parameters
    ----------
    code : int
        Exit code; 128 and the signal's number where a signal ended it.
    out, err : str
        Standard output and standard error.
    """

    def __init__(self, code: int, out: str, err: str) -> None:
        self.code, self.out, self.err = code, out, err

    @property
    def json(self) -> dict[str, Any]:
        """The one object on standard output."""
        data: dict[str, Any] = json.loads(self.out)
        return data

    @property
    def text(self) -> str:
        """Both outputs."""
        return self.out + self.err

    def __repr__(self) -> str:
        return f"code {self.code}\n{self.out}\n{self.err}"


def run_forked(
    folder: Path,
    *arguments: object,
    cwd: Path | None = None,
    env: Mapping[str, str] | None = None,
    timeout: float = 60,
    user: int | None = None,
) -> Done:
    """Run recover-ckpt in a process of its own, forked from one that has imported it already.

    Parameters
    ----------
    folder : Path
        Where outputs are kept.
    *arguments : object
        The command line.
    cwd : Path, optional
        Working directory; `folder` by default.
    env : mapping of str to str, optional
        Additional variables.
    timeout : float
        Seconds after which the process is killed and the test fails.
    user : int, optional
        Run as this user, without groups; where the tests are run by another than root, as that one.
    """
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(["tests.support.imported", __name__])
    outputs = folder / "out", folder / "err"
    words = [str(one) for one in arguments]
    process = context.Process(
        target=_child, args=(words, *map(str, outputs), str(cwd or folder), dict(env or {}), user)
    )
    process.start()
    process.join(timeout)
    late = process.is_alive()
    if late:
        process.kill()
        process.join()
    code = process.exitcode or 0
    process.close()
    out, err = (path.read_bytes().decode(errors="surrogateescape") for path in outputs)
    assert not late, f"recover-ckpt {' '.join(words)} took more than {timeout} s\n{out}{err}"
    assert "Traceback" not in err, err
    return Done(code if code >= 0 else 128 - code, out, err)


def _child(words: list[str], out: str, err: str, cwd: str, env: dict[str, str], user: int | None) -> None:
    for path, number in ((out, 1), (err, 2)):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(cwd)
    if user is not None and os.geteuid() == 0:
        os.setgroups([])
        os.setgid(user)
        os.setuid(user)
    os.environ.update(env)
    code = 99
    try:
        code = getattr(importlib.import_module(ENTRY[0]), ENTRY[1])(words)
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
