"""The model that a splitter is given: a cell, or functions with which workers make its stages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import mindspore as ms
import numpy as np

from ms_recover.arguments import is_number
from ms_recover.errors import UsageError
from ms_recover.splitting import pickling, stages, values
from ms_recover.splitting.comparison import Comparison, compare_sample, has_weights
from ms_recover.splitting.job import AllStages
from ms_recover.splitting.nested import flatten, unflatten
from ms_recover.splitting.options import Options
from ms_recover.splitting.partition import cut_before, partition
from ms_recover.splitting.saved_split import SavedSplit
from ms_recover.splitting.slices import SliceStore
from ms_recover.tensors.arrays import to_host, to_tensor


@dataclass(frozen=True)
class GivenModel:
    """The stages of a model: cells of this process, or functions that workers call."""

    options: Options
    model: Any = None
    """The cell; None where workers make the stages."""
    cells: tuple[stages.Stage, ...] = ()
    """Empty where workers make the stages."""
    makers: tuple[Any, ...] = ()
    factory: str | None = None
    """The name by which workers find the functions."""
    seed: int | None = None
    """The seed of the stages that workers make."""
    is_callers: bool = False
    """Whether the caller has the cell; one that a factory made is dropped when its weights are saved."""

    @property
    def total(self) -> int:
        """Number of stages."""
        return len(self.cells or self.makers)

    @property
    def weights(self) -> Mapping[str, Any]:
        """The parameters of the caller's cell by their names in slices; empty without such a cell."""
        return stages.parameters_of(self.cells) if self.is_callers else {}

    def costs(self) -> Sequence[float]:
        """Return the cost of each stage: the given one, else measured with a sample, else its number of weights.

        Stages that workers make count alike unless costs are given.
        """
        sample = self.options.sample
        if self.options.costs is not None:
            return _checked_costs(self.options.costs, self.total)
        if not self.cells:
            if sample is not None:
                raise UsageError("stages that workers make cannot be measured with a sample: give their costs")
            return [1.0] * self.total
        if sample is None or self.total == 1:
            return stages.estimated_costs(self.cells)
        skeleton, leaves = flatten(self._sample, set())
        tensors = [to_tensor(to_host(leaf)) for leaf in leaves]
        return stages.measured_costs(self.cells, unflatten(skeleton, tensors))

    @property
    def _sample(self) -> tuple[Any, ...]:
        """The arguments that the sample is."""
        sample = self.options.sample
        return sample if isinstance(sample, tuple) else (sample,)

    def compare_sample(self) -> None:
        """Raise UsageError where the stages give another output for the sample than the model."""
        if self.options.check and self.options.sample is not None and self.model is not None:
            compare_sample(self.model, stages.ModelPart(self.cells), self._sample)

    def comparison(self, store: SliceStore) -> Comparison:
        """Return the comparison of the first output; `store` has the weights that the parts have."""
        return Comparison(self.model if self.options.check else None, partial(has_weights, store, self.cells))

    def for_workers(self, parts: Sequence[range]) -> AllStages:
        """Return what workers need to know of these parts of the model."""
        pickled = tuple(map(self.pickled, parts))
        return AllStages(parts=parts, pickled=pickled, total=self.total, seed=self.seed, names=self._names_to_find())

    def cells_of(self, parts: Sequence[range]) -> list[Sequence[stages.Stage]]:
        """Return the stages of each part, none where workers make them."""
        return [self.cells[part.start : part.stop] for part in parts]

    def save(self, store: SliceStore, parts: Sequence[range]) -> None:
        """Save the slices of all parts that this process has."""
        for number, part in enumerate(self.cells_of(parts) if self.cells else ()):
            held = stages.ModelPart(part).slice_values(number, self.total)
            store.save(number, partial(values.write_values, held), held)

    def pickled(self, part: range) -> bytes:
        """Return a part for a worker, without weights."""
        if self.cells:
            return pickling.dump_stages([self.cells[stage] for stage in part])
        makers = () if self.factory else tuple(self.makers[stage] for stage in part)
        return pickling.dump_recipe(pickling.Recipe(part, self.total, self.seed, self.factory, makers))

    def _names_to_find(self) -> list[str] | None:
        """Return the names by which a worker on another host finds the stages; None when the model names them."""
        options = self.options
        if not options.remote or not self.cells or (options.stages is None and options.cut_at is None):
            return None
        known = {id(cell) for _, cell in self.model.cells_and_names()}
        foreign = [stage.name for stage in self.cells if id(stage.cell) not in known]
        if foreign and options.stages is not None:
            raise UsageError(f"stage {foreign[0]} is no cell of the model: a worker on another host cannot make it")
        return None if foreign else [stage.name for stage in self.cells]

    def parts(self, costs: Sequence[float], found: SavedSplit | None) -> tuple[range, ...]:
        """Return the stages of each part: those that were saved, those of `cut_at`, else as even as possible.

        Raises UsageError when the saved slices are not of this model, as far as this process knows it.
        """
        if found is None:
            return self._cut(costs)
        how = "give the same model and split, or another directory"
        if found.total != self.total:
            raise UsageError(f"the saved slices are of a model of {found.total} stages, this has {self.total}: {how}")
        if self.options.split == "batch" and len(found.parts) > 1:
            raise UsageError(f"the saved slices are of a model in {len(found.parts)} parts: go on with split='layers'")
        for part, manifest in zip(found.parts if self.cells else (), found.manifests, strict=False):
            shapes = {each.name: (each.dtype, each.shape) for each in manifest.parameters}
            for name, weight in stages.parameters_of([self.cells[stage] for stage in part]).items():
                here = str(weight.dtype), tuple(weight.shape)
                if shapes.get(name) != here:
                    there = shapes.get(name, "nothing of this name")
                    raise UsageError(f"the saved slices have {there} for {name}, the model {here}: {how}")
        return found.parts

    def _cut(self, costs: Sequence[float]) -> tuple[range, ...]:
        options = self.options
        if options.cut_at is None:
            most = options.num_devices if options.split == "layers" else 1
            return partition(costs, min(most, self.total))
        names = [stage.name for stage in self.cells] or [str(index) for index in range(self.total)]
        parts = cut_before(names, options.cut_at)
        if len(parts) > options.num_devices:
            raise UsageError(f"cut_at makes {len(parts)} parts for {options.num_devices} devices: give as many devices")
        return parts


def given_model(model: Any, options: Options) -> GivenModel:
    """Return the model that was given as a cell, as functions, or by the name of a factory of either."""
    factory = model if isinstance(model, str) else None
    made = pickling.from_factory(factory) if factory is not None else model
    if pickling.are_makers(made):
        if options.stages is not None:
            raise UsageError("stages name cells of a model, and functions that make stages are the stages already")
        return GivenModel(options, makers=tuple(made), factory=factory, seed=ms.get_seed())
    if options.split == "batch":
        cells = stages.whole_model(made)
    else:
        cells = stages.stages_of(made, options.stages, assume_chain=options.cut_at is not None)
    return GivenModel(options, model=made, cells=tuple(cells), is_callers=factory is None)


def _checked_costs(costs: Any, total: int) -> Sequence[float]:
    if not isinstance(costs, Sequence | np.ndarray) or isinstance(costs, str):
        raise UsageError(f"invalid costs {costs!r:.60}: expected a list of numbers, one for each stage")
    if len(costs) != total:
        raise UsageError(f"{len(costs)} costs for {total} stages")
    for cost in costs:
        if not is_number(cost):
            raise UsageError(f"invalid cost {cost!r:.60}: expected a number")
    return list(costs)
