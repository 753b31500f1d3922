"""The engine's image: which one, what is in it, and the same one on every node."""
