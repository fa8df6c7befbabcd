"""Watching the tree of a running job from outside."""
