"""What whole parameters are read from: how each is put together, and which cannot be had."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from ms_recover.model.compose import ComposeAction, MissingRegion
from ms_recover.model.plan import RejectedStep
from ms_recover.model.reshard import ReshardPlan
from ms_recover.model.steps import Step
from ms_recover.planning.reshard.actions import action_of, source_names
from ms_recover.planning.supply.whole import EVERY_PARAMETER


@dataclass(frozen=True, kw_only=True, eq=False)
class WholeSource:
    """Where whole parameters come from.

    Parameters
    ----------
    root : str
        The tree or folder, or its URL without secrets.
    step : Step or None
        None where nothing states it.
    names : tuple of str
        The parameters, in order, those that cannot be had among them.
    action : ComposeAction
        How those that can be had are put together.
    described : mapping of str to (str, tuple of int)
        Type and whole shape of those of which they are known.
    missing : mapping of str to tuple of MissingRegion
        Those that cannot be had, and what is lost of them.
    advice : str
        What to do about these.
    names_there : mapping of str to str
        The names of parameters in the files, where they have others.
    lost, own, rejected_steps
        As for `FullParameters`.
    """

    root: str
    step: Step | None
    names: tuple[str, ...]
    action: ComposeAction
    described: Mapping[str, tuple[str, tuple[int, ...]]]
    missing: Mapping[str, tuple[MissingRegion, ...]]
    advice: str
    names_there: Mapping[str, str] = field(default_factory=dict)
    lost: tuple[MissingRegion, ...] = ()
    own: tuple[str, ...] = ()
    rejected_steps: tuple[RejectedStep, ...] = ()

    @property
    def title(self) -> str:
        """Step and root, for messages."""
        return self.root if self.step is None else f"step {self.step} of {self.root}"


def source_of_slices(plan: ReshardPlan, wanted: Iterable[str] | None) -> WholeSource:
    """Return how the parameters of a plan for one whole checkpoint, or those that are wanted, are put together."""
    (file,) = plan.files
    lost = tuple(one for one in plan.missing if one.parameter.startswith(EVERY_PARAMETER))
    missing: dict[str, tuple[MissingRegion, ...]] = {}
    for one in plan.missing:
        if one not in lost:
            missing[one.parameter] = (*missing.get(one.parameter, ()), one)
    known = {one.name: plan.transfers[one.transfer] for one in plan.parameters}
    names = tuple(wanted) if wanted is not None else (*known, *(name for name in missing if name not in known))
    return WholeSource(
        root=plan.root,
        step=plan.step,
        names=names,
        action=action_of(plan, file),
        described={name: (one.dtype, one.shape) for name, one in known.items()},
        missing={name: missing.get(name, lost) for name in names if name in missing or name not in known},
        advice=(
            f"bring back a slice that holds it (recover-ckpt plan {plan.root} names the ranks), or take another step "
            "(step=...)"
        ),
        names_there=source_names(plan),
        lost=lost,
        own=tuple(name for name in plan.own if name in names),
        rejected_steps=plan.rejected_steps,
    )
