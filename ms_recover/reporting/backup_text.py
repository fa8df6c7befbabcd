"""The result of a copy as text."""

from __future__ import annotations

import shlex

from ms_recover.model.backup import BackupOutcome
from ms_recover.reporting.tables import page, section, size_text


def backup_text(outcome: BackupOutcome, width: int | None) -> str:
    """Return what was copied, or with a dry run would be, and what to do with it."""
    counted = f"{outcome.files} files, {outcome.objects} different contents, {size_text(outcome.bytes)}: "
    lines = [f"step {outcome.step} of {outcome.root} is in {outcome.url}", f"{counted}{_sent(outcome)}"]
    if outcome.dry_run:
        lines = [f"step {outcome.step} of {outcome.root} can go to {outcome.url}", f"{counted}{_to_send(outcome)}"]
    else:
        lines.append(f"bring it back with: {shlex.join(['recover-ckpt', 'apply', 'ROOT', '--from', outcome.url])}")
    title = "Slices that do not hold what their manifests say: their bytes came from replicas"
    lines += section(title, ("slice", "why"), [(one.path, one.reason) for one in outcome.passed_over], width)
    if outcome.passed_over:
        lines.append(f"repair them with: {shlex.join(['recover-ckpt', 'apply', outcome.root])}")
    return page(lines)


def _sent(outcome: BackupOutcome) -> str:
    sent = f"{outcome.uploaded} sent, {size_text(outcome.uploaded_bytes)}" if outcome.uploaded else "all were there"
    if not outcome.verified:
        return f"{sent}; not read back"
    if outcome.read_back == outcome.objects:
        return f"{sent}; all read back"
    return f"{sent}; read back" if outcome.uploaded else f"{sent}; compared by size, --verify reads them"


def _to_send(outcome: BackupOutcome) -> str:
    if not outcome.uploaded:
        return "all are there, nothing would be sent"
    return f"{outcome.uploaded} would be sent, {size_text(outcome.uploaded_bytes)}; nothing was written"
