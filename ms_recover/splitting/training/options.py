"""The options of training through a splitter; invalid ones raise UsageError."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ms_recover.arguments import is_number, is_whole
from ms_recover.errors import UsageError
from ms_recover.splitting.options import Options, Split

Reduction = Literal["mean", "sum"]


@dataclass(frozen=True, kw_only=True)
class TrainingOptions:
    """How to train; see `ms_recover.splitting.ModelSplitter`."""

    split: Split
    loss_fn: Callable[..., Any]
    optimizer: Callable[[list[Any]], Any]
    snapshot_steps: int = 10
    recompute: bool = False
    save_steps: int | None = None
    clip_norm: float | None = None

    def __post_init__(self) -> None:
        for name in ("loss_fn", "optimizer"):
            if not callable(getattr(self, name)):
                raise UsageError(f"invalid {name} {getattr(self, name)!r:.60}: expected a function or a cell")
        if not isinstance(self.optimizer, type) and hasattr(self.optimizer, "parameters_and_names"):
            raise UsageError(
                "optimizer has to be a function that makes one from a part's weights, such as lambda weights: "
                "nn.Adam(weights, 1e-3): every part steps in its own process"
            )
        for name, steps in (("snapshot_steps", self.snapshot_steps), ("save_steps", self.save_steps)):
            if not is_whole(steps, 1, int) and not (name == "save_steps" and steps is None):
                raise UsageError(f"invalid {name} {steps!r}: expected a whole number from 1")
        if self.clip_norm is not None and not (is_number(self.clip_norm) and 0 < np.float32(self.clip_norm) < np.inf):
            raise UsageError(f"invalid clip_norm {self.clip_norm!r:.60}: expected a number above 0")
        if not isinstance(self.recompute, bool):
            raise UsageError(f"invalid recompute {self.recompute!r}: expected True or False")
        if self.reduction == "mean" and self._ignored is not None and getattr(self.loss_fn, "weight", None) is not None:
            raise UsageError(
                f"{type(self.loss_fn).__name__} with class weights divides by the weights of a chunk, not by its rows: "
                'the chunks do not add up to the batch; use reduction="sum" or a loss of your own'
            )

    @property
    def _ignored(self) -> int | None:
        """The target that the loss leaves out; None where it knows of none."""
        found = getattr(self.loss_fn, "ignore_index", None)
        return found if isinstance(found, int) else None

    def check_targets(self, leaves: Sequence[Any]) -> None:
        """Refuse targets that the loss leaves out: the mean of a chunk would be over fewer rows."""
        if self.reduction == "sum" or self._ignored is None:
            return
        for leaf in leaves:
            if str(leaf.dtype).lower().startswith("int") and bool((leaf == self._ignored).any()):
                raise UsageError(
                    f"the batch has targets {self._ignored}, which {type(self.loss_fn).__name__} leaves out: the means "
                    'of chunks would not add up to that of the batch; use reduction="sum", or leave those rows out'
                )

    @property
    def reduction(self) -> Reduction:
        """How the loss of a chunk comes from its rows; a function is taken to return their mean."""
        found = getattr(self.loss_fn, "reduction", None)
        if found is None:  # most losses of MindSpore have two switches instead
            mean = "mean" if getattr(self.loss_fn, "average", True) else "sum"
            found = mean if getattr(self.loss_fn, "reduce", True) else "none"
        if found not in ("mean", "sum"):
            raise UsageError(f"the loss has reduction {found!r}: training needs one number, make it 'mean' or 'sum'")
        return "sum" if found == "sum" else "mean"


def training_options(options: Options) -> TrainingOptions | None:
    """Return how to train, or None when neither a loss nor an optimizer is given."""
    if options.save_steps is not None and options.directory is None:
        raise UsageError("save_steps needs a directory that stays: give one")
    if options.loss_fn is None and options.optimizer is None:
        if options.clip_norm is not None:
            raise UsageError("clip_norm clips gradients of a training: give loss_fn and optimizer, too")
        return None
    if options.loss_fn is None:
        raise UsageError("training needs loss_fn too, beside optimizer")
    if options.optimizer is None:
        raise UsageError("training needs optimizer too, beside loss_fn")
    return TrainingOptions(
        split=options.split,
        loss_fn=options.loss_fn,
        optimizer=options.optimizer,
        snapshot_steps=options.snapshot_steps,
        recompute=options.recompute,
        save_steps=options.save_steps,
        clip_norm=options.clip_norm,
    )


def check_trainable(parts: Sequence[Sequence[Any]], options: Options) -> None:
    """Refuse what cannot be trained; `parts` are the stages of each part, none where workers make them."""
    if options.remote:
        raise UsageError("training with workers on other hosts is not supported: make a splitter with remote=0")
    if options.split == "layers" and options.num_devices > len(parts):
        raise UsageError(
            f"{options.num_devices} devices for {len(parts)} stages: in training every device holds a part of its own, "
            f'so give at most {len(parts)}, or split="batch"'
        )
    owners: dict[int, int] = {}
    for number, stages in enumerate(parts):
        for stage in stages:
            for name, parameter in stage.parameters.items():
                first = owners.setdefault(id(parameter), number)
                if first != number and parameter.requires_grad:
                    raise UsageError(
                        f"{name} is used by parts {first} and {number}: a weight of two parts cannot be trained; use "
                        'fewer devices or other costs, so that its stages are in one part, or split="batch"'
                    )
    if any(parts) and not any(
        parameter.requires_grad for stages in parts for stage in stages for parameter in stage.parameters.values()
    ):
        raise UsageError("the model has no weights to train: every parameter has requires_grad=False")
