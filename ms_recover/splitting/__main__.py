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
from collections.abc import Sequence
from typing import Any

from ms_recover.errors import BrokenWorldError, MsRecoverError, UsageError
from ms_recover.splitting.job import Job, remote_world_name
from ms_recover.splitting.protocol import Message
from ms_recover.splitting.worker import ControlThread, PartRunner, take_device
from ms_recover.worlds.security import Security

_PAUSE_S = 1.0


class _FactoryPartRunner(PartRunner):
    """Runs parts of a model that this process made itself."""

    def __init__(self, job: Job, control: ControlThread, made: Any) -> None:
        super().__init__(job, control)
        self._made = made

    def make_part(self, message: Message) -> Any:
        """Make a part, or take it from the model."""
        import mindspore

        from ms_recover.splitting import stages

        fields = message.fields
        mindspore.set_context(mode=fields["mode"])
        found = self._made
        if isinstance(found, tuple):
            if len(found) != fields["total"]:
                raise UsageError(f"the factory returned {len(found)} functions here, the splitter's {fields['total']}")
            makers = {index: found[index] for index in range(*fields["stages"])}
            return stages.ModelPart(stages.made_stages(makers, fields["seed"]))
        every = _stages_of(found, fields["split"], fields["names_of_stages"])
        return stages.ModelPart(every[slice(*fields["stages"])])

    def load(self, part: Any, message: Message) -> None:
        """Set the weights of a part to those of the message."""
        from ms_recover.tensors.arrays import to_tensor

        held = dict(zip(message.fields["names"], map(to_tensor, message.tensors), strict=True))
        part.load(held, lambda name, parameter: parameter.set_data(held[name]), "the splitter's message")

    def write(self, message: Message) -> None:
        """Send the values of the slice of a part: the splitter's files are on another host."""
        from ms_recover.tensors.arrays import to_host

        values = self._values(message)
        self._answer(message, [to_host(value) for value in values.values()], names=list(values))


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
    made = _made_by(options.factory)
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
            _FactoryPartRunner(job, control, made).serve()
            until = time.monotonic() + options.timeout
        control.join()
        if isinstance(control.error, BrokenWorldError) and control.error.cause == "closed":
            return 0
        if control.error is not None and not isinstance(control.error, BrokenWorldError):
            raise control.error
        sys.stderr.write(f"{control.error}; waiting for a splitter at {options.addr} port {options.port}\n")
        time.sleep(_PAUSE_S)


def _stages_of(model: Any, split: str, names: Sequence[str] | None) -> Sequence[Any]:
    """Return the stages of a model; by their names where it does not say itself which they are."""
    from ms_recover.splitting import stages

    return stages.whole_model(model) if split == "batch" else stages.stages_of(model, names)


def _made_by(factory: str) -> Any:
    """Make the model, or the functions that make its stages; what serves no splitter is refused."""
    from ms_recover.splitting import pickling, stages

    made = pickling.from_factory(factory)
    if not isinstance(made, tuple):
        stages.whole_model(made)
    return made


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
