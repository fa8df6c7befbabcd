"""The version of this package, below everything that states it."""

__version__ = "0.1.0"
