"""How many examples the searches of hypothesis try."""

from __future__ import annotations

import os

SAME_EVERY_TIME = "MS_RECOVER_EXAMPLES" not in os.environ
"""A search for new failures is asked for by number; other runs only show whether something broke."""


def examples(default: int) -> int:
    """Return MS_RECOVER_EXAMPLES where it is set, otherwise `default`, of which `pytest --quick` tries a quarter."""
    if "MS_RECOVER_EXAMPLES" in os.environ:
        return int(os.environ["MS_RECOVER_EXAMPLES"])
    return default // 4 if "MS_RECOVER_QUICK" in os.environ else default
