"""Plan over this node's tree and others, wherever they lie, and take missing slices from them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace

from ms_recover.errors import AnswerError, FormatError, MsRecoverError, SlowSourceError, UsageError
from ms_recover.joint.shares import share_here
from ms_recover.joint.union import HERE, unite
from ms_recover.model.contents import Contents
from ms_recover.model.explanation import Explanation
from ms_recover.model.inventory import Inventory, SliceFile
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.plan import Plan
from ms_recover.planning.plan.explain import explain_planned
from ms_recover.planning.plan.planner import refuse_older_step
from ms_recover.scanning.read import Reading, read_contents, read_store
from ms_recover.scanning.served import inventory_of
from ms_recover.stores.backup_store import BackupStore
from ms_recover.stores.http_access import Access
from ms_recover.stores.sources import Source
from ms_recover.stores.store import Store
from ms_recover.verbs.recover import with_obstacles
from ms_recover.verbs.session import Session

_log = logging.getLogger(__name__)


def _text_of_left_out(error: MsRecoverError) -> str:
    return f"{error}; it is left out, and only ranks with files here are recovered: name others with --ranks"


@dataclass(frozen=True)
class JointPlan:
    """The plan of this node, with its actions alone, which `ms_recover.api.apply` carries out."""

    plan: Plan
    explanation: Explanation | None
    """Of one rank, where it was asked for."""
    sources: Mapping[str, Store]
    """The stores of the slices and strategy files that lie elsewhere, by path."""


class SeveralTrees:
    """The trees at some sources, ``HOST:PORT`` of a recover-ckpt serve, URLs or paths; a context manager.

    Parameters
    ----------
    access : Access, optional
        Token and TLS for web servers; by default those of the environment.
    timeout, min_rate : float, optional
        How long web servers are waited for, as for `HttpStore`.

    Attributes
    ----------
    stores : list of Store
    inventories : list of Inventory
        What each of them has, once entered.
    left_out : list of MsRecoverError
        Of those that sent what can be no inventory, or too slowly, while others did not: a plan names them in its
        warnings.

    Raises
    ------
    MsRecoverError
        On entering, when one cannot be reached, does not accept the token, or none has anything that can be used.
    """

    def __init__(
        self,
        sources: Sequence[str],
        *,
        access: Access | None = None,
        timeout: float | None = None,
        min_rate: float | None = None,
    ) -> None:
        self._access = Access.from_environment() if access is None else access
        self._timeout, self._min_rate = timeout, min_rate
        self._sources = [Source.parse(text, self._access) for text in sources]
        self._open = ExitStack()
        self.stores: list[Store] = []
        self.inventories: list[Inventory] = []
        self.left_out: list[MsRecoverError] = []

    def __enter__(self) -> SeveralTrees:
        try:
            for source in self._sources:
                store = self._open.enter_context(source.open(self._access, self._timeout, self._min_rate))
                try:
                    inventory = inventory_of(store, any_server=source.any_server)
                except (FormatError, AnswerError, SlowSourceError) as error:
                    _log.warning("%s is left out: %s", store.url, error)
                    self.left_out.append(error)
                    continue
                _log.info("%s has %d slices of %d ranks", store.url, len(inventory.slices), len(inventory.ranks))
                self.stores.append(store)
                self.inventories.append(inventory)
            if self.left_out and not self.inventories:
                raise self.left_out[0]
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._open.close()

    def plan(
        self,
        local: Inventory,
        options: PlanOptions = DEFAULT_PLAN,
        *,
        explain: int | None = None,
        jobs: int = 1,
        progress: Callable[[int], None] | None = None,
    ) -> JointPlan:
        """Plan over this node's tree and the others.

        Parameters
        ----------
        options : PlanOptions
            With `ranks` those that live here; only these need a slice. By default all that have no files on other
            nodes alone, and every rank of the world needs a slice.
        explain : int, optional
            A rank to explain.
        jobs, progress
            As for `ms_recover.api.plan`.

        Raises
        ------
        MsRecoverError
            As `ms_recover.api.plan` does, and when a source cannot be reached any more.
        """
        backups = [number for number, store in enumerate(self.stores) if isinstance(store, BackupStore)]
        union = unite(local, self.inventories, backups)
        reading = Reading(jobs=jobs, progress=progress or (lambda count: None))

        def read(files: Sequence[SliceFile]) -> Contents:
            here = [file for file in files if union.holder(file.path) == HERE]
            contents = read_contents(local.root, here, reading)
            for number, store in enumerate(self.stores):
                theirs = [file for file in files if union.holder(file.path) == number]
                if theirs:
                    contents = contents.merged(self._read(store, theirs, reading))
            return contents

        session = Session(union.inventory, options, read=read)
        planned = session.planned
        explanation = None if explain is None else explain_planned(planned, explain)
        # The plan is for all nodes; of its actions only those for this one are kept.
        living = self._living_here(local, options, planned.plan)
        made = share_here(planned.plan, union, living, session.contents.digests)
        made = replace(made, warnings=(*map(_text_of_left_out, self.left_out), *made.warnings))
        made = with_obstacles(made, options.follow, elsewhere=union.holders)
        if made.recoverable and not made.actions and not local.ranks and options.ranks is None:
            last = made.world_size - 1
            raise UsageError(
                f"{local.root} holds no slice, and every rank has files at the sources, so that none is known to live "
                f"here: name those that do with --ranks, 0-{last} for all"
            )
        if options.require_newest:
            refuse_older_step(made, explanation)
        away = {path: self.stores[number] for path, number in union.holders.items()}
        return JointPlan(made, explanation, away)

    def _read(self, store: Store, files: Sequence[SliceFile], reading: Reading) -> Contents:
        """Read slices of a source; beside others, one that is too slow gives none of them."""
        try:
            return read_store(store, files, reading)
        except SlowSourceError as error:
            if len(self.stores) == 1:
                raise
            _log.warning("%s: what it has is passed over: %s", store.url, error)
            paths = [file.path for file in files]
            return Contents(problems=dict.fromkeys(paths, f"cannot be read: {error}"), failing=frozenset(paths))

    def _living_here(self, local: Inventory, options: PlanOptions, plan: Plan) -> frozenset[int] | None:
        """Return the ranks that live here, None for all that are not known to live elsewhere.

        Where a node is left out the ranks on it are not known. In a tree of iterations every node gets all files.
        """
        iterations = plan.step is not None and plan.step.is_iteration
        if options.ranks is not None or not self.left_out or iterations:
            return options.ranks
        return frozenset(local.ranks)
