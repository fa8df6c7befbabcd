"""The jobs of workers: everything that a process needs to know to begin."""

from __future__ import annotations

import ipaddress
import os
import secrets
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ms_recover.worlds.security import Security

if TYPE_CHECKING:
    from ms_recover.splitting.options import Options  # workers import this module, and need none


@dataclass(frozen=True, kw_only=True)
class Job:
    """The job of one worker; those on other hosts need no field after `target`."""

    world: str
    """The world that the splitter shares with the worker; the splitter listens at `addr` and `port`."""
    addr: str
    port: int
    heartbeat: float
    """Seconds of silence after which the other end is lost."""
    timeout: float
    """Seconds until the world has to be there."""
    target: str
    """MindSpore's device target."""
    mode: int = 0
    """MindSpore's mode, graph or PyNative."""
    threads: int | None = None
    """Number of MindSpore's threads."""
    token: bytes = field(default=b"", repr=False)
    """The secret of the splitter and its workers on this host."""
    parts: tuple[bytes, ...] = field(default=(), repr=False)
    """Each part of the model without its weights, see `ms_recover.splitting.pickling`."""
    method: bytes = field(default=b"", repr=False)
    """How parts are trained, see `ms_recover.splitting.training`; empty when they are not."""
    path: tuple[str, ...] = ()
    """Python's module search path."""
    cores: tuple[tuple[int, ...], ...] = ()
    """Cores reserved for each device; empty when there are too few."""
    parent: int = 0
    """Process id of the splitter."""
    device_ids: tuple[int, ...] = ()
    """The accelerator of each device; by default their numbers."""

    def device_id(self, device: int) -> int:
        """Return the number of a device's accelerator."""
        return self.device_ids[device] if self.device_ids else device


@dataclass(frozen=True, kw_only=True)
class WorkerJobs:
    """The jobs of all workers of a splitter."""

    local: Job
    """Of each worker on this host; the name of the world is added for each."""
    remote: Mapping[int, Job]
    """By device, of the workers on other hosts."""
    remote_security: Security
    """Of the worlds with workers on other hosts."""
    part_fields: tuple[Mapping[str, Any], ...]
    """For each part the place in the model (``split``, ``stages`` of ``total``), the ``seed`` of stages that no other
    process has, and MindSpore's ``mode``: a worker on another host makes the part from these."""


def remote_world_name(port: int) -> str:
    """Return the name of the world with the remote worker that joins at a port of the splitter."""
    return f"ms_recover.splitting.{port}"


@dataclass(frozen=True, kw_only=True)
class AllStages:
    """The stages of the whole model, for the workers."""

    parts: Sequence[range]
    """The stages of each part."""
    pickled: tuple[bytes, ...]
    """Each part without its weights."""
    total: int
    seed: int | None
    """Of the stages that workers make."""
    names: Sequence[str] | None
    """Where the model itself does not say which they are."""


def make_jobs(options: Options, stages: AllStages, method: bytes) -> WorkerJobs:
    """Return the jobs of all workers; the method is how parts are trained."""
    local = replace(_local_job(options, stages.pickled), method=method)
    first_remote = options.num_devices - options.remote
    ports = range(options.port, options.port + options.remote)
    return WorkerJobs(
        local=local,
        remote={
            first_remote + index: replace(local, world=remote_world_name(port), addr=options.addr, port=port)
            for index, port in enumerate(ports)
        },
        remote_security=_remote_security(options),
        part_fields=tuple(
            {
                "split": options.split,
                "stages": [part.start, part.stop],
                "total": stages.total,
                "seed": stages.seed,
                "mode": local.mode,
                "names_of_stages": stages.names,
            }
            for part in stages.parts
        ),
    )


def _local_job(options: Options, pickled: tuple[bytes, ...]) -> Job:
    import mindspore

    target = options.device_target or mindspore.get_context("device_target")
    local_devices = options.num_devices - options.remote
    cores = sorted(os.sched_getaffinity(0))
    threads = options.threads
    if threads is None and target == "CPU":
        threads = max(1, len(cores) // max(1, local_devices))
    reserved: tuple[tuple[int, ...], ...] = ()
    if threads is not None and target == "CPU" and threads * local_devices <= len(cores):
        starts = range(0, threads * local_devices, threads)
        reserved = tuple(tuple(cores[start : start + threads]) for start in starts)
    return Job(
        world="",
        addr="127.0.0.1",
        port=0,
        token=secrets.token_bytes(32),
        heartbeat=options.heartbeat,
        timeout=options.start_timeout,
        parts=pickled,
        path=tuple(os.path.abspath(directory) for directory in sys.path),
        mode=mindspore.get_context("mode"),
        target=target,
        threads=threads,
        cores=reserved,
        device_ids=tuple(options.device_ids or ()),
    )


def _remote_security(options: Options) -> Security:
    """Return the security of worlds with remote workers."""
    if not options.remote:
        return Security()
    security = Security.from_environment()
    try:
        address = ipaddress.ip_address(options.addr)
    except ValueError:
        return security  # a host name is checked once it is resolved
    security.allow(str(address))
    return security
