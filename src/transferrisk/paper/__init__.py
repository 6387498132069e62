"""The paper's own experiments: its theory in numbers, its figures, and its recipes.

This package adds tasks and recipes by entry points (`registry.OWN`), as another distribution would; no other module of
transferrisk imports it. The theory is computed in float64 on the CPU, so that the same settings give the same records.
"""
