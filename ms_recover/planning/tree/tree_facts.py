"""The facts about each part of a tree: one without iterations is one part."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from dataclasses import replace

from ms_recover.errors import MissingInputError, UsageError
from ms_recover.file_names import RESHARDED_FOLDER, WeightKind
from ms_recover.model.contents import NOTHING_READ, Contents
from ms_recover.model.inventory import Inventory
from ms_recover.model.options import DEFAULT_PLAN, PlanOptions
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some
from ms_recover.planning.tree.facts import Facts, gather_facts
from ms_recover.planning.tree.lineage import RunRecord, find_run_records, texts_of_aside
from ms_recover.planning.tree.lost_files import inventory_without
from ms_recover.planning.tree.positions import Saved
from ms_recover.planning.tree.world_size import WorldSize, check_rank

_MOST_NAMED = 8


class TreeFacts:
    """The facts about each part of a tree, gathered when they are asked for.

    Parameters
    ----------
    inventory, options, contents, known_runs
        As for `gather_facts`; iterations have no other runs than those of their own manifests.

    Raises
    ------
    UsageError
        When the world size that is given is that of no iteration, or a rank is not in the world of the newest one, or
        of the step that is asked for. In a tree without iterations a rank is compared when its facts are gathered.
    MissingInputError
        When there is no iteration of that step.
    """

    def __init__(
        self,
        inventory: Inventory,
        options: PlanOptions = DEFAULT_PLAN,
        contents: Contents = NOTHING_READ,
        known_runs: Sequence[RunRecord] = (),
    ) -> None:
        self.inventory, self.options, self.contents = inventory, options, contents
        self._parts: tuple[Inventory, ...] = (inventory,)
        self._known: dict[int, Facts] = {}
        self._runs = known_runs
        if inventory.iterations:
            from ms_recover.planning.tree.parts import split_parts  # which other trees need not load

            self._parts = split_parts(inventory)
            counted = [file for file in inventory.slices if file.rank not in options.lost]
            self._runs = find_run_records(counted, inventory.set_aside)
            self._check()

    def with_contents(self, contents: Contents) -> TreeFacts:
        """Return the facts about the same tree, of which more was read."""
        made = copy(self)
        made.contents, made._known = contents, {}
        return made

    def without(self, ranks: Collection[int]) -> tuple[Inventory, PlanOptions]:
        """Return the tree after the files of some ranks are gone, with options that state the number of ranks."""
        options, world = self.options, max(facts.world.ranks for facts in self.every())
        if not self.inventory.iterations:  # where documents state the number, they are left
            options = replace(options, world_size=world)
        return inventory_without(self.inventory, ranks, world), options

    def _check(self) -> None:
        inventory, options = self.inventory, self.options
        check_steps(inventory, options)
        worlds = {step: self.world(step) for step in inventory.steps}
        given = options.world_size
        if given is not None and all(given != world.ranks for world in worlds.values()):
            first = worlds[inventory.steps[0]]
            raise UsageError(f"the world size is given as {given}, but {first.source} are of {first.ranks} ranks")
        newest = next((step for step in inventory.steps if given in (None, worlds[step].ranks)), inventory.steps[0])
        world = worlds[options.step or newest]
        for rank in sorted(options.lost):
            check_rank(rank, world, "declared lost")
        for rank in sorted(options.ranks or ()):
            check_rank(rank, world)

    @property
    def saved(self) -> tuple[Saved, ...]:
        """Every step, newest first: the number of an iteration counts from the beginning of the training."""
        if self.inventory.iterations:
            return tuple(Saved(step=step) for step in self.inventory.steps)
        return self._facts(0).saved

    def world(self, step: Step) -> WorldSize:
        """Return the number of ranks at a step."""
        if not self.inventory.iterations:
            return self._facts(0).world
        claims = [part.part for part in self._parts if step in part.part.steps]
        best = max(claims, key=lambda one: one.world_size, default=None)
        return WorldSize(ranks=best.world_size if best else 0, source=best.source if best else "nothing")

    def every(self) -> list[Facts]:
        """Return the facts about all parts that the step in the options leaves; newest first."""
        return self.at(self.options.step)

    def at(self, step: Step | None, kinds: Sequence[WeightKind | None] = ()) -> list[Facts]:
        """Return the facts about the parts of a step, by default all, or those of some kinds; model files first."""
        return [
            self._facts(number)
            for number, claims in enumerate(part.part for part in self._parts)
            if claims.kind is None or (step in (None, *claims.steps) and (not kinds or claims.kind in kinds))
        ]

    def _facts(self, number: int) -> Facts:
        if number not in self._known:
            part, options = self._parts[number], self.options
            if part.part.kind is not None:
                world = range(part.part.world_size)
                options = replace(
                    options,
                    world_size=None,
                    lost=frozenset(options.lost.intersection(world)),
                    ranks=None if options.ranks is None else frozenset(options.ranks.intersection(world)),
                )
            self._known[number] = gather_facts(part, options, self.contents, self._runs)
            for rank in sorted(options.ranks or ()):
                check_rank(rank, self._known[number].world)
        return self._known[number]


def check_steps(inventory: Inventory, options: PlanOptions) -> None:
    """Check that there is a slice, of the step in the options if they name one.

    Raises
    ------
    MissingInputError
        When there is none.
    UsageError
        When the step is an iteration and the tree has steps of epochs, or the other way round.
    """
    if not inventory.steps:
        raise MissingInputError(
            f"{inventory.root} holds directories of {len(inventory.ranks)} ranks but no slice: name another folder, "
            "or describe the file names with --pattern"
            + "".join(f"; {text}" for text in texts_of_aside(find_run_records((), inventory.set_aside)))
            + "".join(
                f"; {note.path}: {note.reason}" for note in inventory.notes if note.path.startswith(RESHARDED_FOLDER)
            )
        )
    check_kind_of_step(inventory, options.step)
    if options.step is not None and options.step not in inventory.steps:
        have = ", ".join(str(known) for known in inventory.steps[:_MOST_NAMED])
        raise MissingInputError(f"{inventory.root} holds no slice of step {options.step}; it has {have}")


def check_kind_of_step(inventory: Inventory, step: Step | None) -> None:
    """Raise a UsageError when a step is an iteration and the tree has steps of epochs, or the other way round."""
    if step is not None and step.is_iteration != bool(inventory.iterations):
        have = list_some(inventory.steps[:_MOST_NAMED])
        form = "the iteration alone" if inventory.iterations else "EPOCH_STEP"
        raise UsageError(f"{step} is no step of {inventory.root}, where it is {form}: it has {have}")
