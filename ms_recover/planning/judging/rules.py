"""The rules of judging, an ordered list that is read top to bottom.

A rule that needs several steps compares them all, once; rules after it see its findings. Then the slices of a step are
judged: the first rule that applies to a slice decides, and later rules see only the slices that are left. A new rule is
one function, one entry in `RULES` and one test.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from ms_recover.file_names import ending_of
from ms_recover.model.steps import Step
from ms_recover.planning.facts import Facts, SliceFacts
from ms_recover.planning.judging.compare_blocks import BlockComparison, compare_blocks, find_refuted
from ms_recover.planning.judging.dealt_out import find_dealt, forgive_dealt
from ms_recover.planning.judging.judgement import Case, Comparison, Judgement, Ruling
from ms_recover.planning.judging.structure import compare_structure, list_the_same
from ms_recover.planning.redundancy.manifest_check import check_header
from ms_recover.planning.slice_facts import NAN_EVERYWHERE

_OTHER_LAYOUT = "saved under another layout: its strategy file is not that of"
NOTHING = Ruling()


def _no_ruling(case: Case) -> Ruling:
    return NOTHING


def _unchanged(compared: Comparison) -> Comparison:
    return compared


def _unreadable(case: Case) -> Ruling:
    return Ruling(
        slices={
            one.path: Judgement(status="unreadable", reason=one.file.problem or "cannot be opened")
            for one in case.pending
            if one.file.denied
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
        one
        for one in compared.facts.counted
        if one.manifest_problem is None and one.expected is None
        if one.manifest is not None or compared.contents.why_misplaced(one) is None
    )
    return replace(compared, structure=compare_structure(slices, compared.facts.stages))


def _damaged(case: Case) -> Ruling:
    judged = {}
    for one in case.pending:
        structure = case.compared.structure.damaged.get(one.path)
        problem = one.file.problem or structure or one.manifest_problem or one.content_problem
        if problem is not None:
            good = proven_parameters(case.facts, one) if structure is None else None
            whole = not (one.file.problem or one.content_problem or check_header(one.file))
            judged[one.path] = Judgement(status="damaged", reason=problem, good=good, whole=whole, failing=one.failing)
    return Ruling(slices=judged)


def proven_parameters(facts: Facts, one: SliceFacts) -> frozenset[str] | None:
    """Return the parameters of a damaged slice whose contents are those of its manifest; None when there are none."""
    manifest = one.manifest
    if not one.was_read or one.digests is None or manifest is None or one.file.problem is not None:
        return None
    if one.manifest_problem is not None or not facts.stages.covers(one.file):
        return None
    pairs = zip(one.listed, one.digests.parameters, manifest.digests.parameters, strict=False)
    return frozenset(parameter.name for parameter, found, expected in pairs if found == expected) or None


def _replaced(case: Case) -> Ruling:
    if case.facts.options.newest:
        return NOTHING
    recovered = {one.rank: one for one in case.pending if one.manifest is not None and one.manifest.recovered}
    judged = {}
    for one in case.slices:
        there = recovered.get(one.rank)
        earlier = case.judged.get(one.path)
        if there is None or (earlier is not None and earlier.status == "foreign"):
            continue
        if ending_of(one.path) != ending_of(there.path) and not (one.manifest and one.manifest.recovered):
            reason = f"{there.path} was recovered for it in the other format"
            judged[one.path] = Judgement(status="replaced", reason=reason)
    return Ruling(slices=judged)


def _uncommitted(case: Case) -> Ruling:
    saved = case.any_of_run("saved") is not None
    judged = {}
    for one in case.pending:
        expected = saved or (one.file.prefix in case.facts.committing and not case.sealing)
        if one.manifest is None and expected:
            why = one.file.manifest_problem or "its manifest is missing, so saving it was not finished"
            judged[one.path] = Judgement(status="uncommitted", reason=f"not committed: {why}")
    return Ruling(slices=judged)


def _doubles(case: Case) -> Ruling:
    by_rank: dict[int, list[SliceFacts]] = defaultdict(list)
    for one in case.pending:
        by_rank[one.rank].append(one)
    judged: dict[str, Judgement] = {}
    for doubles in by_rank.values():
        held = doubles
        committed = [one for one in doubles if one.manifest is not None]
        if 0 < len(committed) < len(doubles):
            text = f"{committed[0].path} is the slice of this step that has a manifest"
            judged |= {one.path: Judgement(status="superseded", reason=text) for one in doubles if one.manifest is None}
            held = committed
        if len(held) > 1:
            paths = " and ".join(one.path for one in held)
            prefixes = sorted({one.file.prefix for one in held})
            text = f"two slices for one step, {paths}: remove the wrong one or choose the newest run with --newest"
            if len(prefixes) > 1:
                text += f", or one by its prefix with --run {' or --run '.join(prefixes)}"
            judged |= {one.path: Judgement(status="ambiguous", reason=text) for one in held}
    return Ruling(slices=judged)


def _find_dealt(compared: Comparison) -> Comparison:
    return replace(compared, structure=find_dealt(compared.facts, compared.structure))


def _forgive_dealt(compared: Comparison) -> Comparison:
    return replace(compared, structure=forgive_dealt(compared.facts, compared.structure))


def _dealt_out(case: Case) -> Ruling:
    if case.step not in case.compared.structure.deduplicated:
        return NOTHING
    return Ruling(slices={one.path: _sound(one) for one in case.pending})


def _conflicting_lists(case: Case) -> Ruling:
    judged: dict[str, Judgement] = {}
    disagreements = {}
    for group, held in case.by_group().items():
        conflict = case.compared.structure.conflicts.get((group, case.step))
        if conflict is not None:
            judged |= {one.path: Judgement(status="undecided", reason=conflict) for one in held}
            disagreements[group] = conflict
    return Ruling(slices=judged, disagreements=disagreements)


def _another_layout(case: Case) -> Ruling:
    layouts = Counter(filter(None, map(saved_under, case.pending)))
    judged: dict[str, Judgement] = {}
    for held in case.by_group().values() if layouts else ():
        odd = find_other_layouts(case.facts, case.step, held, layouts)
        judged |= {path: Judgement(status="foreign", reason=why) for path, why in odd.items()}
    return Ruling(slices=judged)


def _unlike_manifest(case: Case) -> Ruling:
    judged = {}
    for held in case.by_group().values():
        model = next((one for one in held if one.manifest is not None and one.file.encryption is None), None)
        if model is None:
            continue
        why = f"does not list the parameters of {model.path}, which has a manifest"
        for one in held:
            if one.manifest is None and one.file.encryption is None and not list_the_same(one, model):
                judged[one.path] = Judgement(status="suspect", reason=why)
    return Ruling(slices=judged)


def _by_contents(case: Case) -> Ruling:
    compared = compare_blocks(case.facts, case.pending)
    judged: dict[str, Judgement] = {}
    if compared.disagreements:
        judged = _misplaced_sides(case, compared)
        if judged:
            rest = [one for one in case.pending if one.path not in judged]
            compared = compare_blocks(case.facts, rest)
    by_path = {one.path: one for one in case.pending}
    for path, lost in compared.outvoted.items():
        judged[path] = _outvoted(by_path[path], lost.reason, compared.good[path] or None)
    for path, text in compared.undecided.items():
        judged.setdefault(path, Judgement(status="undecided", reason=text))
    sealed = None if case.sealing else case.any_of_run("sealed")
    left: Counter[tuple[int, ...]] = Counter(one.group for one in case.pending if one.path not in judged)
    voting = Counter((one.group, one.digests.file) for one in case.pending if one.digests is not None)
    for one in case.pending:
        if one.path in judged:
            continue
        witnesses = compared.witnesses.get(one.path, 0)
        if one.manifest is None:
            confirmed = one.digests is not None and voting[one.group, one.digests.file] > 1
            if (why := case.compared.contents.why_misplaced(one, confirmed=confirmed)) is not None:
                judged[one.path] = Judgement(status="suspect", reason=why)
                continue
            alone = left[one.group] == 1 or one.path in compared.alone
            if alone and sealed is not None and not _is_chosen(case, one):
                judged[one.path] = _unsealed(sealed)
                continue
        sound = _sound(one, witnesses, compared.tolerated.get(one.path, ()))
        judged[one.path] = replace(sound, reason=f"{NAN_EVERYWHERE}; {sound.reason}") if one.is_nan else sound
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


def _sound(one: SliceFacts, witnesses: int = 0, borrowed: tuple[str, ...] = ()) -> Judgement:
    if one.proven:
        return Judgement(status="sound", reason="sound by its manifest", evidence="manifest", borrowed=borrowed)
    if witnesses > 1:
        reason = f"sound by the vote of {witnesses} equal slices"
        return Judgement(status="sound", reason=reason, evidence="vote", borrowed=borrowed)
    named = "encrypted, contents not comparable" if one.file.encryption else "sound in structure"
    if one.manifest is not None:
        ground = "the operator's word" if one.manifest.provenance.evidence == "operator" else "structure alone"
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
        compare=_find_dealt,
    ),
    Rule(
        "dealt not cut",
        "All that a slice lacks beside its replicas lies with them, so it was dealt out and is not damaged.",
        compare=_forgive_dealt,
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
    named = manifest is not None and manifest.strategy_digest is not None
    return (manifest.run_id, manifest.strategy_digest or "") if named and manifest is not None else None


def find_other_layouts(
    facts: Facts, step: Step, slices: Sequence[SliceFacts], layouts: Counter[tuple[str, str]]
) -> dict[str, str]:
    """Find slices of a group that were saved under another strategy file than most of it, or than all of their run.

    `layouts` counts the slices of the step by strategy file. Returns the path of each slice found and the reason.
    """
    odd = _unlike_their_group(slices)
    for one in slices:
        own = saved_under(one)
        if one.path in odd or own is None or layouts[own] > 1:
            continue
        others = [held for other in facts.steps if other != step for held in facts.at(other, one.rank)]
        known = [(layout, other) for other in others if (layout := saved_under(other)) and layout[0] == own[0]]
        history = Counter(layout for layout, _ in known)
        for layout, other in known if own not in history else ():
            if history[layout] + layouts[layout] > 1:
                odd[one.path] = f"{_OTHER_LAYOUT} {other.path}"
                break
    return odd


def _unlike_their_group(slices: Sequence[SliceFacts]) -> dict[str, str]:
    named = {one.path: (one.manifest, layout[1]) for one in slices if one.manifest and (layout := saved_under(one))}
    saved = [(path, digest) for path, (manifest, digest) in named.items() if not manifest.recovered]
    count = Counter(digest for _, digest in saved)  # a copy is no witness for its source
    usual, most = max(count.items(), key=lambda item: item[1], default=("", 0))
    if 2 * most <= len(saved):
        return {}  # as many of one as of another: their contents decide
    first = next(path for path, digest in saved if digest == usual)
    return {path: f"{_OTHER_LAYOUT} {first}" for path, (_, digest) in named.items() if digest != usual}
