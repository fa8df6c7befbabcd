"""Files with a token or with certificates, checked before anybody is asked."""

from __future__ import annotations

import errno
import ipaddress
import os
import ssl
import stat
from pathlib import Path

from ms_recover.errors import UsageError

_READ = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK
_MAX_TOKEN = 1 << 16
_MIN_TOKEN_BYTES = 16
_HANDSHAKE_ROUNDS = 4

NOT_TLS = ("WRONG_VERSION_NUMBER", "UNKNOWN_PROTOCOL", "PACKET_LENGTH_TOO_LONG", "HTTP_REQUEST")
"""OpenSSL's reasons when the other side does not use TLS."""


def check_token(token: bytes) -> bytes:
    """Return a token; UsageError when it is too short, none at all is not."""
    if token and len(token) < _MIN_TOKEN_BYTES:
        raise UsageError(f"a token of {len(token)} bytes is too short: at least {_MIN_TOKEN_BYTES} are needed")
    return token


def read_token(path: str | os.PathLike[str]) -> bytes:
    """Read a token from a file that only its owner can read.

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
    return check_token(token)


def server_context(certificate: str, key: str, authority: str | None) -> ssl.SSLContext:
    """Return TLS 1.3 for accepted connections; with an `authority` the other side has to show a certificate of it."""
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER), certificate, key, authority)


def client_context(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """Return TLS 1.3 for opened connections, where both sides show a certificate of one authority.

    The other side is identified by the authority that signed its certificate, not by a host name.
    """
    return _loaded(ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT), certificate, key, authority)


def _loaded(context: ssl.SSLContext, certificate: str, key: str, authority: str | None) -> ssl.SSLContext:
    context.check_hostname = False
    context.minimum_version = ssl.TLSVersion.TLSv1_3
    context.load_cert_chain(certificate, key)
    if authority is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(authority)
    return context


def check_files(certificate: str | None, key: str | None, authority: str | None) -> None:
    """Check the PEM files that are given: a certificate and its key, and the certificate of an authority.

    Raises
    ------
    UsageError
        When a file cannot be read or is invalid, others can read the key, the key is encrypted, or key and
        certificate do not match.
    """
    for path in filter(None, (certificate, key, authority)):
        try:
            with open(path, "rb"):
                pass
        except OSError as error:
            raise UsageError(f"{path!r} cannot be read: {error.strerror}") from error
    if key is not None and Path(key).stat().st_mode & 0o007:
        raise UsageError(f"others can read the key file {key!r}: chmod 600 it")
    for path in filter(None, (certificate, authority)):
        try:
            ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_verify_locations(path)
        except ssl.SSLError as error:
            raise UsageError(f"{path!r} contains no certificate in PEM ({reason(error)})") from error
    if certificate is None or key is None:
        return
    try:
        # With a function for the password OpenSSL never prompts for one.
        ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT).load_cert_chain(certificate, key, lambda: _no_password(key))
    except ssl.SSLError as error:
        if error.reason == "KEY_VALUES_MISMATCH":
            raise UsageError(f"the key {key!r} does not match the certificate {certificate!r}") from error
        raise UsageError(f"{key!r} contains no private key in PEM that can be used ({reason(error)})") from error


def try_handshake(certificate: str, key: str, authority: str | None) -> None:
    """Run both sides of a TLS handshake in memory: a certificate that is refused here is refused everywhere.

    Without an authority, whose clients are any, it is only checked that the certificate is valid today, for servers.

    Raises
    ------
    UsageError
        When it is refused.
    """
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    client = _trusting(certificate) if authority is None else client_context(certificate, key, authority)
    ends = (
        client.wrap_bio(to_client, to_server),
        server_context(certificate, key, authority).wrap_bio(to_server, to_client, server_side=True),
    )
    try:
        for _ in range(_HANDSHAKE_ROUNDS):
            for end in ends:
                try:
                    end.do_handshake()
                except ssl.SSLWantReadError:
                    continue
    except ssl.SSLError as error:
        who = "clients" if authority is None else "other nodes"
        needs = "for servers"
        if authority is not None:
            needs = f"for servers and for clients, and signed by the authority {authority!r}"
        raise UsageError(
            f"{who} would not accept the certificate {certificate!r} ({reason(error)}): it must be valid today, {needs}"
        ) from error


def _trusting(certificate: str) -> ssl.SSLContext:
    """Return the TLS of a client that trusts one certificate, whoever signed it."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.load_verify_locations(certificate)
    context.verify_flags |= ssl.VerifyFlags.VERIFY_X509_PARTIAL_CHAIN
    return context


def reason(error: ssl.SSLError) -> str:
    """Return OpenSSL's reason without its source location."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return error.verify_message
    text = (error.reason or str(error)).replace("_", " ").lower()
    return text.partition(" alert ")[2] or text


def is_loopback(address: str) -> bool:
    """Whether a numeric address is reachable from this host only."""
    return ipaddress.ip_address(address.partition("%")[0]).is_loopback


def _no_password(key: str) -> str:
    raise UsageError(f"the key {key!r} is encrypted, and nobody can be asked for its password: decrypt it")
