"""Planning over trees of other nodes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING

import click

from ms_recover.cli.fields import ambient_options, typed_options
from ms_recover.cli.tree import cores, log_plan, scan_tree

if TYPE_CHECKING:
    from ms_recover.cli.options import PeerOptions
    from ms_recover.model.options import PlanOptions, ScanOptions
    from ms_recover.stores.http_access import Access
    from ms_recover.verbs.several_trees import JointPlan


def check_alone(ctx: click.Context) -> None:
    """Raise click.UsageError when an option that has a meaning only with ``--from`` is given.

    The environment of a node may say how it meets others; which ranks count would change a plan without others.
    """
    typed = [option for option in typed_options(ctx) if option.target == "peers"]
    for option in (*typed, *(one for one in (*typed_options(ctx), *ambient_options(ctx)) if one.field == "ranks")):
        raise click.UsageError(f"{option.opts[0]} goes with --from SOURCE", ctx)


def access_of(options: PeerOptions) -> Access:
    """Return the proof that this node may take part: by options, and for the rest by the environment.

    Raises UsageError when the files are invalid, or only some of those that go together are given.
    """
    from ms_recover.stores.http_access import Access

    return Access.from_environment(
        token_file=options.token_file,
        certificate=options.certificate,
        key=options.key,
        authority=options.authority,
        insecure=options.insecure,
    )


@contextmanager
def planned_with_peers(
    root: str,
    scan: ScanOptions,
    plan: PlanOptions,
    peers: PeerOptions,
    *,
    explain: int | None = None,
    as_json: bool = False,
) -> Iterator[JointPlan]:
    """Scan, get the inventories of the sources, and plan over all; the connections stay open inside."""
    from ms_recover.cli.progress import progress_bar
    from ms_recover.stores.credentials import try_handshake
    from ms_recover.stores.urls import is_url, root_of_run
    from ms_recover.verbs.several_trees import SeveralTrees

    access = access_of(peers)
    sources = list(dict.fromkeys(peers.servers))
    if access.certificate and access.key and access.authority and not all(map(is_url, sources)):
        try_handshake(access.certificate, access.key, access.authority)  # of nodes that one authority signs for
    if plan.run is not None:
        run = plan.run
        sources = [root_of_run(one, run) if "/" in one and not one.startswith("http") else one for one in sources]
    trees = SeveralTrees(sources, access=access, timeout=peers.timeout, min_rate=peers.min_rate)
    local = scan_tree(os.path.abspath(root), replace(scan, may_be_empty=True), as_json=as_json)
    with trees:
        with progress_bar("reading", None, as_json) as progress:
            planned = trees.plan(local, plan, explain=explain, jobs=cores(), progress=progress)
        log_plan(planned.plan)
        yield planned
