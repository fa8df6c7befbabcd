"""Apply a plan once: copy, check, commit."""
