"""The reason why two nodes do not agree about TLS."""

from __future__ import annotations

import socket
import ssl

from ms_recover.worlds.security import NOT_TLS, Security, reason

_ANSWER_S = 2.0


def mismatch(host: str, port: int, security: Security) -> str | None:
    """Return why this node's TLS settings do not match those of a server that cannot be joined, and what to do.

    The text goes behind the server's name; None when TLS is not the reason.
    """
    ours = security.guest_tls
    try:
        with socket.create_connection((host, port), timeout=_ANSWER_S) as sock:
            if ours is None:
                return _without_tls_here(sock)
            return _with_tls_here(sock, ours)
    except OSError:
        return None  # the server is gone, which is reported already


def _without_tls_here(sock: socket.socket) -> str | None:
    anybody = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    anybody.check_hostname, anybody.verify_mode = False, ssl.CERT_NONE  # nothing is said to it
    try:
        anybody.wrap_socket(sock).close()
    except ssl.SSLError as error:
        if "ALERT" not in (error.reason or ""):
            return None
    return "speaks TLS, and this node does not: give --certificate, --key and --authority here, too"


def _with_tls_here(sock: socket.socket, ours: ssl.SSLContext) -> str | None:
    try:
        with ours.wrap_socket(sock) as secured:
            # With TLS 1.3 the other end looks at this node's certificate when the handshake is over here.
            secured.recv(1)
    except TimeoutError:
        return None
    except ssl.SSLCertVerificationError as error:
        return (
            f"shows a certificate that this node does not accept ({reason(error)}): it has to be valid today and "
            "signed by the authority that --authority names here"
        )
    except ssl.SSLError as error:
        if error.reason in NOT_TLS:
            return "does not speak TLS: start it with --certificate, --key and --authority, too"
        if "ALERT" in (error.reason or ""):
            return (
                f"does not accept this node's certificate ({reason(error)}): it has to be valid today and signed by "
                "the authority that --authority names there"
            )
        return f"does not agree about TLS ({reason(error)}): see that both sides run the same version"
    return None
