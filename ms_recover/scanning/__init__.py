"""What is there: path grammar (pure) and scan."""
