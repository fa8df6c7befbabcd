"""Several inventories as one tree, with a home for each rank (pure): of nodes that serve, and of an engine's."""
