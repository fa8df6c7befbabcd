"""How many examples the searches of hypothesis try."""

from __future__ import annotations

import os

SAME_EVERY_TIME = "MS_RECOVER_EXAMPLES" not in os.environ
"""A search for new failures is asked for by number; other runs only show whether something broke."""


def examples(default: int) -> int:
    """Return MS_RECOVER_EXAMPLES, or with ``x10`` ten times `default`; without it `default`, or a quarter if quick."""
    asked = os.environ.get("MS_RECOVER_EXAMPLES")
    if asked is not None:
        return default * int(asked[1:]) if asked.startswith("x") else int(asked)
    return default // 4 if "MS_RECOVER_QUICK" in os.environ else default
