"""Carry out a reshard: each file of the output in a thread, whole under its name or not there at all."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from itertools import zip_longest

from ms_recover.errors import MsRecoverError, UnrecoverableError, UsageError, VerificationError
from ms_recover.execution.context import ActionContext
from ms_recover.execution.destination import LocalDestination, remove_leftovers
from ms_recover.execution.image_writer import write_image
from ms_recover.execution.lock import lock_tree
from ms_recover.execution.manifests import NamedSlice, manifest_in
from ms_recover.execution.piece_reader import PieceReader
from ms_recover.execution.problems import Problem, attempted
from ms_recover.execution.reshard_check import compare_back
from ms_recover.execution.reshard_documents import document_bytes, foresee_documents, write_documents
from ms_recover.execution.reshard_output import check_output, foresee_output, prepare_output
from ms_recover.execution.writable import free_bytes
from ms_recover.file_names import MANIFEST_SUFFIX
from ms_recover.formats.image import ckpt_image, default_pieces, safetensors_image
from ms_recover.model.compose import ComposeAction
from ms_recover.model.manifest import Digests
from ms_recover.model.progress import expect_bytes
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.reshard import ReshardOutcome, ReshardPlan, ReshardResult, TargetFile, written_parameters
from ms_recover.model.slices import SliceHeader, SliceImage
from ms_recover.planning.reshard.actions import action_of, source_names
from ms_recover.stores.atomic import AtomicFile
from ms_recover.stores.digest import digest_of
from ms_recover.stores.directories import DirectorySyncs
from ms_recover.stores.local import StoppedError
from ms_recover.stores.store import Store
from ms_recover.stores.threads import in_threads
from ms_recover.stores.urls import open_store

_log = logging.getLogger(__name__)
_METADATA = (("format", "ms"),)
_MOST_TOGETHER = 16
"""Files that are open for writing at a time in one thread."""
_SYNCED_TOGETHER = 4
"""Of these, files that wait for the device at a time: a file system then makes one commit for several."""


@dataclass(frozen=True, kw_only=True)
class Written:
    """A file that is there: what became of it, and the digests of its parameters in the order of the plan's list."""

    result: ReshardResult
    digests: Mapping[str, str]
    exit_code: int = 0


def run_reshard(
    plan: ReshardPlan,
    *,
    jobs: int,
    verify: bool,
    partial: bool,
    compare: bool,
    progress: Callable[[int], None] | None,
) -> ReshardOutcome:
    """Write the files of a plan; parameters, outcome and errors are those of `ms_recover.verbs.reshard.reshard`."""
    documents, files = _what_is_written(plan, partial=partial)
    prepare_output(plan, documents)
    with open_store(plan.root) as origin, lock_tree(plan.output):
        check_output(plan, documents)
        run = _Run(plan, origin, verify, progress)
        written = run.all_together(files, jobs)
        codes = {end.exit_code for end in written}
        errors = [str(error) for error in run.sync(jobs)]
        codes |= {MsRecoverError.exit_code} if errors else set()
        names: list[str] = []
        compared = (0, 0)
        if codes <= {0, VerificationError.exit_code} and not errors and all(_is_there(end) for end in written):
            names = write_documents(plan, documents, jobs)
            for folder in sorted({os.path.dirname(os.path.join(plan.output, file.target)) for file in plan.files}):
                remove_leftovers(folder)
            if compare:
                digests = {end.result.target: end.digests for end in written}
                compared, wrong = compare_back(plan, origin, digests, jobs=jobs)
                errors += wrong
                codes |= {VerificationError.exit_code} if wrong else set()
    outcome = _outcome(plan, written, names, errors, codes)
    return replace(outcome, compared=compared[0], compared_bytes=compared[1])


def foresee_reshard(
    plan: ReshardPlan, *, jobs: int, partial: bool, progress: Callable[[int], None] | None
) -> ReshardOutcome:
    """Do what `run_reshard` does but writing: sources are read, and files put together in memory, window by window."""
    documents, files = _what_is_written(plan, partial=partial)
    foresee_output(plan, documents)
    with open_store(plan.root) as origin, ExitStack() as lock:
        if os.path.isdir(plan.output):
            lock.enter_context(lock_tree(plan.output))
        run = _Run(plan, origin, True, progress, dry_run=True)
        written = run.all_together(files, jobs)
    codes = {end.exit_code for end in written}
    errors, names = [], []
    room = free_bytes(plan.output)
    size = sum(end.result.bytes for end in written)
    if room is not None and size > room:
        errors.append(f"{plan.output} has {room:,} bytes free, and {size:,} have to go there: free some space")
        codes.add(MsRecoverError.exit_code)
    elif codes <= {0, VerificationError.exit_code} and all(_is_there(end) for end in written):
        names = foresee_documents(plan, documents)
    return replace(_outcome(plan, written, names, errors, codes), dry_run=True)


def _what_is_written(plan: ReshardPlan, *, partial: bool) -> tuple[Mapping[str, bytes], list[TargetFile]]:
    """Return documents and files of a plan, once it is known that they can be written; errors as for `run_reshard`."""
    if not plan.complete and not partial:
        raise UnrecoverableError(f"{plan.root} cannot be cut anew whole by this plan; it names what nobody holds")
    if plan.form == "mindformers" and not plan.complete:
        raise UsageError(
            "MindFormers leaves a parameter that is not there at its initial value without a word, so that nothing is "
            "written in its format while something is missing: choose --format safetensors"
        )
    check_output(plan)
    documents = document_bytes(plan)
    files = [file for file in plan.files if plan.parts_of(file)]
    for file in {file.parameters: file for file in files}.values():  # refuses what the format cannot hold
        _image(plan, action_of(plan, file), None, plan.casts)
    return documents, files


def _outcome(
    plan: ReshardPlan, written: Sequence[Written], names: Sequence[str], errors: Sequence[str], codes: Iterable[int]
) -> ReshardOutcome:
    every = set(codes)
    if not plan.complete:
        every.add(VerificationError.exit_code if plan.disagreements else UnrecoverableError.exit_code)
    return ReshardOutcome(
        root=plan.root,
        output=plan.output,
        step=plan.step,
        results=tuple(end.result for end in written),
        documents=tuple(names),
        errors=tuple(errors),
        exit_code=max(every, default=0),
        partial=not plan.complete,
        left_out=plan.left_out,
        warnings=plan.every_warning,
    )


def _is_there(end: Written) -> bool:
    return end.result.status != "failed"


class _Run:
    """What the files of one reshard share."""

    def __init__(
        self,
        plan: ReshardPlan,
        origin: Store,
        verify: bool,
        progress: Callable[[int], None] | None,
        *,
        dry_run: bool = False,
    ) -> None:
        self._dry_run, self._progress, self._stop = dry_run, progress, threading.Event()
        self.plan = plan
        self._names = source_names(plan)
        self._proven: set[tuple[str, str]] = set()
        self._strategies = _strategy_digests(plan)
        self._output = LocalDestination(plan.output, syncs=DirectorySyncs())
        self._context = ActionContext(
            tree=origin, verify=verify, stop=self._stop.is_set, progress=progress or (lambda count: None)
        )
        self._origin = origin
        self._casts = plan.casts

    def all_together(self, files: Sequence[TargetFile], jobs: int) -> list[Written]:
        """Write all files in threads, or say what would become of them, and return their ends in order."""
        expect_bytes(self._progress, sum(self.plan.bytes_of(file) for file in files))
        ends = in_threads(jobs, self.together, batches(self.plan, files, jobs), self._stop)
        found = {end.result.target: end for several in ends for end in several}
        return [found[file.target] for file in files]

    def sync(self, jobs: int) -> list[MsRecoverError]:
        """Make the names of the files durable; return the errors."""
        return self._output.sync(jobs)

    def together(self, files: Sequence[TargetFile]) -> list[Written]:
        """Write files that hold the same: their sources are read once, unless an error makes each a case of its own."""
        if len(files) > 1 and not any(self._output.lies(file.target) for file in files):
            with suppress(MsRecoverError, OSError, StoppedError):
                return self._made([(file, action_of(self.plan, file)) for file in files])
        return [self._one(file) for file in files]

    def _one(self, file: TargetFile) -> Written:
        """Write one file; an error is its end, and does not keep the others from being written."""
        action = action_of(self.plan, file)
        end = attempted(
            lambda: self._there(file, action) or self._made([(file, action)])[0],
            place=f"rank {file.rank}, {file.target}: ",
        )
        if not isinstance(end, Problem):
            return end
        _log.error("%s: %s", file.target, end.text)
        result = ReshardResult(rank=file.rank, target=file.target, status="failed", error=end.text)
        return Written(result=result, digests={}, exit_code=end.exit_code)

    def _there(self, file: TargetFile, action: ComposeAction) -> Written | None:
        """Return a file that an earlier run of the same plan finished, None where it has to be written."""
        manifest = self._output.manifest(file.target)
        listed = set(written_parameters((item.parameter for item in action.parameters), self._casts))
        if manifest is None or manifest.provenance.kind != "resharded" or set(manifest.parameters) != listed:
            return None
        if self._output.holds(file.target, manifest.size, manifest.digests.file, self._context.stop) is None:
            return None
        self._context.progress(action.bytes)
        return _there(file, action, manifest.digests, (one.name for one in manifest.parameters))

    def _made(self, files: Sequence[tuple[TargetFile, ComposeAction]]) -> list[Written]:
        """Write files that hold the same out of one reading, or say what would become of them."""
        context, output = self._context, self._output
        for _, own in files:
            output.check_place(own.target, own.rank)
        action = files[0][1]
        with PieceReader(action, context, self._names, self._proven) as reader, ExitStack() as stack:
            model = reader.model(action.model)
            image = _image(self.plan, action, reader.header(model), self._casts)
            like = action.sources[model].path
            written = () if self._dry_run else files
            temporaries = [stack.enter_context(output.new_file(own.target, image.size, like)) for _, own in written]
            digests = write_image(temporaries, image, action, reader, context, self._casts)
            if context.verify:
                for temporary in temporaries:
                    output.check_written(temporary, digests.file, context.stop)
            reader.check_unchanged()
            return [
                self._ended(file, own, temporary, image, digests, reader)
                for (file, own), temporary in zip_longest(files, temporaries)
            ]

    def _ended(
        self,
        file: TargetFile,
        action: ComposeAction,
        temporary: AtomicFile | None,
        image: SliceImage,
        digests: Digests,
        reader: PieceReader,
    ) -> Written:
        """Give a durable file its name and its manifest; of one that was not written say what would become of it."""
        output, names = self._output, [one.name for one in image.parameters]
        there = self._refuse_other(file.target, image.size, digests.file)
        if temporary is None:
            self._context.progress(action.bytes)
            if not there:
                output.foresee(file.target + MANIFEST_SUFFIX, 0)
        else:
            if not there:
                output.commit(temporary, file.target, digests.file)
            self._finish(file, action, image, digests, reader)
        if there:
            return _there(file, action, digests, names)
        if temporary is not None:
            _log.info("%s: written, %d bytes", file.target, image.size)
        result = ReshardResult(
            rank=file.rank,
            target=file.target,
            status="planned" if temporary is None else "written",
            bytes=image.size,
            digest=digests.file,
            sources=tuple(reader.used),
            dropped=tuple(reader.dropped),
        )
        code = VerificationError.exit_code if reader.dropped else 0
        return Written(result=result, digests=dict(zip(names, digests.parameters, strict=True)), exit_code=code)

    def _refuse_other(self, path: str, size: int, digest: str) -> bool:
        """Whether a file holds some bytes already; a VerificationError when it holds others."""
        if self._output.holds(path, size, digest, self._context.stop) is not None:
            return True
        if self._output.lies(path):
            where = self._output.path(path)
            raise VerificationError(
                f"{where} is there already and holds other bytes: move it away, then run this again"
            )
        return False

    def _finish(
        self, file: TargetFile, action: ComposeAction, image: SliceImage, digests: Digests, reader: PieceReader
    ) -> None:
        """Write the manifest, which says where each byte comes from; a partial slice has none."""
        if action.kind == "partial":
            return
        plan = self.plan
        first = manifest_in(self._origin, action.sources[0].path) if action.sources else None
        training = first.training if first is not None else None
        proven = {one.replica.path: one.proven for one in plan.sources}
        numbers = {one.name: number for number, one in enumerate(image.parameters)}
        used: dict[int, int] = {}
        ranges = [
            (numbers[item.parameter.name], used.setdefault(reader.source_of(piece), len(used)), piece.runs)
            for item in action.parameters
            for piece in item.pieces
        ]
        sources = [action.sources[number] for number in used]
        subject = NamedSlice(
            action.target,
            file.rank,
            plan.ranks,
            plan.written_step,
            first.cumulative_step if first is not None else None,
            plan.run_id or "",
            training=replace(training.of_recovered(), rank_local=()) if training is not None else None,
        )
        provenance = Provenance(
            kind="resharded",
            evidence="manifest" if all(proven[source.path] for source in sources) else "layout",
            sources=tuple(ProvenanceSource(source.rank, os.path.join(plan.root, source.path)) for source in sources),
            borrowed=action.borrowed,
        )
        strategy = self._strategies[file.stage] if self._strategies and plan.metadata is None else None
        manifest = replace(
            subject.manifest(image, digests, file.group, strategy, provenance),
            ranges=tuple(sorted(ranges, key=lambda one: (one[0], one[2].target))),
            cast=tuple(
                (written.parameter.name, written.parameter.dtype)
                for written in action.parameters
                if written.parameter.name in self._casts
            ),
        )
        self._output.write_manifest(action.target, manifest)


def _there(file: TargetFile, action: ComposeAction, digests: Digests, names: Iterable[str]) -> Written:
    result = ReshardResult(
        rank=file.rank,
        target=file.target,
        status="already there",
        digest=digests.file,
        sources=tuple(one.path for one in action.sources),
    )
    return Written(result=result, digests=dict(zip(names, digests.parameters, strict=True)))


def batches(plan: ReshardPlan, files: Sequence[TargetFile], jobs: int) -> list[list[TargetFile]]:
    """Return files in batches that hold the same, in an order that reads sources once where it can.

    Batches are small enough that half of the threads have one.
    """
    most = min(max(1, len(files) // max(1, jobs // 2)), _MOST_TOGETHER)
    own = {number for number, one in enumerate(plan.parameters) if one.own}
    alike: dict[tuple[int, str, tuple[int, ...], tuple[int, ...], int], list[TargetFile]] = {}
    for number, file in enumerate(files):
        alone = not own.isdisjoint(file.parameters)
        key = (file.stage, file.kind or "", file.group, file.parameters, number if alone else -1)
        alike.setdefault(key, []).append(file)
    ordered = (held for _, held in sorted(alike.items(), key=lambda one: one[0]))
    return [held[start : start + most] for held in ordered for start in range(0, len(held), most)]


def _image(plan: ReshardPlan, action: ComposeAction, model: SliceHeader | None, casts: Mapping[str, str]) -> SliceImage:
    """Lay a file out; a ``.ckpt`` of sources with a CRC gets one."""
    parameters = written_parameters((item.parameter for item in action.parameters), casts)
    if plan.form == "ckpt":
        crc = model is not None and model.kind == "ckpt" and model.crc is not None
        return ckpt_image(parameters, [default_pieces(one.nbytes) for one in parameters], crc=crc)
    metadata = [*_METADATA, *((one.name, one.dtype) for one in parameters if one.dtype == "Int4")]
    return safetensors_image(parameters, metadata)


def _strategy_digests(plan: ReshardPlan) -> list[str]:
    from ms_recover.formats.strategy import encode_strategy

    return [digest_of(encode_strategy(strategy)) for strategy in plan.strategies]
