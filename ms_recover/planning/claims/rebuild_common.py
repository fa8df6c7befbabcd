"""A lost ``common.json``, rebuilt from the iteration, from the files and from those of other iterations."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from ms_recover.model.shard_metadata import CommonInfo

REQUIRED = ("epoch_num", "step_num", "global_step", "global_batch_size")
"""MindFormers computes with these when it resumes; it takes null for the others."""

MEMBERS = ("epoch_num", "step_num", "global_step", "loss_scale", "global_batch_size", "ckpt_status")
"""The members that every version of MindFormers reads."""

_LARGEST = 1 << 62


@dataclass(frozen=True, kw_only=True, slots=True)
class RebuiltCommon:
    """A ``common.json``, or why there is none."""

    common: CommonInfo | None
    """None where a member that MindFormers requires is not known."""
    sources: tuple[tuple[str, str], ...] = ()
    """Each member that is known, and where its value comes from."""
    assumed: tuple[str, ...] = ()
    """Those of them that other iterations have and that nothing proves for this one."""
    unknown: tuple[str, ...] = ()
    """Members that are not known: null where MindFormers accepts that."""

    @property
    def problem(self) -> str:
        """Why it cannot be rebuilt; empty when it was."""
        if self.common:
            return ""
        missing = " and ".join(name for name in self.unknown if name in REQUIRED)
        return f"no file and no other iteration proves its {missing}, and MindFormers does not resume without"


def rebuild_common(
    iteration: int, others: Mapping[int, CommonInfo], *, global_step: int | None = None
) -> RebuiltCommon:
    """Rebuild the ``common.json`` of an iteration.

    Parameters
    ----------
    iteration
        The iteration, which its directory names.
    others
        The ``common.json`` of other iterations of the same job, by iteration.
    global_step
        The value of the parameter ``global_step`` in the ``opt`` files, where they agree on it.
    """
    sound = {at: info for at, info in sorted(others.items()) if info.step_num == at}
    values: dict[str, float | None] = {"step_num": iteration}
    sources = {"step_num": "the name of the directory"}
    assumed: list[str] = []
    if global_step is not None:
        values["global_step"], sources["global_step"] = global_step, "the opt files"
    elif sound and all(info.global_step == at for at, info in sound.items()):
        values["global_step"], sources["global_step"] = iteration, f"the iteration, as in {_named(sound)}"
    epochs = _epochs(iteration, sound)  # more than one is possible where few iterations are known
    if len(epochs) == 1:
        values["epoch_num"], sources["epoch_num"] = epochs[0], f"the steps per epoch, by {_named(sound)}"
    elif (steps := _whole_epochs(sound)) and iteration % steps == 0:
        values["epoch_num"] = iteration // steps
        sources["epoch_num"] = f"{steps} steps per epoch, as in {_named(sound)}"
        assumed.append("epoch_num")
    for name in ("epoch_num", "global_batch_size", "loss_scale"):
        known = {at: value for at, info in sound.items() if (value := getattr(info, name)) is not None}
        if name not in values and known and (len(set(known.values())) == 1 or name == "loss_scale"):
            near = max((at for at in known if at < iteration), default=min(known))
            values[name] = known[near]
            sources[name] = _named(known) if len(set(known.values())) == 1 else f"iteration {near}"
            assumed += [name] * (name != "global_batch_size")
    samples = {at: info.consumed_samples for at, info in sound.items() if info.consumed_samples is not None}
    size = values.get("global_batch_size")
    if samples and size and all(count == at * size for at, count in samples.items()):
        values["consumed_samples"] = iteration * int(size)
        sources["consumed_samples"] = f"the iteration and global_batch_size, as in {_named(samples)}"
    for name in ("loss_scale", "consumed_samples", "ckpt_status"):
        if sound and all(getattr(info, name) is None for info in sound.values()):
            values[name], sources[name] = None, f"null, as in {_named(sound)}"
    members = max((info.members for info in sound.values()), key=len, default=()) or MEMBERS
    unknown = tuple(name for name in members if name not in values)
    made = None
    if not any(name in unknown for name in REQUIRED) and {*REQUIRED} <= {*members}:
        made = CommonInfo(**values, members=members)  # type: ignore[arg-type]
    return RebuiltCommon(
        common=made,
        sources=tuple((name, sources[name]) for name in members if name in sources),
        assumed=tuple(assumed),
        unknown=unknown,
    )


def _epochs(iteration: int, others: Mapping[int, CommonInfo]) -> range:
    """Return the epochs that the iteration may be of, by the steps per epoch that fit all other iterations."""
    least, most = 1, _LARGEST
    for at, info in others.items():
        if not info.epoch_num or at < 1:
            return range(0)
        least = max(least, -(-at // info.epoch_num))
        if info.epoch_num > 1:
            most = min(most, (at - 1) // (info.epoch_num - 1))
    if least > most or not others or iteration < 1:
        return range(0)
    return range(-(-iteration // most), -(-iteration // least) + 1)


def _whole_epochs(others: Mapping[int, CommonInfo]) -> int:
    """Return the steps per epoch where several iterations were all saved at the end of an epoch, else 0."""
    steps = {at // one.epoch_num if one.epoch_num and at % one.epoch_num == 0 else 0 for at, one in others.items()}
    return steps.pop() if len(steps) == 1 and len({one.epoch_num for one in others.values()}) > 1 else 0


def _named(iterations: Mapping[int, object]) -> str:
    numbers = sorted(iterations)
    shown = ", ".join(map(str, numbers[:4]))
    return f"iteration{'s' * (len(numbers) > 1)} {shown}{' ...' * (len(numbers) > 4)}"
