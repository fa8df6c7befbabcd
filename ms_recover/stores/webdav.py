"""WebDAV by fsspec: ``webdavs://`` and ``davs://`` over TLS, ``webdav://`` and ``dav://`` without."""

from __future__ import annotations

import netrc
from contextlib import suppress
from ipaddress import ip_address
from typing import Any

import fsspec
from fsspec.config import conf

from ms_recover.errors import UsageError
from ms_recover.stores.url_parts import UrlParts

WEBDAV = ("webdav", "dav", "webdavs", "davs")

_SECONDS = 20.0


def webdav_system(parts: UrlParts) -> Any:
    """Return the file system; the password is that of the URL, of fsspec's configuration, or of ``~/.netrc``.

    Raises
    ------
    UsageError
        When a password would cross a network in the clear.
    """
    secure = parts.scheme.endswith("s")
    auth = (parts.user, parts.password) if parts.user and parts.password else conf.get("webdav", {}).get("auth")
    if auth is None:
        with suppress(FileNotFoundError, netrc.NetrcParseError):
            found = netrc.netrc().authenticators(parts.host)
            auth = (found[0], found[2]) if found else None
    if auth is not None and not secure and not _is_loopback(parts.host):
        raise UsageError(f"{parts.shown}: the password would cross the network in the clear; use webdavs://")
    port = "" if parts.port is None else f":{parts.port}"
    host = f"[{parts.host}]" if ":" in parts.host else parts.host
    base = f"{'https' if secure else 'http'}://{host}{port}"
    given = dict(conf.get("webdav", {}), base_url=base, auth=None if auth is None else tuple(auth))
    system = fsspec.filesystem("webdav", **{"timeout": _SECONDS, **given}, skip_instance_cache=True)
    system.client.http.max_redirects = 0  # a redirect is an error: bytes come from this server alone
    return system


def _is_loopback(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
