"""Bytes of MindSpore tensors: read from the memory that a program sees, and written into it.

Importing it imports no MindSpore.
"""
