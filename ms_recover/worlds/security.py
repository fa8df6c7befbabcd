"""Authentication of members: a shared token, proven without being sent, and optional TLS with certificates."""

from __future__ import annotations

import asyncio
import hmac
import os
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from ms_recover.errors import UsageError
from ms_recover.stores.credentials import (
    NOT_TLS,
    check_files,
    check_token,
    client_context,
    is_loopback,
    read_token,
    reason,
    server_context,
    try_handshake,
)
from ms_recover.worlds.handshake import NONCE_BYTES

TOKEN_VARIABLE = "MS_RECOVER_WORLDS_TOKEN"  # noqa: S105 (a name)
TOKEN_FILE_VARIABLE = "MS_RECOVER_WORLDS_TOKEN_FILE"  # noqa: S105 (a name)
TLS_VARIABLES = ("MS_RECOVER_WORLDS_CERTIFICATE", "MS_RECOVER_WORLDS_KEY", "MS_RECOVER_WORLDS_AUTHORITY")


@dataclass(frozen=True)
class Security:
    """Token and TLS with which members authenticate each other.

    In the handshake both sides prove that they know the token, for this world, epoch, rank and connection. It does not
    protect the bytes that follow: use TLS on networks where others can change them.

    Raises
    ------
    UsageError
        When the token is too short, or only one context is given.
    """

    token: bytes = field(default=b"", repr=False)
    """At least 16 bytes; may be empty on loopback only."""
    host_tls: ssl.SSLContext | None = None
    """For accepted connections; given together with `guest_tls`, see `mutual_tls`."""
    guest_tls: ssl.SSLContext | None = None
    """For opened connections."""

    def __post_init__(self) -> None:
        check_token(self.token)
        if (self.host_tls is None) != (self.guest_tls is None):
            raise UsageError("TLS needs contexts for both sides, see Security.mutual_tls")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Security:
        """Read the token from ``MS_RECOVER_WORLDS_TOKEN``, or from the file named by ``MS_RECOVER_WORLDS_TOKEN_FILE``.

        TLS is used when ``MS_RECOVER_WORLDS_CERTIFICATE``, ``MS_RECOVER_WORLDS_KEY`` and
        ``MS_RECOVER_WORLDS_AUTHORITY`` name the files for `with_certificates`.

        Parameters
        ----------
        environment : mapping, optional
            ``os.environ`` by default.

        Raises
        ------
        UsageError
            When both variables for the token are set, or only some of those for TLS; when the token is too short or
            others can read its file; when the files for TLS are invalid.
        """
        environment = os.environ if environment is None else environment
        token, path = environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE)
        if token and path:
            raise UsageError(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: unset one")
        security = cls.from_file(path) if path else cls((token or "").encode())
        files = {variable: environment.get(variable) for variable in TLS_VARIABLES}
        named = [file for file in files.values() if file]
        if not named:
            return security
        missing = [variable for variable, file in files.items() if not file]
        if missing:
            first, second, third = TLS_VARIABLES
            needed = f"TLS needs {first}, {second} and {third}, all three or none"
            raise UsageError(f"{needed}; missing: {', '.join(missing)}")
        return with_certificates(security, *named)

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Security:
        """Read the token from a file that only its owner can read.

        Raises
        ------
        UsageError
            When the file is a link or no regular file, cannot be read, the token is too short, or others can read it.
        """
        return cls(read_token(path))

    def mutual_tls(self, certificate: str, key: str, authority: str) -> Security:
        """Return a copy with TLS, where both sides present a certificate of one authority.

        Parameters
        ----------
        certificate, key, authority : str
            Paths of PEM files: this member's certificate and private key, and the authority's certificate.

        Raises
        ------
        UsageError
            When a file cannot be read or is invalid, others can read the key, the key is encrypted, or key and
            certificate do not match.
        """
        check_files(certificate, key, authority)
        host_tls, guest_tls = (make(certificate, key, authority) for make in (server_context, client_context))
        return Security(self.token, host_tls=host_tls, guest_tls=guest_tls)

    def allow(self, address: str) -> None:
        """Raise UsageError when there is no token and other hosts can reach the address."""
        if not self.token and not is_loopback(address):
            raise UsageError(
                f"{address} is not loopback, so a token is needed: put it into a file of mode 600 and the file's name "
                f"into {TOKEN_FILE_VARIABLE} (recover-ckpt: also --token-file), or the token itself into "
                f"{TOKEN_VARIABLE}"
            )


def with_certificates(security: Security, certificate: str, key: str, authority: str) -> Security:
    """Return a copy with TLS, as `Security.mutual_tls`, and verify that other members would accept the certificate."""
    secured = security.mutual_tls(certificate, key, authority)
    try_handshake(certificate, key, authority)
    return secured


def describe(error: Exception) -> str:
    """Return a message for a failed handshake, also for errors without a message of their own."""
    if isinstance(error, ssl.SSLError):
        hint = " (is TLS used on one side only?)" if error.reason in NOT_TLS else ""
        return f"TLS: {reason(error)}{hint}"
    if isinstance(error, ConnectionRefusedError):
        return "no program listens there"
    return str(error) or ("no answer in time" if isinstance(error, asyncio.TimeoutError) else type(error).__name__)


def make_nonce() -> bytes:
    """Return fresh random bytes."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(key: bytes, label: str, *transcript: bytes) -> bytes:
    """Return the HMAC-SHA256 of a label and the parts of a transcript: 32 bytes."""
    parts = [len(part).to_bytes(4, "big") + part for part in transcript]
    return hmac.digest(key, b"\0".join([label.encode(), *parts]), "sha256")
