"""The result of a copy as text."""

from __future__ import annotations

from ms_recover.model.backup import BackupOutcome
from ms_recover.reporting.tables import size_text


def backup_text(outcome: BackupOutcome) -> str:
    """Return what was copied, and what to do with it."""
    checked = "all read back" if outcome.verified else "not read back"
    sent = f"{outcome.uploaded} sent, {size_text(outcome.uploaded_bytes)}" if outcome.uploaded else "all were there"
    return (
        f"step {outcome.step} of {outcome.root} is in {outcome.url}\n"
        f"{outcome.files} files, {outcome.objects} different contents, {size_text(outcome.bytes)}: {sent}; {checked}\n"
        f"bring it back with: recover-ckpt apply ROOT --from {outcome.url}"
    )
