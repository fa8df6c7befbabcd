"""Bytes to nouns: readers for the files that MindSpore leaves behind.

Nothing here imports mindspore or numpy; protobuf is imported by the first call that needs it.
"""
