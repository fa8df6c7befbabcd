"""The verbs: what a user does with a tree. `ms_recover.api` is their face."""
