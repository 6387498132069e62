"""Recipes of the paper's tables and figures, as TOML files; the entry point of their group leads here."""
