"""Go on with the training of parallel_save_ckpt_train.py, from the newest step that every rank can be brought to."""

from __future__ import annotations

import sys

from job import prepare
from options import parse_options

from ms_recover.errors import MsRecoverError
from ms_recover.training import recover_train

MORE_EPOCHS = 2
"""Without --epochs: behind the epoch of the slice."""


def main() -> int:
    """Resume; a missing slice is copied from a rank that holds the same bytes."""
    options = parse_options("Resume the training of a transformer from the slices of its ranks.", resumes=True)
    try:
        job = prepare(options)
        resumed = recover_train(
            job.model,
            job.dataset,
            options.output_dir,
            options.epochs,
            more_epochs=MORE_EPOCHS if options.epochs is None else None,
            ckpt_file=options.ckpt_file,
            callbacks=job.callbacks,
            sink_mode=job.sink_mode,
            reshard=options.reshard,
            sources=options.sources,
        )
    except MsRecoverError as error:
        print(f"error: {error}", file=sys.stderr)
        return error.exit_code
    if resumed.resharded_from is not None:
        print(f"cut anew from slices of {resumed.resharded_from} ranks", flush=True)
    if resumed.trained:
        print(f"resumed from step {resumed.step}, trained up to epoch {resumed.epochs}", flush=True)
    else:
        print(f"at step {resumed.step} all {resumed.epochs} epochs were done; --epochs can ask for more", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
