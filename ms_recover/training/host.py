"""The name of the host that this process runs on, as manifests state it."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from contextlib import suppress

HOST = "MS_RECOVER_HOST"
"""Environment variable with the name, for containers whose host name is their own."""

NODE = "NODE_NAME"
"""The same in a pod of Kubernetes, from ``spec.nodeName``; elsewhere other tools use it."""

_POD = "KUBERNETES_SERVICE_HOST"
_IN_CONTAINER = ("/.dockerenv", "/run/.containerenv")
_BOOT_ID = "/proc/sys/kernel/random/boot_id"
_LONGEST = 255


def host_name(
    environ: Mapping[str, str] = os.environ,
    hostname: Callable[[], str] = socket.gethostname,
    boot_id: Callable[[], str] | None = None,
    in_container: bool | None = None,
) -> str | None:
    """Return the name of the host; None where nothing names it.

    It is `HOST`; in a pod `NODE`; in another container a name made of the kernel's boot id, because containers of one
    machine share it and have host names of their own (https://docs.kernel.org/admin-guide/sysctl/kernel.html, random);
    elsewhere the host name.
    """
    is_pod = bool(environ.get(_POD))
    named = environ.get(HOST, "").strip() or (environ.get(NODE, "").strip() if is_pod else "")
    if not named and (is_pod or (any(map(os.path.exists, _IN_CONTAINER)) if in_container is None else in_container)):
        with suppress(OSError):
            named = f"machine-{(boot_id or _read_boot_id)()[:13]}"
        return named or None
    if not named:
        with suppress(OSError):
            named = hostname().strip()
    return named[:_LONGEST] if named.isprintable() and named else None


def _read_boot_id() -> str:
    with open(_BOOT_ID, encoding="ascii") as file:
        return file.read().strip()
