"""The result of a scan as text for an operator."""

from __future__ import annotations

from collections.abc import Sequence

from ms_recover.model.inventory import GroupFile, Inventory, SliceFile
from ms_recover.model.steps import Step
from ms_recover.reporting.notes import note_lines
from ms_recover.reporting.provenance_text import provenance_text
from ms_recover.reporting.tables import page, ranks_text, size_text, table_lines

_MOST_ROWS = 32


def inventory_text(inventory: Inventory, width: int | None) -> str:
    """Return an inventory: one line a step, then damaged and recovered slices, rank lists and notes."""
    lines = [f"{inventory.root}: files of {len(inventory.ranks)} ranks ({ranks_text(inventory.ranks)})", ""]
    lines += _step_table(inventory, width)
    damaged = [file for file in inventory.slices if file.problem and not file.denied]
    denied = [file for file in inventory.slices if file.denied]
    lines += _problem_lines("Damaged", damaged, width)
    lines += _problem_lines("Permission denied", denied, width)
    if inventory.denied:
        rows = [(str(rank), note.path, note.reason) for rank, note in inventory.denied]
        lines += ["", "Directories that cannot be read:"]
        lines += table_lines(("rank", "directory", "why"), rows, width, right=("rank",))
    lines += _recovered_lines(inventory.slices, width)
    lines += _group_lines(inventory.group_files, width)
    return page([*lines, *note_lines(inventory.notes, width)])


def _step_table(inventory: Inventory, width: int | None) -> list[str]:
    if not inventory.steps:
        return ["no slice"]
    by_step: dict[Step, list[SliceFile]] = {step: [] for step in inventory.steps}
    for file in inventory.slices:
        by_step[file.step].append(file)
    any_denied = any(file.denied for file in inventory.slices)
    rows = []
    for step, files in by_step.items():
        ranks = {file.rank for file in files}
        sound = {file.rank for file in files if not file.problem}
        damaged = {file.rank for file in files if file.problem and not file.denied}
        denied = [ranks_text({file.rank for file in files if file.denied})] if any_denied else []
        missing = [rank for rank in inventory.ranks if rank not in ranks]
        size = size_text(sum(file.size for file in files))
        rows.append([str(step), str(len(sound)), ranks_text(damaged), *denied, ranks_text(missing), size])
    columns = ["step", "sound", "damaged", *(["permission denied"] if any_denied else []), "missing", "size"]
    return table_lines(columns, rows, width, right=("sound", "size"))


def _problem_lines(title: str, files: Sequence[SliceFile], width: int | None) -> list[str]:
    if not files:
        return []
    rows = [(str(file.rank), file.path, file.problem or "") for file in files]
    return ["", f"{title}:", *table_lines(("rank", "slice", "why"), rows, width, right=("rank",))]


def _recovered_lines(slices: Sequence[SliceFile], width: int | None) -> list[str]:
    rows = [
        (str(file.rank), file.path, provenance_text(file.manifest.provenance))
        for file in slices
        if file.manifest is not None and file.manifest.recovered
    ]
    if not rows:
        return []
    if len(rows) > _MOST_ROWS:
        return ["", f"{len(rows)} slices were recovered from others; their manifests name the sources"]
    return ["", "Recovered:", *table_lines(("rank", "slice", "provenance"), rows, width, right=("rank",))]


def _group_lines(files: Sequence[GroupFile], width: int | None) -> list[str]:
    if not files:
        return ["", "No group_info.pb: the ranks with the same slice are not known; name the files with --group-info"]
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
    if rows:
        lines += ["", "Ranks with the same slice:"]
        lines += table_lines(("rank", "rank list", "same slice on ranks"), rows, width, right=("rank",))
    return lines
