"""The command line, ``recover-ckpt``."""
