"""The worth of each slice."""
