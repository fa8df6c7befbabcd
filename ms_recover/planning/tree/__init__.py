"""The facts about a tree as a whole, and the steps of it that may be taken."""
