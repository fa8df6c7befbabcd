"""Bytes that are moved: atomic files, digests, directory syncs."""
