"""``python -m ms_recover``: the same as ``recover-ckpt``."""

from __future__ import annotations

import sys

from ms_recover.cli.entry import main

if __name__ == "__main__":
    sys.exit(main())
