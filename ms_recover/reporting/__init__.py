"""Model to text."""
