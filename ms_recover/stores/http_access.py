"""The proof that this process may read from web servers, and how it knows that they are the right ones."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Mapping
from dataclasses import dataclass, field

from ms_recover.errors import UsageError
from ms_recover.stores.credentials import check_files, check_token, client_context, is_loopback, read_token

TOKEN_VARIABLE = "MS_RECOVER_TOKEN"  # noqa: S105 (a name)
TOKEN_FILE_VARIABLE = "MS_RECOVER_TOKEN_FILE"  # noqa: S105 (a name)
INSECURE_VARIABLE = "MS_RECOVER_INSECURE"
TLS_VARIABLES = {
    "certificate": "MS_RECOVER_CERTIFICATE",
    "key": "MS_RECOVER_KEY",
    "authority": "MS_RECOVER_AUTHORITY",
}
"""Environment variables with the PEM files for TLS."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Access:
    """Token and TLS files for reading from, or serving, over HTTP.

    Attributes
    ----------
    token : bytes
        At least 16 bytes; none by default.
    certificate, key : str or None
        PEM files of this node: both or none.
    authority : str or None
        PEM file with the authorities that may have signed the other side's certificate; by default those of the system.
    insecure : bool
        Whether the token and the bytes may cross a network without TLS.

    Raises
    ------
    UsageError
        When the token is too short, a file cannot be used, or a certificate or key is given alone.
    """

    token: bytes = field(default=b"", repr=False)
    certificate: str | None = None
    key: str | None = None
    authority: str | None = None
    insecure: bool = False

    def __post_init__(self) -> None:
        check_token(self.token)
        missing = [name for name in ("certificate", "key") if getattr(self, name) is None]
        if len(missing) == 1:
            name = missing[0]
            raise UsageError(
                f"TLS needs --certificate and --key together; missing: --{name} (or {TLS_VARIABLES[name]})"
            )
        check_files(self.certificate, self.key, self.authority)

    @classmethod
    def from_environment(
        cls, environment: Mapping[str, str] | None = None, *, token_file: str | None = None, **given: str | bool | None
    ) -> Access:
        """Return what is given, and for the rest what the environment names.

        Parameters
        ----------
        environment : mapping, optional
            ``os.environ`` by default.
        token_file : str, optional
            Goes before both variables of the token.
        **given
            Other fields; None for the variable.

        Raises
        ------
        UsageError
            As for `Access`; and when both variables for the token are set, or others can read its file.
        """
        environment = os.environ if environment is None else environment
        token, path = environment.get(TOKEN_VARIABLE), environment.get(TOKEN_FILE_VARIABLE)
        if token_file is None and token and path:
            raise UsageError(f"{TOKEN_VARIABLE} and {TOKEN_FILE_VARIABLE} are both set: unset one")
        path = token_file or path
        fields: dict[str, str | None] = {}
        for name, variable in TLS_VARIABLES.items():
            value = given.get(name)
            fields[name] = str(value) if value else environment.get(variable) or None
        return cls(
            token=read_token(path) if path else (token or "").encode(),
            insecure=bool(given.get("insecure")) or environment.get(INSECURE_VARIABLE, "") not in ("", "0", "no"),
            **fields,
        )

    @property
    def names_tls(self) -> bool:
        """Whether some file for TLS is given."""
        return self.certificate is not None or self.authority is not None

    def context(self) -> ssl.SSLContext:
        """Return TLS for connections to servers."""
        if self.certificate is not None and self.key is not None and self.authority is not None:
            return client_context(self.certificate, self.key, self.authority)
        context = ssl.create_default_context(cafile=self.authority)
        if self.certificate is not None:
            context.load_cert_chain(self.certificate, self.key)
        return context

    def check_plain(self, host: str, shown: str) -> None:
        """Raise UsageError when the token would cross a network without TLS, and nobody said that it may."""
        if self.token and not self.insecure and not reaches_loopback(host):
            raise UsageError(
                f"{shown}: the token would cross the network for all to read: use https://, or say --insecure "
                f"(or {INSECURE_VARIABLE}=1); or give no token ({TOKEN_FILE_VARIABLE}, {TOKEN_VARIABLE}) where none "
                "is needed"
            )


def reaches_loopback(host: str) -> bool:
    """Whether a host name or address leads to this host and nowhere else."""
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError):
        return False
    return all(is_loopback(str(address[4][0])) for address in found)
