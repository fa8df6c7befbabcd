"""The parts of a URL, and the URL as it may be shown."""

from __future__ import annotations

from dataclasses import dataclass, field
from urllib.parse import unquote, urlsplit

from ms_recover.errors import UsageError

WITH_USER = ("sftp", "ssh", "abfs", "abfss")
"""Schemes whose user (or container) is part of the place; that of others may be a token, and is a secret."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UrlParts:
    """A URL, taken apart; ``?``, ``#`` and ``%`` in its path are characters of names.

    Attributes
    ----------
    path : str
        From its first ``/`` on, without one at its end.
    shown : str
        Without password, without a user that is no part of the place, and without a ``/`` at its end.
    given : str
        As it was given, without a ``/`` at its end.
    """

    scheme: str
    user: str | None
    password: str | None = field(repr=False)
    host: str
    port: int | None
    path: str
    shown: str
    given: str = field(repr=False)

    @classmethod
    def of(cls, url: str) -> UrlParts:
        """Take a URL apart; a UsageError when it is malformed."""
        scheme, _, rest = url.partition("://")
        netloc, slash, path = rest.partition("/")
        try:
            parts = urlsplit(f"{scheme}://{netloc}")
            port = parts.port
        except ValueError:
            raise UsageError(f"the URL that begins with {scheme}:// is malformed: check host and port") from None
        userinfo, at, place = netloc.rpartition("@")
        user = f"{userinfo.partition(':')[0]}{at}" if parts.scheme in WITH_USER else ""
        path = (slash + path).rstrip("/")
        return cls(
            scheme=parts.scheme,
            user=unquote(parts.username) if parts.username else None,
            password=unquote(parts.password) if parts.password else None,
            host=parts.hostname or "",
            port=port,
            path=path,
            shown=f"{parts.scheme}://{user}{place}{path}",
            given=f"{scheme}://{netloc}{path}",
        )
