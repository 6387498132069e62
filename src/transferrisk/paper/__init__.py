"""The paper's own experiments: its theory in numbers, its figures, and its recipes.

This package adds tasks and recipes as another distribution would, by entry points (`registry.OWN`); nothing else of
transferrisk imports it. The theory is computed in float64 on the CPU, and the same settings give the same records.
"""
