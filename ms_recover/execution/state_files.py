"""The state file beside a slice: durable before the manifest that names its digest, and read only by that digest."""

from __future__ import annotations

from ms_recover.errors import FormatError, VerificationError
from ms_recover.file_names import STATE_SUFFIX
from ms_recover.formats.reading import open_regular, pread
from ms_recover.formats.state import decode_state
from ms_recover.model.state import SliceClaim, StateValue
from ms_recover.stores.atomic import write_small
from ms_recover.stores.digest import digest_of
from ms_recover.stores.store import Store

CLAIM = "claim"
"""In a state file: whose the slice is, see `SliceClaim`."""

STATE_MODE = 0o400
MOST_STATE = 256 << 20
"""Bytes of a state file that is brought from another tree."""


def write_state(slice_path: str, data: bytes, *, staged: str | None = None) -> str:
    """Write the state file of a slice, durably, read-only and with the slice's owner; return its digest.

    `staged` is where the slice lies while it has no name yet. Errors are those of
    `ms_recover.stores.atomic.write_small`.
    """
    write_small(slice_path + STATE_SUFFIX, data, mode=STATE_MODE, owner_of=slice_path if staged is None else staged)
    return digest_of(data)


def read_state(slice_path: str, digest: str) -> dict[str, StateValue]:
    """Read the state file beside a slice, which must have the digest that the slice's manifest names.

    Raises
    ------
    VerificationError
        When it has another digest.
    FormatError
        When this version does not read it.
    MissingInputError, StorageError
        As `ms_recover.formats.reading.open_regular`.
    """
    return _read(slice_path + STATE_SUFFIX, digest)


def read_state_unproven(slice_path: str) -> dict[str, StateValue]:
    """Read the state file beside a slice that no manifest proves; the caller does. Errors are those of `read_state`."""
    return _read(slice_path + STATE_SUFFIX, None)


def _read(path: str, digest: str | None) -> dict[str, StateValue]:
    with open_regular(path, "a state file") as (descriptor, size):
        if digest is None and size > MOST_STATE:
            raise FormatError(f"{path} has {size} bytes")
        data = pread(descriptor)(0, size)
    if digest not in (None, digest_of(data)):
        raise VerificationError(f"{path}: its contents are not those that the manifest of the slice names")
    try:
        return decode_state(data)
    except FormatError as error:
        raise FormatError(f"{path} is not a state file that can be read: {error}") from None


def read_claim(slice_path: str) -> SliceClaim | None:
    """Return whose a slice without a manifest is, by the state file beside it; None where that does not state it.

    Errors are those of `read_state`, but that nothing proves the contents.
    """
    return SliceClaim.of(read_state_unproven(slice_path).get(CLAIM))


def read_state_in(store: Store, slice_path: str, digest: str) -> dict[str, StateValue]:
    """Read the state file beside a slice of a store; errors as for `read_state`, and those of the store."""
    data = store.read_small(slice_path + STATE_SUFFIX, "a state file", MOST_STATE)
    if digest_of(data) != digest:
        raise VerificationError(
            f"{store.url.rstrip('/')}/{slice_path}{STATE_SUFFIX}: it is not what the slice's manifest names"
        )
    return decode_state(data)
