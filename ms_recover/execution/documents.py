"""Writing the documents of MindFormers, after everything that they name."""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import suppress

from ms_recover.errors import MsRecoverError
from ms_recover.execution.targets import check_place, check_target
from ms_recover.formats.documents import encode_document
from ms_recover.formats.reading import read_small
from ms_recover.model.plan import DocumentWrite
from ms_recover.stores.atomic import write_small

_MODE = 0o640
"""Of MindFormers' own."""


def write_document(root: str, write: DocumentWrite, follow: Sequence[str] = ()) -> bool:
    """Write a document of a plan, whole or not at all; return False when it is there already.

    Written by root it belongs to the owner of its directory. `follow` is as for `check_place`.

    Raises
    ------
    VerificationError
        When something lies there that the plan did not see, or a link.
    FormatError
        When its directory leads elsewhere through a link.
    StorageError, MissingInputError
        When it cannot be written.
    """
    check_place(root, write.target, None, follow, plain=True)
    path, data = os.path.join(root, write.target), encode_document(write.value)
    with suppress(MsRecoverError):  # one that cannot be read holds something else
        if read_small(path, "a document", len(data)) == data:
            return False
    check_target(path, write.replaces)
    write_small(path, data, mode=_MODE, owner_of=os.path.dirname(path))
    return True
