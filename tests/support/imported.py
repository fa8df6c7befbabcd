"""Import all that a command imports on use, so that processes forked from one that did so start at once.

They may then also run as a user who cannot read where Python lies.
"""

from __future__ import annotations

import importlib
import pkgutil

from ms_recover.formats.group_info import encode_group_info
from ms_recover.model.groups import GroupInfo
from ms_recover.reporting.tables import render_table

_ROOMS = "api verbs cli execution joint formats model planning reporting scanning stores.local_store stores.urls"
for _room in _ROOMS.split():
    _package = importlib.import_module(f"ms_recover.{_room}")
    for _found in pkgutil.walk_packages(getattr(_package, "__path__", ()), f"{_package.__name__}."):
        importlib.import_module(_found.name)
for _name in ("binascii", "rich.console", "rich.table", "rich.text", "rich.progress", "rich.pretty", "stringprep"):
    importlib.import_module(_name)
render_table(("a",), [("b",)], None)
encode_group_info(GroupInfo((0,)))
