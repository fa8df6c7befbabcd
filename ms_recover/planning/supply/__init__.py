"""The sources of each rank's bytes."""
