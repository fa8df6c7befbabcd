"""The tree of another node, as people write it: ``HOST:PORT`` of a recover-ckpt serve, a URL, or a path."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ms_recover.errors import UsageError
from ms_recover.stores.http_access import (
    INSECURE_VARIABLE,
    TOKEN_FILE_VARIABLE,
    TOKEN_VARIABLE,
    Access,
    reaches_loopback,
)
from ms_recover.stores.http_store import HttpStore
from ms_recover.stores.urls import is_url, open_store

if TYPE_CHECKING:
    from ms_recover.stores.store import Store

DEFAULT_PORT = 29610
_ADDRESS = re.compile(r"(?:\[(?P<six>[0-9A-Fa-f:.%\w]+)\]|(?P<host>[^\[\]:/\s]+))(?::(?P<port>\d{1,5}))?\Z", re.ASCII)


def server_url(text: str, access: Access) -> str:
    """Return the URL of the recover-ckpt serve at ``HOST``, ``HOST:PORT`` or ``[IPV6]:PORT``.

    It is https:// where `access` has some file for TLS, and everywhere off loopback unless that may be insecure.

    Raises
    ------
    UsageError
        When the text is none of these, or a token is needed and missing.
    """
    match = _ADDRESS.match(text)
    port = int(match["port"] or DEFAULT_PORT) if match else 0
    if match is None or not 0 < port < 1 << 16:
        raise UsageError(f"{text!r} is no address: write HOST:PORT, for example 10.0.0.2:{DEFAULT_PORT}, or a URL")
    host = match["six"] or match["host"]
    here = access.insecure or reaches_loopback(host)
    if not here and not access.token:
        raise UsageError(
            f"{host} is not loopback, so a token is needed: put it into a file of mode 600 and name that with "
            f"--token-file or in {TOKEN_FILE_VARIABLE}, or the token itself in {TOKEN_VARIABLE}; or say --insecure "
            f"(or {INSECURE_VARIABLE}=1)"
        )
    scheme = "https" if access.names_tls or not here else "http"
    return f"{scheme}://[{host}]:{port}" if ":" in host else f"{scheme}://{host}:{port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """Where the tree of another node is.

    Parameters
    ----------
    url : str
        Its URL, or its path.
    any_server : bool
        Whether another web server than recover-ckpt serve may be there.
    """

    url: str
    any_server: bool = True

    @classmethod
    def parse(cls, text: str, access: Access) -> Source:
        """Return the source behind a text: what has a ``/`` is a URL or a path, everything else an address.

        Raises
        ------
        UsageError
            As for `server_url`; and when it could be a folder here.
        """
        if is_url(text) or "/" in text:
            return cls(url=text)
        if os.path.isdir(text):
            raise UsageError(
                f"{text} is a folder here: write ./{text}, or {text}:{DEFAULT_PORT} for a host of that name"
            )
        return cls(url=server_url(text, access), any_server=False)

    @property
    def path(self) -> str | None:
        """Its path, None for a URL."""
        return None if is_url(self.url) else self.url

    def open(self, access: Access, timeout: float | None = None, min_rate: float | None = None) -> Store:
        """Open the tree; a web server is waited for as `HttpStore` says.

        Raises
        ------
        MsRecoverError
            As for `open_store`.
        """
        if self.url.partition("://")[0].lower() in ("http", "https"):
            return HttpStore(self.url, access, timeout, min_rate)
        store = open_store(self.url)
        store.host = store.host or store.url  # where provenance says that the bytes come from
        return store
