"""What a recovery writes: the plan, the reads it needs, what it says of a rank (pure)."""
