"""Names and suffixes on disk."""

from __future__ import annotations

_ENDINGS = (".ckpt", ".safetensors")


def ending_of(path: str) -> str:
    """Return the ending by which MindSpore tells the format of a slice; nothing for other names."""
    return next((ending for ending in _ENDINGS if path.endswith(ending)), "")
