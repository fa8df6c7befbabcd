"""The inventory of a store: what its server scanned, or what a scan finds."""

from __future__ import annotations

from ms_recover.errors import InputError
from ms_recover.model.inventory import Inventory
from ms_recover.scanning.scan import scan_store
from ms_recover.scanning.sent_inventory import decode_inventory
from ms_recover.stores.http_store import HttpStore
from ms_recover.stores.store import Store


def inventory_of(store: Store, *, any_server: bool = True) -> Inventory:
    """Return what a store has: what recover-ckpt serve says that it scanned, or what a scan finds.

    Raises
    ------
    InputError
        When `any_server` is false and something else than recover-ckpt serve answers.
    MsRecoverError
        When the store cannot be reached, or scanned.
    """
    if isinstance(store, HttpStore):
        data = store.inventory()
        if data is not None:
            return decode_inventory(data, store.url)
        if not any_server:
            raise InputError(
                f"{store.url} is no recover-ckpt serve of this version: write http:// or https:// before it, if it is "
                "another web server that lists folders"
            )
    return scan_store(store)
