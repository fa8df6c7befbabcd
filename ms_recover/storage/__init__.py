"""Every byte moved."""
