"""The rules of judging, an ordered list that is read top to bottom.

A rule that needs several steps compares them all, once; rules after it see its findings. Then the slices of a step are
judged: the first rule that applies to a slice decides, and later rules see only the slices that are left. A new rule is
one function, one entry in `RULES` and one test.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ms_recover.file_names import ending_of
from ms_recover.model.grouped import grouped
from ms_recover.model.steps import Step
from ms_recover.planning.claims.manifest_check import check_header
from ms_recover.planning.judging.compare_blocks import BlockComparison, compare_blocks, find_refuted
from ms_recover.planning.judging.dealt_out import find_cut_off, find_dealt, forgive_dealt
from ms_recover.planning.judging.judgement import Case, Comparison, Judgement, Ruling
from ms_recover.planning.judging.structure import compare_structure, list_the_same
from ms_recover.planning.tree.facts import NAN_EVERYWHERE, Facts, SliceFacts

_OTHER_LAYOUT = "saved under another layout: its strategy file is not that of"
NOTHING = Ruling()


def _no_ruling(case: Case) -> Ruling:
    return NOTHING


def _unchanged(compared: Comparison) -> Comparison:
    return compared


def _unreadable(case: Case) -> Ruling:
    return Ruling(
        slices={
            slice_.path: Judgement(status="unreadable", reason=slice_.file.problem or "cannot be opened")
            for slice_ in case.pending
            if slice_.file.denied
        }
    )


def _another_run(case: Case) -> Ruling:
    foreign = ((one, case.run.why_foreign(one.file)) for one in case.pending)
    return Ruling(slices={one.path: Judgement(status="foreign", reason=why) for one, why in foreign if why})


def _compare_lists(compared: Comparison) -> Comparison:
    """Compare the parameter lists of slices; those that contradict their manifests show nothing.

    Where documents state the list of a slice, it needs no comparison.
    """
    slices = (
        slice_
        for slice_ in compared.facts.counted
        if slice_.manifest_problem is None and slice_.expected is None
        if slice_.manifest is not None or compared.contents.why_misplaced(slice_) is None
    )
    return replace(compared, structure=compare_structure(slices, compared.facts.stages))


def _damaged(case: Case) -> Ruling:
    judged = {}
    for slice_ in case.pending:
        structure = case.compared.structure.damaged.get(slice_.path)
        problem = slice_.file.problem or structure or slice_.manifest_problem or slice_.content_problem
        if problem is not None:
            good = proven_parameters(case.facts, slice_) if structure is None else None
            whole = not (slice_.file.problem or slice_.content_problem or check_header(slice_.file))
            judged[slice_.path] = Judgement(
                status="damaged", reason=problem, good=good, whole=whole, failing=slice_.failing
            )
    return Ruling(slices=judged)


def proven_parameters(facts: Facts, slice_: SliceFacts) -> frozenset[str] | None:
    """Return the parameters of a damaged slice whose contents are those of its manifest; None when there are none."""
    manifest = slice_.manifest
    if not slice_.was_read or slice_.digests is None or manifest is None or slice_.file.problem is not None:
        return None
    if slice_.manifest_problem is not None or not facts.stages.covers(slice_.file):
        return None
    pairs = zip(slice_.listed, slice_.digests.parameters, manifest.digests.parameters, strict=False)
    return frozenset(parameter.name for parameter, actual, expected in pairs if actual == expected) or None


def _replaced(case: Case) -> Ruling:
    if case.facts.options.newest:
        return NOTHING
    recovered = {slice_.rank: slice_ for slice_ in case.pending if slice_.recovered}
    judged = {}
    for slice_ in case.slices:
        beside = recovered.get(slice_.rank)
        earlier = case.judged.get(slice_.path)
        if beside is None or (earlier is not None and earlier.status == "foreign"):
            continue
        if ending_of(slice_.path) != ending_of(beside.path) and not slice_.recovered:
            reason = f"{beside.path} was recovered for it in the other format"
            judged[slice_.path] = Judgement(status="replaced", reason=reason)
    return Ruling(slices=judged)


def _uncommitted(case: Case) -> Ruling:
    saved = case.any_of_run("saved") is not None
    judged = {}
    for slice_ in case.pending:
        expected = saved or (slice_.file.prefix in case.facts.committing and not case.sealing)
        if slice_.manifest is None and expected:
            why = slice_.file.manifest_problem or "its manifest is missing, so saving it was not finished"
            judged[slice_.path] = Judgement(status="uncommitted", reason=f"not committed: {why}")
    return Ruling(slices=judged)


def _doubles(case: Case) -> Ruling:
    judged: dict[str, Judgement] = {}
    for doubles in grouped(case.pending, lambda slice_: slice_.rank).values():
        left = [slice_ for slice_ in doubles if slice_.manifest is not None] or doubles
        text = f"{left[0].path} is the slice of this step that has a manifest"
        judged |= {slice_.path: Judgement(status="superseded", reason=text) for slice_ in doubles if slice_ not in left}
        if len(left) > 1:
            paths = " and ".join(slice_.path for slice_ in left)
            prefixes = sorted({slice_.file.prefix for slice_ in left})
            text = f"two slices for one step, {paths}: remove the wrong one or choose the newest run with --newest"
            if len(prefixes) > 1:
                text += f", or one by its prefix with --run {' or --run '.join(prefixes)}"
            judged |= {slice_.path: Judgement(status="ambiguous", reason=text) for slice_ in left}
    return Ruling(slices=judged)


def _dealt_out(case: Case) -> Ruling:
    if case.step not in case.compared.structure.deduplicated:
        return NOTHING
    return Ruling(slices={one.path: _sound(one) for one in case.pending})


def _conflicting_lists(case: Case) -> Ruling:
    judged: dict[str, Judgement] = {}
    disagreements = {}
    for group, slices in case.by_group().items():
        conflict = case.compared.structure.conflicts.get((group, case.step))
        if conflict is not None:
            judged |= {slice_.path: Judgement(status="undecided", reason=conflict) for slice_ in slices}
            disagreements[group] = conflict
    return Ruling(slices=judged, disagreements=disagreements)


def _another_layout(case: Case) -> Ruling:
    layouts = Counter(filter(None, map(saved_under, case.pending)))
    judged: dict[str, Judgement] = {}
    for slices in case.by_group().values() if layouts else ():
        odd = find_other_layouts(case.facts, case.step, slices, layouts)
        judged |= {path: Judgement(status="foreign", reason=why) for path, why in odd.items()}
    return Ruling(slices=judged)


def _unlike_manifest(case: Case) -> Ruling:
    judged = {}
    for slices in case.by_group().values():
        model = next(
            (slice_ for slice_ in slices if slice_.manifest is not None and slice_.file.encryption is None), None
        )
        if model is None:
            continue
        why = f"does not list the parameters of {model.path}, which has a manifest"
        for slice_ in slices:
            if slice_.manifest is None and slice_.file.encryption is None and not list_the_same(slice_, model):
                judged[slice_.path] = Judgement(status="suspect", reason=why)
    return Ruling(slices=judged)


def _by_contents(case: Case) -> Ruling:
    compared = compare_blocks(case.facts, case.pending)
    judged: dict[str, Judgement] = {}
    if compared.disagreements:
        judged = _misplaced_sides(case, compared)
        if judged:
            rest = [slice_ for slice_ in case.pending if slice_.path not in judged]
            compared = compare_blocks(case.facts, rest)
    # Who lost a vote, and both sides of one that nothing settles.
    by_path = {slice_.path: slice_ for slice_ in case.pending}
    for path, lost in compared.outvoted.items():
        judged[path] = _outvoted(by_path[path], lost.reason, compared.good[path] or None)
    for path, text in compared.undecided.items():
        judged.setdefault(path, Judgement(status="undecided", reason=text))
    # What is left is sound, unless its bytes are another slice's, or sealing passed it over.
    sealed = None if case.sealing else case.any_of_run("sealed")
    left: Counter[tuple[int, ...]] = Counter(slice_.group for slice_ in case.pending if slice_.path not in judged)
    voting = Counter((slice_.group, slice_.digests.file) for slice_ in case.pending if slice_.digests is not None)
    for slice_ in case.pending:
        if slice_.path in judged:
            continue
        witnesses = compared.witnesses.get(slice_.path, 0)
        if slice_.manifest is None:
            confirmed = slice_.digests is not None and voting[slice_.group, slice_.digests.file] > 1
            if (why := case.compared.contents.why_misplaced(slice_, confirmed=confirmed)) is not None:
                judged[slice_.path] = Judgement(status="suspect", reason=why)
                continue
            alone = left[slice_.group] == 1 or slice_.path in compared.alone
            if alone and sealed is not None and not _is_chosen(case, slice_):
                judged[slice_.path] = _unsealed(sealed)
                continue
        sound = _sound(slice_, witnesses, compared.tolerated.get(slice_.path, ()))
        judged[slice_.path] = replace(sound, reason=f"{NAN_EVERYWHERE}; {sound.reason}") if slice_.is_nan else sound
    return Ruling(slices=judged, disagreements=compared.disagreements)


def _refute_layouts(compared: Comparison) -> Comparison:
    facts = compared.facts
    by_step = {step: find_refuted(facts, facts.counted_at(step)) for step in facts.steps if facts.stages.layouts}
    return replace(compared, refuted={step: reasons for step, reasons in by_step.items() if reasons})


def _refute_word(compared: Comparison) -> Comparison:
    if not compared.facts.groups.claimed:
        return compared
    from ms_recover.planning.judging.word_check import check_word  # which plans without such options need not load

    return replace(compared, unread=check_word(compared))


def _outvoted(one: SliceFacts, reason: str, good: frozenset[str] | None = None) -> Judgement:
    """Judge a slice from which more others differ: it is replaced unless training saved it as it is."""
    if not one.saved:
        return Judgement(status="suspect", reason=reason, good=good)
    why = f"{reason}; it is kept, because training saved its manifest, which proves it: --lost {one.rank} replaces it"
    return Judgement(status="suspect", reason=why, evidence="manifest", good=good, kept=True)


def _misplaced_sides(case: Case, compared: BlockComparison) -> dict[str, Judgement]:
    """Return the misplaced slices among those that differ, unless all of them are."""
    sides = [one for one in case.pending if one.path in compared.undecided]
    found = {one.path: why for one in sides if (why := case.compared.contents.why_misplaced(one)) is not None}
    if not found or len(found) == len(sides):
        return {}
    return {one.path: _outvoted(one, found[one.path]) for one in sides if one.path in found}


def _is_chosen(case: Case, one: SliceFacts) -> bool:
    """Whether the operator settled who is right, by declaring a slice of its group lost that is there."""
    return any(case.facts.at(case.step, rank) for rank in case.facts.lost.intersection(one.group))


def _unsealed(sealed: SliceFacts) -> Judgement:
    """Judge a slice that sealing its step passed over, or whose manifest or right bytes went since."""
    return Judgement(
        status="uncommitted",
        reason=f"not sealed, though {sealed.path} of the same step is, and no other slice of its group holds the same: "
        "if it is right, seal again",
    )


def _sound(slice_: SliceFacts, witnesses: int = 0, borrowed: tuple[str, ...] = ()) -> Judgement:
    if slice_.proven:
        return Judgement(status="sound", reason="sound by its manifest", evidence="manifest", borrowed=borrowed)
    if witnesses > 1:
        reason = f"sound by the vote of {witnesses} equal slices"
        return Judgement(status="sound", reason=reason, evidence="vote", borrowed=borrowed)
    named = "encrypted, contents not comparable" if slice_.file.encryption else "sound in structure"
    if slice_.manifest is not None:
        ground = "the operator's word" if slice_.manifest.provenance.evidence == "operator" else "structure alone"
        named = f"unchanged since its manifest was written, which rests on {ground}"
    return Judgement(status="sound", reason=named, borrowed=borrowed)


@dataclass(frozen=True)
class Rule:
    """One rule of judging: its name, what is wrong with the slices it decides, and how it judges those of a step.

    One that needs several steps has a function that compares them before any is judged, and adds what it finds.
    """

    name: str
    reason: str
    judge: Callable[[Case], Ruling] = _no_ruling
    compare: Callable[[Comparison], Comparison] = _unchanged


RULES: Sequence[Rule] = (
    Rule("unreadable", "The operating system refused to open the slice: that is no damage.", _unreadable),
    Rule("another run", "The slice was saved by another run, or under another prefix.", _another_run),
    Rule(
        "damaged",
        "The header, the parameter list, or the contents are not what they must be.",
        _damaged,
        compare=_compare_lists,
    ),
    Rule("replaced", "A recovered slice of the other format lies beside the slice it could not replace.", _replaced),
    Rule(
        "uncommitted",
        "The slice has no manifest although its run writes them: saving it was not finished.",
        _uncommitted,
    ),
    Rule(
        "doubles",
        "The rank has several slices for the step: one with a manifest counts, else the operator must choose.",
        _doubles,
    ),
    Rule(
        "dealt out",
        "remove_redundancy=True dealt the parameters out, so each slice is the only one of its kind.",
        _dealt_out,
        compare=find_dealt,
    ),
    Rule(
        "dealt not cut",
        "All that a slice lacks beside its replicas lies with them, so it was dealt out and is not damaged.",
        compare=forgive_dealt,
    ),
    Rule(
        "cut off",
        "A slice ends before parameters that layouts name and no other slice has in its stead.",
        compare=find_cut_off,
    ),
    Rule(
        "conflicting lists",
        "Replicas list different parameters, and nothing shows which list is right.",
        _conflicting_lists,
    ),
    Rule(
        "another layout",
        "The slice was saved under another strategy file than its replicas or its run.",
        _another_layout,
    ),
    Rule(
        "unlike a manifest",
        "The slice has no manifest and does not list the parameters of a replica that has one.",
        _unlike_manifest,
    ),
    Rule(
        "contents",
        "Outvoted and renamed slices are suspect, the sides of a tie undecided; the rest is sound.",
        _by_contents,
    ),
    Rule(
        "refuted layouts",
        "Slices of a step contradict the strategy file, which nothing is composed by at the others then.",
        compare=_refute_layouts,
    ),
    Rule(
        "refuted word",
        "Slices differ, as no damage makes them differ, of ranks that hold the same by the operator's word.",
        compare=_refute_word,
    ),
)


def saved_under(one: SliceFacts) -> tuple[str, str] | None:
    """Return the run and the strategy file a slice was saved under."""
    manifest = one.manifest
    if manifest is None or manifest.strategy_digest is None:
        return None
    return manifest.run_id, manifest.strategy_digest


def find_other_layouts(
    facts: Facts, step: Step, slices: Sequence[SliceFacts], layouts: Counter[tuple[str, str]]
) -> dict[str, str]:
    """Find slices of a group that were saved under another strategy file than most of it, or than all of their run.

    `layouts` counts the slices of the step by strategy file. Returns the path of each slice found and the reason.
    """
    odd = _unlike_their_group(slices)
    for slice_ in slices:
        own = saved_under(slice_)
        if slice_.path in odd or own is None or layouts[own] > 1:
            continue
        others = [saved for other in facts.steps if other != step for saved in facts.at(other, slice_.rank)]
        known = [(layout, other) for other in others if (layout := saved_under(other)) and layout[0] == own[0]]
        history = Counter(layout for layout, _ in known)
        for layout, other in known if own not in history else ():
            if history[layout] + layouts[layout] > 1:
                odd[slice_.path] = f"{_OTHER_LAYOUT} {other.path}"
                break
    return odd


def _unlike_their_group(slices: Sequence[SliceFacts]) -> dict[str, str]:
    named = {slice_: layout[1] for slice_ in slices if (layout := saved_under(slice_)) is not None}
    saved = [(slice_.path, digest) for slice_, digest in named.items() if not slice_.recovered]
    count = Counter(digest for _, digest in saved)  # a copy is no witness for its source
    usual, most = max(count.items(), key=lambda item: item[1], default=("", 0))
    if 2 * most <= len(saved):
        return {}  # as many of one as of another: their contents decide
    first = next(path for path, digest in saved if digest == usual)
    return {slice_.path: f"{_OTHER_LAYOUT} {first}" for slice_, digest in named.items() if digest != usual}
