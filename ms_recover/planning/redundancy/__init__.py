"""Who holds the same bytes: pure decisions by rank group and by structure."""
