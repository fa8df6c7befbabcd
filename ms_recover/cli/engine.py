"""Commands over a tree that only the workers of an engine see."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import partial
from typing import TYPE_CHECKING

import click

from ms_recover.cli.fields import typed_options
from ms_recover.cli.tree import scan_tree
from ms_recover.errors import UsageError

if TYPE_CHECKING:
    from ms_recover.cli.options import EngineOptions
    from ms_recover.engine.engine import Engine
    from ms_recover.model.contents import Reader
    from ms_recover.model.inventory import Inventory
    from ms_recover.model.options import ScanOptions
    from ms_recover.model.progress import Progress
    from ms_recover.verbs.spread_tree import SpreadTree


def is_spread(root: str, options: EngineOptions) -> bool:
    """Whether the workers of an engine do the work.

    Raises UsageError for a tree on nodes without an engine: one host alone would be taken for all.
    """
    if options.engine == "local" and root.startswith("node://"):
        raise UsageError(f"{root}: the disks of nodes are reached by their workers: add --engine dask://HOST:PORT")
    return options.engine != "local"


def check_local(ctx: click.Context) -> None:
    """Raise click.UsageError when an option is given that has a meaning only with ``--engine``."""
    for option in typed_options(ctx):
        if option.target == "engine" and option.field != "engine":
            raise click.UsageError(f"{option.opts[0]} goes with --engine dask://HOST:PORT", ctx)


def refuse_servers(ctx: click.Context) -> None:
    """Raise click.UsageError for options of ``--from``."""
    for option in typed_options(ctx):
        if option.target == "peers" or option.field == "ranks":
            raise click.UsageError(f"{option.opts[0]} does not go with --engine: the workers read from each other", ctx)


@contextmanager
def opened_engine(options: EngineOptions) -> Iterator[Engine]:
    """Open the engine; its tasks are ended when the block is left, also by Ctrl-C."""
    from ms_recover.engine import LOCAL, open_engine

    if options.engine != LOCAL:
        with suppress(ImportError):  # which open_engine explains
            from ms_recover.engine.dask_cluster import silence

            silence()
    with open_engine(options.engine, timeout=options.worker_timeout) as engine:
        yield engine


@contextmanager
def spread_tree(root: str, options: EngineOptions) -> Iterator[SpreadTree]:
    """Open the engine, and a tree that its workers see."""
    from ms_recover.verbs.spread_tree import SpreadTree

    with opened_engine(options) as engine:
        yield SpreadTree(engine, root, options.homes)


def scan_spread(tree: SpreadTree, options: ScanOptions, *, as_json: bool) -> Inventory:
    """Scan; progress is shown where slices are read for their CRCs."""
    from ms_recover.cli.progress import progress_bar

    with progress_bar("checking CRCs", None, as_json) as progress:
        return tree.scan(options, progress=progress)


@contextmanager
def scanned_tree(
    root: str, engine: EngineOptions, scan: ScanOptions, *, run: str | None = None, as_json: bool
) -> Iterator[tuple[Inventory, SpreadTree | None]]:
    """Scan a tree, of a backup of several runs one `run`; yield it with the tree that workers see, if they do the work.

    Raises click.UsageError when an option is given that has a meaning only with ``--engine``, and there is none.
    """
    if is_spread(root, engine):
        with spread_tree(root, engine) as tree:
            yield scan_spread(tree, scan, as_json=as_json), tree
    else:
        check_local(click.get_current_context())
        yield scan_tree(root, scan, run=run, as_json=as_json), None


def reader_of(tree: SpreadTree | None, progress: Progress, *, from_device: bool = False) -> Reader | None:
    """Return what reads slices where workers do it; None where this process does."""
    return None if tree is None else partial(tree.read, progress=progress, from_device=from_device)
