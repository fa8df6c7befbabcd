"""Who may join a world: a shared token, proven without being sent, and TLS with certificates as an option."""

from __future__ import annotations

import asyncio
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
TLS_VARIABLES = ("MS_RECOVER_WORLDS_CERTIFICATE", "MS_RECOVER_WORLDS_KEY", "MS_RECOVER_WORLDS_AUTHORITY")
NOT_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's reasons when the other end speaks something else."""
_SHORTEST = 16
_ROUNDS = 4


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
    def from_environment(cls, environment: Mapping[str, str] | None = None, *, tls: bool = True) -> Security:
        """Take the token from ``MS_RECOVER_WORLDS_TOKEN`` or the file that ``MS_RECOVER_WORLDS_TOKEN_FILE`` names.

        TLS is used when ``MS_RECOVER_WORLDS_CERTIFICATE``, ``MS_RECOVER_WORLDS_KEY`` and
        ``MS_RECOVER_WORLDS_AUTHORITY`` name the files that `with_certificates` takes.

        Parameters
        ----------
        environment : mapping, optional
            ``os.environ`` by default.
        tls : bool
            Whether the last three count.

        Raises
        ------
        UsageError
            When both of the first two are set or only some of the last three, the token is too short, others can read
            its file, or the files for TLS are not what they should be.
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
            raise UsageError(
                f"TLS needs {TLS_VARIABLES[0]}, {TLS_VARIABLES[1]} and {TLS_VARIABLES[2]}, all three or none; missing: "
                f"{', '.join(missing)}"
            )
        return with_certificates(security, *named)

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

        Raises
        ------
        UsageError
            When a file cannot be read or is none of these, others can read the key, it is encrypted, or key and
            certificate do not belong together.
        """
        _check_files(certificate, key, authority)
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
                f"into {TOKEN_FILE_VARIABLE} (recover-ckpt: also --token-file), or the token itself into "
                f"{TOKEN_VARIABLE}"
            )


def with_certificates(security: Security, certificate: str, key: str, authority: str) -> Security:
    """Return the same with TLS, as `Security.mutual_tls`, and find out first whether others can accept the certificate.

    Parameters
    ----------
    security : Security
    certificate, key, authority : str
        Paths of PEM files: this member's certificate and private key, and the authority's certificate.

    Raises
    ------
    UsageError
        As `Security.mutual_tls` does, and when the certificate would not be accepted by a member that has the same
        authority.
    """
    secured = security.mutual_tls(certificate, key, authority)
    try:
        _meet_oneself(secured)
    except ssl.SSLError as error:
        raise UsageError(
            f"other nodes would not accept the certificate {certificate!r} ({reason(error)}): it has to be valid "
            f"today, for servers and for clients, and signed by the authority {authority!r}"
        ) from error
    return secured


def reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's words, without where in its sources they were said."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    words = (error.reason or str(error)).replace("_", " ").lower()
    return words.partition(" alert ")[2] or words


def in_words(error: Exception) -> str:
    """Say what went wrong in a handshake, also where the error itself has no words for it."""
    if isinstance(error, ssl.SSLError):
        hint = " (is it used on one side only?)" if error.reason in NOT_TLS else ""
        return f"TLS: {reason(error)}{hint}"
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
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
            raise UsageError(f"{path!r} holds no certificate in PEM ({reason(error)})") from error
    try:
        # With a function for the password nobody is ever asked for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: _no_password(key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"the key {key!r} is not that of the certificate {certificate!r}") from error
        raise UsageError(f"{key!r} holds no private key in PEM that can be used ({reason(error)})") from error


def _no_password(key: str) -> str:
    raise UsageError(f"the key {key!r} is encrypted, and nobody is there to be asked for its password: decrypt it")


def _meet_oneself(security: Security) -> None:
    """Be both ends of a handshake: a certificate that is refused here is refused everywhere."""
    assert security.host_tls is not None
    assert security.guest_tls is not None
    to_host, to_guest = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = (
        security.guest_tls.wrap_bio(to_guest, to_host),
        security.host_tls.wrap_bio(to_host, to_guest, server_side=True),
    )
    for _ in range(_ROUNDS):
        for end in ends:
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue


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
