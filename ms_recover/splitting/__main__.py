"""A worker on another host: ``python -m ms_recover.splitting --factory package.module:function --addr HOST --port N``.

It makes the model itself; the splitter sends the weights. The token has to be in the environment, as for any world
that leaves this host (``MS_RECOVER_WORLDS_TOKEN_FILE``), and for TLS the files of certificate, key and authority.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping
from typing import Any

from ms_recover.errors import BrokenWorldError, MsRecoverError, UsageError
from ms_recover.splitting.worker import ControlThread, Job, PartRunner, remote_world_name, take_device
from ms_recover.worlds.security import Security

_PAUSE_S = 1.0


class _Guest(PartRunner):
    """Parts of a model that this process made by itself."""

    def __init__(self, job: Job, ear: ControlThread, cells: Mapping[str, Any]) -> None:
        super().__init__(job, ear)
        self._cells = cells

    def make(self, fields: Mapping[str, Any], tensors: list[Any]) -> Any:
        """Make a part, with the weights that came along."""
        import mindspore

        from ms_recover.splitting import stages, weights

        mindspore.set_context(mode=fields["mode"])
        part = stages.ModelPart(self._cells[fields["split"]][slice(*fields["stages"])])
        weights.take(part, fields["names"], tensors)
        return part


def main() -> int:
    """Serve one device of a splitter elsewhere; return the exit code."""
    options = _parser().parse_args()
    logging.getLogger("ms_recover.worlds").setLevel(logging.ERROR)  # what breaks is said here, once
    try:
        return _serve(options)
    except MsRecoverError as error:
        sys.stderr.write(f"error: {error}\n")
        return error.exit_code
    except KeyboardInterrupt:
        return 130


def _serve(options: argparse.Namespace) -> int:
    security = Security.from_environment()
    sys.path.insert(0, os.getcwd())
    take_device(options.device_target, options.device_id)
    from ms_recover.splitting import pickling, stages

    model = pickling.from_factory(options.factory)
    cells = {"batch": stages.whole_model(model)}
    try:
        cells["layers"] = stages.stages_of(model)
    except UsageError:  # it can be used whole
        cells["layers"] = cells["batch"]
    until = time.monotonic() + options.timeout
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise BrokenWorldError(
                remote_world_name(options.port), 0, 0, "timeout", f"no splitter for {options.timeout:g} s"
            )
        ear = ControlThread(_job(options, min(left, options.timeout)), security, lasting=True)
        ear.start()
        if ear.heard.get() is not None:
            _Guest(_job(options, left), ear, cells).serve()
            until = time.monotonic() + options.timeout
        ear.join()
        if isinstance(ear.error, BrokenWorldError) and ear.error.cause == "closed":
            return 0
        if ear.error is not None and not isinstance(ear.error, BrokenWorldError):
            raise ear.error
        sys.stderr.write(f"{ear.error}; waiting for a splitter at {options.addr} port {options.port}\n")
        time.sleep(_PAUSE_S)


def _job(options: argparse.Namespace, timeout: float) -> Job:
    return Job(
        world=remote_world_name(options.port),
        addr=options.addr,
        port=options.port,
        token=b"",
        heartbeat=options.heartbeat,
        timeout=timeout,
        parts=(),
        path=(),
        mode=0,
        target=options.device_target,
        threads=None,
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ms_recover.splitting", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--factory", required=True, help="package.module:function that returns the model")
    parser.add_argument("--addr", required=True, help="where the splitter listens")
    parser.add_argument("--port", type=int, required=True, help="its port for this worker")
    parser.add_argument("--heartbeat", type=float, default=3.0, help="seconds of silence after which it is lost")
    parser.add_argument(
        "--timeout", type=float, default=600.0, help="seconds to wait for the splitter, again and again"
    )
    parser.add_argument("--device-target", default="CPU", help="MindSpore's device target")
    parser.add_argument("--device-id", type=int, default=0, help="number of the device on this host")
    return parser


if __name__ == "__main__":
    sys.exit(main())
