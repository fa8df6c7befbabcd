"""The progress of training that slices hold as parameters: ``global_step``, and in MindFormers' old format others."""

from __future__ import annotations

from collections import defaultdict
from math import isfinite

from ms_recover.errors import MsRecoverError
from ms_recover.formats.common_info import COMMON_MEMBERS
from ms_recover.formats.header import parse_header
from ms_recover.model.inventory import Inventory
from ms_recover.model.steps import Step
from ms_recover.scanning.counters import read_numbers
from ms_recover.stores.urls import open_store

_MOST_ASKED = 8


def read_progress(inventory: Inventory, step: Step) -> dict[str, float]:
    """Return the values of the parameters of one element that ``common.json`` has members for, by name.

    A few slices are read, which must agree: what differs among them is left out, as are values that are no number.
    """
    sound = [one for one in inventory.slices if one.step == step and one.problem is None and one.encryption is None]
    found: dict[str, set[float]] = defaultdict(set)
    with open_store(inventory.root) as store:
        for file in sound[:_MOST_ASKED]:
            try:
                with store.open(file.path) as opened:
                    header = parse_header(opened.read_at, opened.size, name=file.path)
                    for name, value in read_numbers(opened, header, COMMON_MEMBERS).items():
                        found[name].add(value)
            except MsRecoverError:
                continue
    agreed = {name: values.pop() for name, values in found.items() if len(values) == 1}
    return {name: value for name, value in agreed.items() if isfinite(value) and value >= 0}
