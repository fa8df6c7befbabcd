"""Resuming: every rank takes the same newest step that all can be brought to, and training goes on from there."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

from mindspore.train import Callback

from ms_recover.errors import InputError, MissingInputError, MsRecoverError, UsageError
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.manifest import read_manifest
from ms_recover.model.steps import Step
from ms_recover.training.agreement import set_aside, settle
from ms_recover.training.network import OwnSlice, check_network, compile_network, load_into_network, load_slice
from ms_recover.training.stock import take_stock
from ms_recover.training.world import current_world, device_target

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumption:
    """What `recover_train` did.

    Parameters
    ----------
    step : Step or None
        Step that training resumed from; None when it started afresh.
    path : str or None
        This rank's slice of that step.
    source_rank : int or None
        Rank it was copied from just now, or the first of several it was put together from; None when this rank had
        it.
    epochs : int
        Epochs trained in total, those before the resume included.
    trained : bool
        False when all epochs were done already.
    """

    step: Step | None
    path: str | None
    source_rank: int | None
    epochs: int
    trained: bool


def recover_train(
    model: Any,
    dataset: Any,
    root: str | os.PathLike[str],
    epochs: int,
    callbacks: Any = None,
    sink_mode: bool | None = None,
    *,
    sink_size: int = -1,
    pattern: str | None = None,
    group_info: Iterable[str] = (),
    newest: bool = False,
    tolerate: Iterable[str] = (),
    fresh: Literal["refuse", "start"] = "refuse",
) -> Resumption:
    """Resume training from the newest step that every rank has or can get from a rank with the same slice.

    All ranks call it, with the same arguments, after ``mindspore.communication.init``. They need not share a file
    system: each judges by what it sees under `root`, and they agree. Each proves its slice by the manifest; a rank
    whose slice is gone or damaged copies it from a peer whose file it can reach, as ``recover-ckpt apply`` does, and
    where no peer has a sound one all go back to an older step. Then, in this order: the slice is read, the train
    network is compiled (``model.build`` in sink mode on Ascend), the slice is loaded into it, optimizer state
    included, what the network holds now is compared with the manifest, and ``model.train`` goes on. A slice without
    a manifest rests on its structure only, which the log says.

    It goes on exactly behind the saved step, in the middle of an epoch too: the dataset skips what was consumed, also
    when it shuffles with a fixed seed (``mindspore.dataset.config.set_seed``), and callbacks see the step numbers of a
    run that was never interrupted. Random operations on samples continue exactly only after
    ``mindspore.dataset.config.set_fast_recovery(False)``; random operators in the network, such as dropout, begin
    anew, because slices do not hold their state. In sink mode training resumes at the ends of sinks only.

    A rank's slices that are newer than that step get ``.superseded`` behind their names, and their manifests go with
    them: the training that wrote them is not the one that goes on, and a later recovery must not mix the two.

    Parameters
    ----------
    model : mindspore.train.Model
        Built as for the training that saved the slices.
    dataset : mindspore.dataset.Dataset
        Likewise, not yet used.
    root : str or path
        The tree of slices, ``ckpt_dir{rank}/`` in it.
    epochs : int
        Epochs in total, as in the training that saved the slices.
    callbacks : Callback or list of Callback, optional
        For `Model.train`, such as a `SliceCheckpoint`.
    sink_mode : bool, optional
        Whether the dataset is sunk to the device; by default on Ascend. CPU cannot.
    sink_size : int
        Steps per sink, -1 for the whole dataset; as in the training that saved the slices.
    pattern : str, optional
        Where slices lie, as for `ms_recover.api.scan`.
    group_info : iterable of str
        ``group_info.pb`` files that are not beside the slices, as for `ms_recover.api.scan`.
    newest : bool
        Where a rank has two slices of one step, take the one modified last.
    tolerate : iterable of str
        Patterns of parameters that may differ between ranks with the same slice, beside batch statistics and random
        states; as for `ms_recover.api.plan`.
    fresh : {"refuse", "start"}
        What to do when no rank has any slice of any step: raise, or train from the first epoch.

    Returns
    -------
    Resumption
        What was resumed. When all epochs were done already, the slices are in place, but nothing was loaded.

    Raises
    ------
    MissingInputError
        When there is no slice anywhere, unless `fresh` is ``"start"``.
    UnrecoverableError
        When there are slices, but no step that every rank can be brought to.
    InputError
        When the slice does not fit the network or the dataset; nothing is trained.
    VerificationError
        When ranks of a group hold different contents and nothing says who is right, or the network does not hold what
        the manifest promises; nothing is trained.
    MsRecoverError
        When another rank failed; its log says why.
    """
    if epochs < 1:
        raise UsageError(f"epochs={epochs}: it must be at least 1")
    if fresh not in ("refuse", "start"):
        raise UsageError(f"fresh={fresh!r}: it must be 'refuse' or 'start'")
    world = current_world()
    target = device_target()
    sink = target != "CPU" and (target == "Ascend" if sink_mode is None else sink_mode)
    listed = [] if callbacks is None else list(callbacks) if isinstance(callbacks, Iterable) else [callbacks]

    top, files = os.fspath(root), tuple(group_info)
    stock = world.together("taking stock", lambda: take_stock(top, world, pattern, files, newest, tolerate))
    found = settle(world, stock, top)
    if found is None and fresh == "refuse":
        raise MissingInputError(
            f"no rank has a slice under {top}: name the folder that holds ckpt_dir{{rank}}/, "
            "or train from the start with fresh='start'"
        )
    if found is None:
        _log.warning("rank %d: no slices under %s, training from the start", world.rank, top)
        model.train(epochs, dataset, callbacks=listed, dataset_sink_mode=sink, sink_size=sink_size)
        return Resumption(None, None, None, epochs, True)
    own, source_rank = found
    step = own.step
    batch_num = sink_size if sink and sink_size > 0 else dataset.get_dataset_size()
    done = completed_steps(own, batch_num, sink)
    resumed = Resumption(step, own.path, source_rank, epochs, done < epochs * batch_num)
    if not resumed.trained:
        _log.warning("%s: all %d epochs are done, nothing is left to train", own, epochs)
        return resumed

    def prepare() -> None:
        parameters = load_slice(own)
        if sink:  # the device queue begins to fill while compiling, from where the dataset stands
            dataset.set_init_step(done)
        compile_network(model, dataset, epochs, sink, sink_size)
        load_into_network(model.train_network, parameters, own)
        _prove(model.train_network, own)
        dataset.set_init_step(done)

    world.together(f"loading the slice of step {step}", prepare)
    world.together("setting newer slices aside", lambda: set_aside(stock, step, pattern))
    _log.info("%s: training goes on behind %d steps", own, done)
    model.train(
        epochs,
        dataset,
        callbacks=[_StepCounter(done), *listed],
        dataset_sink_mode=sink,
        sink_size=sink_size,
        initial_epoch=done // batch_num,
    )
    dataset.set_init_step(0)
    return resumed


def _prove(network: Any, own: OwnSlice) -> None:
    """Compare what was loaded with the slice's manifest, if it has one."""
    try:
        manifest = read_manifest(own.path + MANIFEST_SUFFIX)
    except MissingInputError:
        _log.warning("%s: it has no manifest, so what was loaded rests on the structure of the slice only", own)
    except MsRecoverError as error:
        _log.warning("%s: what was loaded rests on the structure of the slice only: %s", own, error)
    else:
        count = check_network(network, manifest, own)
        _log.info("%s: %d parameters of the network have the digests of the manifest", own, count)


class _StepCounter(Callback):  # type: ignore[misc]
    """Let the step number go on where the saved run was; `Model.train` would begin at 0."""

    def __init__(self, done: int) -> None:
        super().__init__()
        self._done = done

    def on_train_begin(self, run_context: Any) -> None:
        """Set the number of steps done."""
        run_context.original_args().cur_step_num = self._done


def completed_steps(own: OwnSlice, batch_num: int, sink: bool) -> int:
    """Return how many steps had been trained when a slice was saved.

    Parameters
    ----------
    own : OwnSlice
        The slice.
    batch_num : int
        Steps per epoch as `Model.train` counts them: the dataset's size, or the sink size.
    sink : bool
        Whether the dataset is sunk, so that training can only begin with a whole epoch.

    Raises
    ------
    InputError
        When the slice cannot come from a training with this dataset.
    """
    epoch, step = own.step.epoch, own.step.step
    if epoch < 1 or not 1 <= step <= batch_num:
        raise InputError(
            f"{own}: an epoch of this dataset has {batch_num} steps, so the slice is not from a training with it; "
            "give the dataset, batch size and sink size the slice was saved with"
        )
    if sink and step != batch_num:
        raise InputError(
            f"{own}: it was saved in the middle of an epoch of {batch_num} steps, where sink mode cannot resume; "
            "resume without sink mode, or with the sink size the slice was saved with"
        )
    return (epoch - 1) * batch_num + step
