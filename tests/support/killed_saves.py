"""A training that crashes, a resumed one that is killed while it saves first, and a third that goes on.

``python -m tests.support.killed_saves DIRECTORY`` prints as JSON what came of each place of the kill. Processes are
forked after MindSpore is imported and before it computes anything.
"""

from __future__ import annotations

import json
import logging
import os
import shutil
import sys
from contextlib import suppress
from pathlib import Path

import mindspore as ms

from tests.support.faults import Faults
from tests.support.program_runs import in_child
from tests.support.trainings import EPOCHS, Losses, StoppedError, checkpoint, make_dataset, make_model, values

CUT = 10
"""The step of the crash."""


class Warnings(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.said: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.said.append(record.getMessage())


def train(root: str, seen: Path, how: str, at: int = 0, kind: str = "kill") -> None:
    """Train from the start, up to a crash, or resume; strike at a call of the first save behind a resume."""
    from ms_recover.training import recover_train

    heard = Warnings()
    logging.getLogger("ms_recover").addHandler(heard)
    with suppress(SystemError):  # of the first operator, where MindSpore was built for an older numpy
        ms.Tensor([1.0]) * 0.5
    losses, model, saver = Losses(CUT if how == "crash" else None), make_model(), checkpoint(root, save_steps=2)
    faults, save = Faults(f"{root}/ckpt_dir0", at, kind), saver.saver.save_step

    def first(*given: object) -> None:
        saver.saver.save_step = save  # type: ignore[method-assign]
        with faults.installed():
            save(*given)  # type: ignore[arg-type]

    if how == "resume":
        saver.saver.save_step = first  # type: ignore[method-assign]
        recover_train(model, make_dataset(), root, EPOCHS, [losses, saver])
    else:
        with suppress(StoppedError):
            model.train(EPOCHS, make_dataset(), callbacks=[losses, saver], dataset_sink_mode=False)
    found = {step: loss.hex() for step, loss in losses.seen.items()}
    ended = {name: value.hex() for name, value in values(model).items()}
    seen.write_text(json.dumps({"losses": found, "values": ended, "said": heard.said, "calls": faults.trace}))


def strike(top: Path, at: int, kind: str, ended: dict) -> dict:
    """Resume and be killed at a call, then resume once more; return what came of it, or all calls where none struck."""
    root, seen = top / f"{kind} {at}", top / f"{kind} {at}.json"
    shutil.copytree(top / "cut", root)
    in_child(lambda: train(str(root), seen, "resume", at, kind))
    if seen.exists():
        return {"calls": json.loads(seen.read_text())["calls"]}
    in_child(lambda: train(str(root), seen, "resume"))
    again = json.loads(seen.read_text()) if seen.exists() else {"losses": {}, "values": {}, "said": ["died"]}
    same = {step: ended["losses"].get(step) for step in again["losses"]} == again["losses"]
    shutil.rmtree(root)
    return {
        "begun": min(map(int, again["losses"]), default=0),
        "exact": same and again["values"] == ended["values"],
        "said": [text for text in again["said"] if "callbacks" not in text],
    }


def main(top: Path) -> None:
    in_child(lambda: train(str(top / "whole"), top / "whole.json", "train"))
    in_child(lambda: train(str(top / "cut"), top / "cut.json", "crash"))
    ended, found = json.loads((top / "whole.json").read_text()), []
    while "calls" not in (last := strike(top, len(found) + 1, "kill", ended)):
        found.append(last)
    found.append(strike(top, len(found), "kill after", ended))
    print(json.dumps({"calls": last["calls"], "found": found}))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
    sys.stdout.flush()
    os._exit(0)
