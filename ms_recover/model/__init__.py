"""The nouns: frozen dataclasses, standard library only."""
