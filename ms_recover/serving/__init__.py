"""The HTTP face of a tree: its files by range, its inventory, and digests worked out where the bytes are."""
