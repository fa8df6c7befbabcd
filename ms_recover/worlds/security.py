"""Authentication of members: a shared token, proven without being sent, and optional TLS with certificates."""

from __future__ import annotations

import asyncio
import errno
import hmac
import ipaddress
import os
import secrets
import ssl
import stat
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ms_recover.errors import UsageError
from ms_recover.worlds.handshake import NONCE_BYTES

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_TOKEN = 1 << 16

TOKEN_VARIABLE = "MS_RECOVER_WORLDS_TOKEN"  # noqa: S105 (a name)
TOKEN_FILE_VARIABLE = "MS_RECOVER_WORLDS_TOKEN_FILE"  # noqa: S105 (a name)
TLS_VARIABLES = ("MS_RECOVER_WORLDS_CERTIFICATE", "MS_RECOVER_WORLDS_KEY", "MS_RECOVER_WORLDS_AUTHORITY")
NOT_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's reasons when the other side does not use TLS."""
_MIN_TOKEN_BYTES = 16
_HANDSHAKE_ROUNDS = 4


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
        if self.token and len(self.token) < _MIN_TOKEN_BYTES:
            raise UsageError(f"a token of {len(self.token)} bytes is too short: at least {_MIN_TOKEN_BYTES} are needed")
        if (self.host_tls is None) != (self.guest_tls is None):
            raise UsageError("TLS needs contexts for both sides, see Security.mutual_tls")

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None, *, tls: bool = True) -> Security:
        """Read the token from ``MS_RECOVER_WORLDS_TOKEN``, or from the file named by ``MS_RECOVER_WORLDS_TOKEN_FILE``.

        TLS is used when ``MS_RECOVER_WORLDS_CERTIFICATE``, ``MS_RECOVER_WORLDS_KEY`` and
        ``MS_RECOVER_WORLDS_AUTHORITY`` name the files for `with_certificates`.

        Parameters
        ----------
        environment : mapping, optional
            ``os.environ`` by default.
        tls : bool
            False ignores the three variables for TLS.

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
        if not tls or not named:
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
        name = f"the token file {os.fspath(path)!r}"
        try:
            with open(os.open(path, _READ), "rb") as file:
                mode = os.fstat(file.fileno()).st_mode
                token = file.read(_MAX_TOKEN).strip() if stat.S_ISREG(mode) else b""
        except OSError as error:
            reason = "it is a link" if error.errno == errno.ELOOP else error.strerror
            raise UsageError(f"{name} cannot be read: {reason}") from error
        if not stat.S_ISREG(mode):
            raise UsageError(f"{name} is no regular file")
        if mode & 0o077:
            raise UsageError(f"others can read {name}: chmod 600 it")
        if not token:
            raise UsageError(f"{name} is empty")
        return cls(token)

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
        _check_files(certificate, key, authority)
        server, client = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        for context in (server, client):
            # A member is identified by the authority that signed its certificate, not by a host name.
            context.check_hostname = False
            context.verify_mode = ssl.CERT_REQUIRED
            context.minimum_version = ssl.TLSVersion.TLSv1_3
            context.load_cert_chain(certificate, key)
            context.load_verify_locations(authority)
        return Security(self.token, host_tls=server, guest_tls=client)

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
    try:
        _try_handshake(secured)
    except ssl.SSLError as error:
        raise UsageError(
            f"other nodes would not accept the certificate {certificate!r} ({reason(error)}): it must be valid "
            f"today, for servers and for clients, and signed by the authority {authority!r}"
        ) from error
    return secured


def reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason without its source location."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    text = (error.reason or str(error)).replace("_", " ").lower()
    return text.partition(" alert ")[2] or text


def describe(error: Exception) -> str:
    """Return a message for a failed handshake, also for errors without a message of their own."""
    if isinstance(error, ssl.SSLError):
        hint = " (is TLS used on one side only?)" if error.reason in NOT_TLS else ""
        return f"TLS: {reason(error)}{hint}"
    if isinstance(error, ConnectionRefusedError):
        return "no program listens there"
    return str(error) or ("no answer in time" if isinstance(error, asyncio.TimeoutError) else type(error).__name__)


def _check_files(certificate: str, key: str, authority: str) -> None:
    for path in (certificate, key, authority):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise UsageError(f"{path!r} cannot be read: {error.strerror}") from error
    if Path(key).stat().st_mode & 0o007:
        raise UsageError(f"others can read the key file {key!r}: chmod 600 it")
    for path in (certificate, authority):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError as error:
            raise UsageError(f"{path!r} contains no certificate in PEM ({reason(error)})") from error
    try:
        # With a function for the password OpenSSL never prompts for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: _no_password(key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"the key {key!r} does not match the certificate {certificate!r}") from error
        raise UsageError(f"{key!r} contains no private key in PEM that can be used ({reason(error)})") from error


def _no_password(key: str) -> str:
    raise UsageError(f"the key {key!r} is encrypted, and nobody can be asked for its password: decrypt it")


def _try_handshake(security: Security) -> None:
    """Run both sides of a TLS handshake in memory: a certificate that is refused here is refused everywhere."""
    assert security.host_tls is not None
    assert security.guest_tls is not None
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        security.guest_tls.wrap_bio(to_client, to_server),
        security.host_tls.wrap_bio(to_server, to_client, server_side=True),
    )
    for _ in range(_HANDSHAKE_ROUNDS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


def is_loopback(address: str) -> bool:
    """Whether a numeric address is reachable from this host only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def make_nonce() -> bytes:
    """Return fresh random bytes."""
    return secrets.token_bytes(NONCE_BYTES)


def prove(key: bytes, label: str, *transcript: bytes) -> bytes:
    """Return the HMAC-SHA256 of a label and the parts of a transcript: 32 bytes."""
    parts = [len(part).to_bytes(4, "big") + part for part in transcript]
    return hmac.digest(key, b"\0".join([label.encode(), *parts]), "sha256")
