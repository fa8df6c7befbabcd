"""What may keep a random program from going on exactly, and the verdict on one that was resumed.

Pure. Each cause follows from what was drawn, never from a message; a message is right when it names a cause that there
is. A training without any cause must go on to the bit and without a warning.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from typing import Literal

from tests.support.random_programs import (
    ENDLESS,
    IN_SAVES,
    OUTLIVING,
    READERS,
    WITHOUT_STATE,
    Program,
)

Effect = Literal["stops", "differs", "fails", "noted", "unseen"]
"""Nothing may be trained; the training goes on exactly, or a message says why not; the same, and behind the message it
may fail; it goes on exactly, and a message that says so is deserved; it goes on otherwise, and docs/resume.md says that
this is not seen."""


@dataclass(frozen=True)
class Cause:
    """Something that may keep a program from going on exactly."""

    name: str
    effect: Effect
    says: str
    """What a message that names it must match, as a regular expression without regard to case."""
    first: Literal["samples", "values", "either"] = "values"
    """What differs first where it keeps a training from going on exactly."""

    def is_named(self, text: str) -> bool:
        """Whether a message names it."""
        return re.search(self.says, text, re.IGNORECASE) is not None


SAMPLES = r"sample|batch|dataset|shuffl|seed|fast_recovery"
TOUCHED = "touched slices of another training"
NO_REPEAT = "the undisturbed run is not the same each time"
PARAMETERS = r"slice lacks|does not fit|not used|parameter|shape"
ALWAYS = r"state_dict|no slices|set aside|superseded|given up|removed|brought back|left unfinished|uncommitted"
"""What may always be said: the line on callbacks without a state, what a start does with the slices that an interrupted
one has left, and that there are none, or nothing to train."""

_OF_CHANGES = {
    "batch halved": Cause("batch halved", "stops", r"steps|batch|dataset|sample"),
    "batch doubled": Cause("batch doubled", "stops", r"steps|batch|dataset|sample"),
    "dataset longer": Cause("dataset longer", "stops", r"steps|dataset|sample"),
    "dataset shorter": Cause("dataset shorter", "stops", r"steps|dataset|sample"),
    "optimizer": Cause("optimizer", "stops", PARAMETERS),
    "wider": Cause("wider", "stops", PARAMETERS),
    "frozen": Cause("frozen", "differs", rf"{PARAMETERS}|frozen|requires_grad"),
    "content": Cause("content", "differs", SAMPLES, "samples"),
    "seed": Cause("seed", "differs", r"seed|sample", "samples"),
    "rate": Cause("rate", "differs", r"learning.?rate|\blr\b|schedule"),
    "decay": Cause("decay", "differs", r"decay"),
    "betas": Cause("betas", "differs", r"beta|momentum"),
    "loss": Cause("loss", "differs", r"loss|MAELoss|L1Loss|MSELoss"),
    "level": Cause("level", "differs", r"amp|level|float16|O0|O3|auto|cast|dtype|type"),
    "newest flipped": Cause(
        "newest flipped", "noted", r"damage|digest|differ|aside|superseded|passed|sound|contents|proven|newe"
    ),
    "newest gone": Cause("newest gone", "noted", r"missing|gone|aside|superseded|newe|older|lost|lack"),
}
_OF_NETWORKS = {
    "dropout": Cause("dropout", "differs", r"dropout|random"),
    "noise": Cause("noise", "differs", r"random|normal|seed"),
    "number": Cause("number", "differs", r"\bcalls\b|attribute|Python number"),
    "tensor": Cause("tensor", "differs", r"\bplain\b|attribute|plain tensor"),
    "held": Cause("held", "differs", r"\bheld\b|attribute|no cell"),
    "quiet buffer": Cause("quiet buffer", "differs", r"buffer"),
}
_OF_CALLBACKS = {
    "TensorNoise": Cause("TensorNoise", "differs", r"random|seed|operator"),
    "BeginWriter": Cause("BeginWriter", "differs", r"BeginWriter|on_train_begin"),
    "BeginRate": Cause("BeginRate", "differs", r"BeginRate|on_train_begin"),
    "BackupAndRestore": Cause("BackupAndRestore", "differs", r"BackupAndRestore|on_train_begin"),
    **{name: Cause(name, "differs", name) for name in WITHOUT_STATE},
    "ClosureCount": Cause("ClosureCount", "differs", r"LambdaCallback"),
    "SchedulerObject": Cause("SchedulerObject", "differs", r"LearningRateScheduler"),
    "Freezer": Cause("Freezer", "differs", r"Freezer|requires_grad|frozen|froze"),
}


def causes_of(program: Program) -> list[Cause]:
    """Return what may keep the program from going on exactly, and what deserves a word though it does."""
    return [*_of_samples(program), *_of_training(program), *_of_folder(program)]


def _of_samples(program: Program) -> Iterator[Cause]:
    again = program.retry in ("model", "same")
    if program.change == "loss" and program.trainer == "loop" and not program.gives_loss:
        yield replace(_OF_CHANGES["loss"], effect="unseen")
    elif program.change in _OF_CHANGES:
        yield _OF_CHANGES[program.change]
    if program.shuffle == "unseeded":
        yield Cause("unseeded", "differs", r"seed|shuffl|sample", "samples")
    if program.fast_recovery and "flip" in program.operations:
        yield Cause("flip", "differs", r"fast_recovery|random|sample", "samples")
    kept = program.place if program.place != "none" else program.source if program.source in ENDLESS else None
    if kept is not None:
        outlives = again and (program.retry == "same" or kept in OUTLIVING)
        anew = program.trainer == "loop" and program.iterators == "epoch"  # which replays no epoch before
        if program.fast_recovery or outlives or anew or kept == "disk":
            yield Cause(f"samples from {kept}", "differs", SAMPLES + r"|generator|own code|random|Python", "samples")
        if kept in ("numpy", "python") and _draws_elsewhere(program):
            yield Cause(
                f"samples and callbacks from {kept}", "differs", r"generator|random|draw|Python|numpy", "either"
            )
    if program.fast_recovery and program.source in READERS and program.shuffle != "none":
        yield Cause("read once more", "noted", r"fast.recovery")
        if not {"map", "per batch"}.isdisjoint(program.operations):
            yield Cause("shuffled reader behind Python code", "differs", SAMPLES, "samples")
    if program.trainer == "loop" and not program.proves:
        yield Cause("samples not proven", "noted", r"not proven|sample|prove")


def _draws_elsewhere(program: Program) -> bool:
    return not {"NumpyNoise", "PythonNoise"}.isdisjoint(program.callbacks)


def _of_training(program: Program) -> Iterator[Cause]:
    if program.network in _OF_NETWORKS:
        yield _OF_NETWORKS[program.network]
    loop_in_graph = program.trainer == "loop" and program.mode == "graph"
    if (program.jit or loop_in_graph) and program.network in ("buffer", "quiet buffer"):
        yield Cause("buffer that is compiled", "differs", r"buffer")
    if program.network == "gan" and not program.renames:
        yield Cause("gan", "differs", r"update_parameters_name|same name|names? .*twice|more than one")
    if program.step == "dynamic":
        yield Cause("dynamic", "differs", r"scaler|scale_value|attribute|no cell")
    if program.step == "accumulated":
        yield Cause("accumulated", "noted", r"has not updated the weights|accumulated")
    if program.optimizer == "RMSProp":
        yield Cause("RMSProp", "differs", r"RMSProp")
    if _begins_anew_in_place(program):
        yield Cause("begins anew with what an attempt left", "fails", r"saved nothing", "either")
    if program.change == "more epochs" and program.schedule == "list":
        yield Cause("longer list", "differs", rf"learning.?rate|{PARAMETERS}")
    for name in program.callbacks:
        if name in _OF_CALLBACKS:
            yield _OF_CALLBACKS[name]


def _begins_anew_in_place(program: Program) -> bool:
    """Whether the same process may begin anew behind an attempt that died before its first save, with what that left.

    A new model has left nothing behind, but code that makes samples may; a source fails while it is read ahead. Where
    gradients are accumulated the first save waits for an update.
    """
    first = (program.save_steps or program.epoch_steps) + (program.step == "accumulated")
    dies = any(kind == "source" or at <= first for kind, at in program.crashes)
    code = program.trainer == "loop" or program.place != "none" or program.source in ENDLESS
    return program.begins == "recover" and dies and (program.retry == "same" or (program.retry == "model" and code))


def _of_folder(program: Program) -> Iterator[Cause]:
    if program.neighbour != "none":
        yield Cause(f"neighbour: {program.neighbour}", "noted", r"experiment|prefix|\brun\b|runs|slices of")
    if any(kind in IN_SAVES for kind, _ in program.crashes):
        yield Cause(
            "killed in a save",
            "noted",
            r"aside|remov|unfinished|uncommitted|nothing is left to train|half|left|manifest",
        )


def marks_of(program: Program) -> list[str]:
    """Return what is out of the ordinary about a program, for a table of what went wrong by what."""
    marks = [cause.name for cause in causes_of(program) if cause.effect != "noted"]
    if program.source in ("text", "csv", "tfrecord", "mindrecord") and program.shuffle != "none":
        marks.append(f"shuffled {program.source}")
    if program.network == "buffer":
        marks.append("buffer")
    if program.neighbour != "none":
        marks.append(f"neighbour {program.neighbour}")
    if program.begins == "later":
        marks.append("initial_epoch")
    if program.trainer == "loop":
        marks.append(f"loop, iterators: {program.iterators}")
    if program.jit:
        marks.append("jit")
    if program.change == "more epochs":
        marks.append("more epochs")
    if program.retry != "process":
        marks.append(f"retry {program.retry}")
    marks += [f"crash {kind}" for kind in dict.fromkeys(kind for kind, _ in program.crashes) if kind not in _PLAIN]
    return list(dict.fromkeys(marks))


_PLAIN = ("raise first", "raise last", "stop", "kill", "source")


@dataclass(frozen=True)
class Seen:
    """What came of a resumed program."""

    equal: bool
    """Whether every step of every leg, and what is left at the end, is that of the undisturbed run."""
    refusal: str | None = None
    """The text of the error with which the last resume was refused."""
    failure: str | None = None
    """Any other error of the last resume."""
    warnings: tuple[str, ...] = ()
    """What was said at WARNING in any leg."""
    headlines: tuple[str, ...] = ()
    """The lines that resumes print."""
    trained: bool = False
    """Whether the last leg trained a step."""
    first: str | None = None
    """The kind of the first event of a leg that differs: ``batch``, ``values``, ``loss``, ``begin`` or ``end``."""
    repeatable: bool = True
    """Whether the first leg, which resumes nothing, is equal to the undisturbed run."""
    earlier: bool = False
    """Whether a leg before the last, before the change, differs."""
    repeats: bool = True
    """Whether the undisturbed run has the same bits each time; False where several of it differ among themselves."""
    resumed: bool = True
    """Whether any leg after the first began."""
    whole: bool = True
    """Whether each resume began at the beginning of an epoch."""
    lost: str | None = None
    """What the resume passed over in silence: slices of its own, or bytes of another training."""
    sound: bool = True
    """Whether a committed slice of the program's own lay there at the last resume."""


Kind = Literal["exact", "refused", "warned", "silent", "not judged"]


@dataclass(frozen=True)
class Verdict:
    """The verdict on a resumed program."""

    kind: Kind
    why: str
    """The cause that a message named, or the problem."""
    undeserved: tuple[str, ...] = ()
    """Warnings of an exact program that name nothing that there is, or a refusal that does not."""

    @property
    def is_allowed(self) -> bool:
        """Whether a program may end so."""
        return self.kind != "silent" and not self.undeserved


def verdict_of(program: Program, seen: Seen) -> Verdict:
    """Return the verdict on a resumed program."""
    causes = causes_of(program)
    serious = [cause for cause in causes if cause.effect != "noted"]
    effective = [cause for cause in serious if _may_be(cause, seen.first)]
    if seen.lost is not None and seen.lost.startswith(TOUCHED):
        return Verdict("silent", seen.lost)
    if seen.failure is not None:  # such as a list of learning rates that has come to its end
        named = _named([cause for cause in serious if cause.effect == "fails"], seen.warnings)
        why = ", ".join(named) or f"failed: {seen.failure.splitlines()[0]}"
        return Verdict("warned" if named else "silent", why)
    if seen.refusal is not None:
        return _of_refusal(serious, seen)
    if not seen.repeatable:
        return _of_unrepeatable(program, effective, seen)
    stops = [cause.name for cause in effective if cause.effect == "stops"]
    if stops and seen.trained and not seen.equal:
        return Verdict("silent", f"trained on with {', '.join(stops)}")
    words = (*seen.warnings, *seen.headlines)
    if seen.equal and seen.lost is None:
        return Verdict("exact", "", tuple(line for line in seen.warnings if not _is_deserved(line, causes)))
    named = _named(causes if seen.equal else effective, words)
    if named:
        return Verdict("warned", ", ".join(named))
    if seen.lost is None and not seen.repeats and not _must_be_named(effective, seen):
        return Verdict("not judged", NO_REPEAT)
    if seen.lost is None and not seen.sound and not seen.earlier and program.change in _OF_CHANGES:
        return Verdict("not judged", "no slice is left that could show the change")
    unseen = [cause.name for cause in effective if cause.effect == "unseen"]
    if seen.lost is None and unseen and not seen.earlier:
        return Verdict("not judged", f"cannot be seen: {', '.join(unseen)}")
    return Verdict("silent", seen.lost or ", ".join(marks_of(program)) or "nothing out of the ordinary")


def _may_be(cause: Cause, first: str | None) -> bool:
    """Whether a cause explains what differs first; samples are looked at before what is made of them."""
    explained = {"batch": "samples", "values": "values", "loss": "values"}.get(first or "", "either")
    return "either" in (explained, cause.first) or explained == cause.first


def _of_refusal(causes: Collection[Cause], seen: Seen) -> Verdict:
    text = seen.refusal or ""
    if seen.trained:
        return Verdict("silent", f"refused after it had trained: {text}")
    if not seen.sound and re.search(r"no rank has a slice|no slice|without a slice|every slice", text):
        return Verdict("not judged", "no slice is left")
    named = _named(causes, [text])
    return Verdict("refused", ", ".join(named) or "without a cause", () if named else (text,))


def _of_unrepeatable(program: Program, effective: Collection[Cause], seen: Seen) -> Verdict:
    named = _named(effective, [*seen.warnings, *seen.headlines])
    if named:
        return Verdict("warned", ", ".join(named))
    if seen.whole and any(cause.name == "unseeded" for cause in effective):
        return Verdict("not judged", "each run has another order")
    if seen.lost is None and not seen.repeats and not _must_be_named(effective, seen):
        return Verdict("not judged", NO_REPEAT)
    return Verdict("silent", ", ".join(marks_of(program)) or "two runs that nothing disturbs differ")


def _must_be_named(effective: Collection[Cause], seen: Seen) -> bool:
    """Whether a message must say why no two runs are the same: a resume sees a dataset that is shuffled unseeded."""
    return seen.resumed and any(cause.name == "unseeded" for cause in effective)


def _named(causes: Collection[Cause], texts: Collection[str]) -> list[str]:
    return [cause.name for cause in causes if any(cause.is_named(text) for text in texts)]


def _is_deserved(line: str, causes: Collection[Cause]) -> bool:
    """Whether a warning names something that there is: a cause, or what the interrupted training has left."""
    return any(cause.is_named(line) for cause in causes) or re.search(ALWAYS, line, re.IGNORECASE) is not None
