"""Write the JSON Schemas of what the commands print with --json, made of the types that print it.

``python scripts/schemas.py [DIRECTORY]``, by default docs/schemas; a test compares them with the types.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from ms_recover.engine.workers import WorkerInfoFields
from ms_recover.formats.audit_json import AuditFields
from ms_recover.formats.codec import schema
from ms_recover.formats.history_json import HistoryFields
from ms_recover.formats.inspection_json import InspectionFields
from ms_recover.formats.plan_json import ExplainedPlanFields
from ms_recover.formats.report_json import (
    BackupFields,
    InventoryFields,
    OutcomeFields,
    SealedStepFields,
    ServingFields,
    VerificationFields,
)
from ms_recover.formats.reshard_json import ReshardOutcomeFields, ReshardPlanFields

COMMANDS = {
    "apply": OutcomeFields,
    "audit": AuditFields,
    "copy": BackupFields,
    "history": HistoryFields,
    "inspect": InspectionFields,
    "plan": ExplainedPlanFields,
    "reshard": ReshardOutcomeFields,
    "reshard --plan": ReshardPlanFields,
    "seal --watch": SealedStepFields,
    "scan": InventoryFields,
    "serve": ServingFields,
    "verify": VerificationFields,
    "worker-info": WorkerInfoFields,
}


def main(directory: Path) -> None:
    """Write one file for each command."""
    directory.mkdir(parents=True, exist_ok=True)
    for command, kind in COMMANDS.items():
        document = {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "title": f"recover-ckpt {command} --json",
            **schema(kind),
        }
        text = json.dumps(document, indent=1).replace('Fields"', '"')  # names of types without their ending
        (directory / f"{command.replace(' --', '-')}.schema.json").write_text(text + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).parents[1] / "docs" / "schemas")
