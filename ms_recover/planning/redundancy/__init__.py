"""Which ranks hold the same bytes, by rank lists and by layouts."""
