"""The host that this process runs on, as manifests state it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

HOST = "MS_RECOVER_HOST"
"""Environment variable with the name, where host names mean nothing."""

NODE = "NODE_NAME"
"""The same in a pod of Kubernetes, from ``spec.nodeName``; elsewhere other tools use it."""

_POD = "KUBERNETES_SERVICE_HOST"
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LONGEST = 255


def _read_boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()


def this_host(
    environ: Mapping[str, str] = os.environ,
    hostname: Callable[[], str] = socket.gethostname,
    boot_id: Callable[[], str] = _read_boot_id,
) -> tuple[str | None, str | None]:
    """Return the name of the host and the id of its machine, each None where it is not known.

    The name is `HOST`, in a pod `NODE`, else the host name. A name that somebody chose needs no machine. The machine is
    the kernel's boot id (https://docs.kernel.org/admin-guide/sysctl/kernel.html, ``random``), because containers have
    host names of their own, and those of one machine share its kernel.
    """
    chosen = environ.get(HOST, "").strip() or (environ.get(NODE, "").strip() if environ.get(_POD) else "")
    name, machine = chosen, ""
    if not chosen:
        with suppress(OSError):
            name = hostname().strip()
        with suppress(OSError, UnicodeDecodeError):
            machine = boot_id()
    usable = name.isprintable() and name
    return (name[:_LONGEST] if usable else None), (machine[:_LONGEST] or None)
