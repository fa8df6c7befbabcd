"""Who may join a world: a shared token, proven without being sent, and TLS with certificates as an option."""

from __future__ import annotations

import hmac
import ipaddress
import os
import secrets
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ms_recover.errors import UsageError
from ms_recover.worlds.hello import NONCE

TOKEN_VARIABLE = "MS_RECOVER_WORLDS_TOKEN"  # noqa: S105 (a name)
TOKEN_FILE_VARIABLE = "MS_RECOVER_WORLDS_TOKEN_FILE"  # noqa: S105 (a name)
_SHORTEST = 16


@dataclass(frozen=True)
class Security:
    """How members recognise each other.

    The handshake proves on both sides that the token is known, for this world, epoch, rank and connection. It does not
    protect the bytes that follow: use TLS on networks where others can change them.

    Parameters
    ----------
    token : bytes
        At least 16 bytes; empty is allowed on loopback only.
    host_tls, guest_tls : ssl.SSLContext, optional
        Contexts for accepted and for opened connections; see `mutual_tls`.
    """

    token: bytes = field(default=b"", repr=False)
    host_tls: ssl.SSLContext | None = None
    guest_tls: ssl.SSLContext | None = None

    def __post_init__(self) -> None:
        if self.token and len(self.token) < _SHORTEST:
            raise UsageError(f"a token of {len(self.token)} bytes is too short: at least {_SHORTEST} are needed")
        if (self.host_tls is None) != (self.guest_tls is None):
            raise UsageError("TLS needs a context for both ends, see Security.mutual_tls")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Security:
        """Take the token from ``MS_RECOVER_WORLDS_TOKEN`` or the file that ``MS_RECOVER_WORLDS_TOKEN_FILE`` names.

        Parameters
        ----------
        environment : mapping, optional
            ``os.environ`` by default.

        Raises
        ------
        UsageError
            When both are set, the token is too short or others can read its file.
        """
        environment = os.environ if environment is None else environment
        token, path = environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE)
        if token and path:
            raise UsageError(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: unset one")
        return cls.from_file(path) if path else cls((token or "").encode())

    @classmethod
    def from_file(cls, path: str | os.PathLike[str]) -> Security:
        """Take the token from a file that only its owner can read.

        Raises
        ------
        UsageError
            When it cannot be read, is too short or others can read it.
        """
        try:
            mode = Path(path).stat().st_mode
            token = Path(path).read_bytes().strip()
        except OSError as error:
            raise UsageError(f"the token file {os.fspath(path)!r} cannot be read: {error.strerror}") from error
        if mode & 0o077:
            raise UsageError(f"others can read the token file {os.fspath(path)!r}: chmod 600 it")
        if not token:
            raise UsageError(f"the token file {os.fspath(path)!r} is empty")
        return cls(token)

    def mutual_tls(self, certificate: str, key: str, authority: str) -> Security:
        """Return the same with TLS, where both ends show a certificate of one authority.

        Parameters
        ----------
        certificate, key, authority : str
            Paths of PEM files: this member's certificate and private key, and the authority's certificate.
        """
        host, guest = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (host, guest):
            # Members are known by the authority that signed them; they have no names of their own.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(certificate, key)
            context.load_verify_locations(authority)
        return Security(self.token, host, guest)

    def allow(self, address: str) -> None:
        """Refuse to meet at an address that strangers can reach when there is no token.

        Raises
        ------
        UsageError
            When the address is not loopback and there is no token.
        """
        if not self.token and not is_loopback(address):
            raise UsageError(
                f"{address} is not loopback, so a token is needed: put it into a file of mode 600 and the file's name "
                f"into {TOKEN_FILE_VARIABLE}, or the token itself into {TOKEN_VARIABLE}"
            )


def is_loopback(address: str) -> bool:
    """Tell whether a numeric address is reachable from this host only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def nonce() -> bytes:
    """Return fresh random bytes."""
    return secrets.token_bytes(NONCE)


def prove(key: bytes, label: str, *transcript: bytes) -> bytes:
    """Return the HMAC-SHA256 of a label and what was said, in 32 bytes."""
    return hmac.digest(
        key, b"\0".join([label.encode(), *(len(part).to_bytes(4, "big") + part for part in transcript)]), "sha256"
    )


def same(given: bytes, computed: bytes) -> bool:
    """Compare in constant time."""
    return hmac.compare_digest(given, computed)
