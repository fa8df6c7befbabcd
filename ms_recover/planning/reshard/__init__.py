"""Slices that are cut anew for other ranks: regions of the source against regions of the target."""
