"""What losing hosts or racks would cost, by who holds which blocks."""
