"""Recovery between nodes that share no file system: one serves its tree, another plans over it and fetches slices."""
