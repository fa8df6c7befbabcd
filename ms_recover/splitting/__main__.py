"""A worker on another host: ``python -m ms_recover.splitting --factory package.module:function --addr HOST --port N``.

The worker makes the model itself; the splitter sends the weights. The environment has to hold the token, as for any
world that leaves this host (``MS_RECOVER_WORLDS_TOKEN_FILE``), and for TLS the files of certificate, key and authority.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
import time
from collections.abc import Mapping, Sequence
from typing import Any

from ms_recover.errors import BrokenWorldError, MsRecoverError, UsageError
from ms_recover.splitting.job import Job, remote_world_name
from ms_recover.splitting.protocol import Message
from ms_recover.splitting.worker import ControlThread, PartRunner, take_device
from ms_recover.worlds.security import Security

_PAUSE_S = 1.0


class _FactoryPartRunner(PartRunner):
    """Runs parts of a model that this process made itself."""

    def __init__(self, job: Job, control: ControlThread, model: Any, stages: Mapping[str, Sequence[Any]]) -> None:
        super().__init__(job, control)
        self._model = model
        self._stages = stages

    def make_part(self, message: Message) -> Any:
        """Make a part, with the weights of the message."""
        import mindspore

        from ms_recover.splitting import batches, stages

        fields = message.fields
        mindspore.set_context(mode=fields["mode"])
        named = fields.get("names_of_stages")
        found = self._stages[fields["split"]] if named is None else stages.stages_of(self._model, named)
        part = stages.ModelPart(found[slice(*fields["stages"])])
        held = dict(zip(fields["names"], map(batches.to_tensor, message.tensors), strict=True))
        part.load(held, "the splitter's message")
        return part


def main() -> int:
    """Serve one device of a splitter on another host; return the exit code."""
    options = _parser().parse_args()
    logging.getLogger("ms_recover.worlds").setLevel(logging.ERROR)  # this program reports broken worlds itself
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
    model, stages = _stages_by_split(options.factory)
    world = remote_world_name(options.port)
    until = time.monotonic() + options.timeout
    while True:
        left = until - time.monotonic()
        if left <= 0:
            raise BrokenWorldError(world, 0, 0, "timeout", f"no splitter for {options.timeout:g} s")
        job = Job(
            world=world,
            addr=options.addr,
            port=options.port,
            heartbeat=options.heartbeat,
            timeout=min(left, options.timeout),
            target=options.device_target,
        )
        control = ControlThread(job, security, lasting=True)
        control.start()
        if control.wait_until_joined():
            _FactoryPartRunner(job, control, model, stages).serve()
            until = time.monotonic() + options.timeout
        control.join()
        if isinstance(control.error, BrokenWorldError) and control.error.cause == "closed":
            return 0
        if control.error is not None and not isinstance(control.error, BrokenWorldError):
            raise control.error
        sys.stderr.write(f"{control.error}; waiting for a splitter at {options.addr} port {options.port}\n")
        time.sleep(_PAUSE_S)


def _stages_by_split(factory: str) -> tuple[Any, dict[str, Sequence[Any]]]:
    """Make the model; return it, and its stages for each kind of split."""
    from ms_recover.splitting import pickling, stages

    model = pickling.from_factory(factory)
    found: dict[str, Sequence[Any]] = {"batch": stages.whole_model(model)}
    try:
        found["layers"] = stages.stages_of(model)
    except UsageError:  # a model that cannot be cut still serves whole
        found["layers"] = found["batch"]
    return model, found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m ms_recover.splitting", description=(__doc__ or "").split("\n\n")[0]
    )
    parser.add_argument("--factory", required=True, help="package.module:function that returns the model")
    parser.add_argument("--addr", required=True, help="address where the splitter listens")
    parser.add_argument("--port", type=int, required=True, help="the splitter's port for this worker")
    parser.add_argument("--heartbeat", type=float, default=3.0, help="seconds of silence until the splitter is lost")
    parser.add_argument("--timeout", type=float, default=600.0, help="seconds to wait for a splitter, each time")
    parser.add_argument("--device-target", default="CPU", help="MindSpore's device target")
    parser.add_argument("--device-id", type=int, default=0, help="number of the device on this host")
    return parser


if __name__ == "__main__":
    sys.exit(main())
