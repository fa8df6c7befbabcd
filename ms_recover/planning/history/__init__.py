"""The history of a run by its manifests alone: who agreed with whom at which step, and what stopped changing."""
