"""Experiments, as TOML files."""
