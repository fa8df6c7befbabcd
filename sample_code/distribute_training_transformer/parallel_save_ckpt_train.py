"""Train the transformer over several ranks; each rank saves only its own slice."""

from __future__ import annotations

import sys

from job import prepare
from options import parse_options

from ms_recover.errors import MsRecoverError

EPOCHS = 4
"""Without --epochs."""


def main() -> int:
    """Train from the start."""
    options = parse_options("Train a transformer over several ranks, each saving its own slice.")
    try:
        job = prepare(options)
        job.model.train(options.epochs or EPOCHS, job.dataset, callbacks=job.callbacks, dataset_sink_mode=job.sink_mode)
    except MsRecoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main())
