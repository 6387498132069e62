"""Experiments: which runs make up a comparison, and running them."""
