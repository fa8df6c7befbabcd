"""The result of a scan as text for an operator."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from ms_recover.model.inventory import GroupFile, Inventory, SliceFile
from ms_recover.model.iterations import Document
from ms_recover.model.provenance import Provenance, ProvenanceSource
from ms_recover.model.steps import Step
from ms_recover.model.texts import list_some, many, ranks_text
from ms_recover.model.topology import Topology
from ms_recover.planning.tree.positions import find_positions
from ms_recover.planning.tree.prefixes import find_experiments, stated_base
from ms_recover.reporting.rank_map import rank_map, states_of_inventory
from ms_recover.reporting.tables import note_lines, page, section, size_text, table_lines

_MOST_ROWS = 32
_TRAINED = "of the training"
"""Title of the steps since the beginning: of two runs both may have a step of one name."""

_EVIDENCE = {
    "manifest": "confirmed by manifest",
    "vote": "confirmed by vote",
    "layout": "by the layouts of a strategy file",
    "operator": "by the operator's word",
    "structure": "by structure only: contents were not compared",
}


def inventory_text(
    inventory: Inventory, width: int | None, *, topology: Topology | None = None, ascii_only: bool = False
) -> str:
    """Return an inventory: one line a step, the picture, damaged and recovered slices, rank lists and notes.

    `topology` and `ascii_only` are as for `ms_recover.reporting.rank_map.rank_map`.
    """
    lines = [f"{inventory.root}: files of {many(len(inventory.ranks), 'rank')} ({ranks_text(inventory.ranks)})", ""]
    lines += _step_table(inventory, width)
    lines += _experiment_line(inventory)
    if inventory.steps:
        title = f"Slices of step {inventory.steps[0]}"
        picture = rank_map(states_of_inventory(inventory), topology, width, title=title, ascii_only=ascii_only)
        lines += ["", *picture.split("\n")]
    damaged = [file for file in inventory.slices if file.problem and not file.denied]
    denied = [file for file in inventory.slices if file.denied]
    lines += section("Damaged", ("rank", "slice", "why"), _problems(damaged), width)
    lines += section("Permission denied", ("rank", "slice", "why"), _problems(denied), width)
    directories = [(str(rank), note.path, note.reason) for rank, note in inventory.denied]
    lines += section("Directories that cannot be read", ("rank", "directory", "why"), directories, width)
    lines += _recovered_lines(inventory.slices, width)
    if inventory.iterations:
        lines += _document_lines(inventory, width)
    else:
        lines += _group_lines(inventory.group_files, width)
    return page([*lines, *note_lines(inventory.notes, width)])


def _experiment_line(inventory: Inventory) -> list[str]:
    """Return one line with the experiments of the slices, where manifests state several."""
    if all(stated_base(file.manifest) is None for file in inventory.slices):
        return []
    names, newest = find_experiments((*inventory.slices, *inventory.orphans)), dict[str, Step]()
    for file in inventory.slices:
        base = names.of(file)
        newest[base] = max(newest.get(base, file.step), file.step)
    listed = list_some((f"{base!r} up to step {step}" for base, step in sorted(newest.items())), _MOST_ROWS)
    return ["", f"experiments, which --run takes by their names: {listed}"] if len(newest) > 1 else []


def _step_table(inventory: Inventory, width: int | None) -> list[str]:
    if not inventory.steps:
        return ["no slice"]
    by_step: dict[Step, list[SliceFile]] = {step: [] for step in inventory.steps}
    for file in inventory.slices:
        by_step[file.step].append(file)
    any_denied = any(file.denied for file in inventory.slices)
    counted: dict[Step, list[int]] = defaultdict(list)
    for position in find_positions(inventory.slices).every:
        counted[position.step].append(position.cumulative_step)
    rows = []
    for step, files in by_step.items():
        ranks = {file.rank for file in files}
        sound = {file.rank for file in files if not file.problem}
        damaged = {file.rank for file in files if file.problem and not file.denied}
        denied = [ranks_text({file.rank for file in files if file.denied})] if any_denied else []
        missing = [rank for rank in inventory.ranks if rank not in ranks]
        size = size_text(sum(file.size for file in files))
        trained = [", ".join(map(str, counted[step]))] if counted else []
        rows.append([str(step), *trained, str(len(sound)), ranks_text(damaged), *denied, ranks_text(missing), size])
    middle = ["damaged", *(["permission denied"] if any_denied else []), "missing"]
    columns = ["step", *([_TRAINED] if counted else []), "sound", *middle, "size"]
    return table_lines(columns, rows, width, right=(_TRAINED, "sound", "size"))


def _document_lines(inventory: Inventory, width: int | None) -> list[str]:
    rows = [
        (str(one.step), one.directory or ".", _document_state(one.metadata), _document_state(one.common))
        for one in inventory.iterations
    ]
    lines = section("Iterations of MindFormers", ("step", "directory", "metadata.json", "common.json"), rows, width)
    tracker = inventory.tracker
    if tracker is not None:
        named = f"names iteration {tracker.value}" if tracker.value is not None else _document_state(tracker)
        lines += ["", f"{tracker.path}: {named}"]
    return lines


def _document_state(document: Document[Any]) -> str:
    return document.problem or ("read" if document.value is not None else "missing")


def _problems(files: Iterable[SliceFile]) -> list[tuple[str, ...]]:
    return [(str(file.rank), file.path, file.problem or "") for file in files]


def _recovered_lines(slices: Sequence[SliceFile], width: int | None) -> list[str]:
    rows = [
        (str(file.rank), file.path, provenance_text(file.manifest.provenance))
        for file in slices
        if file.manifest is not None and file.manifest.recovered
    ]
    if len(rows) > _MOST_ROWS:
        return ["", f"{len(rows)} slices were recovered from others; their manifests name the sources"]
    return section("Recovered", ("rank", "slice", "provenance"), rows, width)


def provenance_text(provenance: Provenance) -> str:
    """Return the origin of a slice as one clause, such as ``copied from rank 3 (a/b.ckpt), confirmed by vote``."""
    ground = f", {_EVIDENCE[provenance.evidence]}" if provenance.evidence is not None else ""
    if provenance.kind == "saved":
        return "saved by training"
    if provenance.kind == "sealed":
        return f"saved without a manifest and sealed later{ground}"
    sources = list_some([_source_text(source) for source in provenance.sources]) or "a source that is not named"
    text = f"{provenance.kind} from {sources}{ground}"
    if provenance.borrowed:
        text += f"; values of another rank in {list_some(provenance.borrowed)}"
    return text


def _source_text(source: ProvenanceSource) -> str:
    place = f"{source.path} at {source.host}" if source.host is not None else source.path
    return f"rank {source.rank} ({place})" if source.rank is not None else place


def _group_lines(files: Sequence[GroupFile], width: int | None) -> list[str]:
    if not files:
        unknown = "No group_info.pb: the ranks with the same slice are not known; name the files with --group-info"
        return ["", f"{unknown}, or say it to plan with --group or --axes"]
    lines: list[str] = []
    shown = files
    if len(files) > _MOST_ROWS:
        shown = [file for file in files if file.info is None]
        lines += ["", f"{len(files)} rank lists, {len(shown)} malformed"]
    rows = [
        (
            "" if file.rank is None else str(file.rank),
            file.path,
            ranks_text(file.info.restore_ranks) if file.info else file.problem or "",
        )
        for file in shown
    ]
    return lines + section("Ranks with the same slice", ("rank", "rank list", "same slice on ranks"), rows, width)
