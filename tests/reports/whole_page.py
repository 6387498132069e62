"""A page with every kind of section, and names that mean harm or are hard to set."""

from __future__ import annotations

import numpy as np

from transferrisk.reports import Bar, Bars, Cell, Curves, Group, Heatmap, Page, Pictures, Table, Text

HOSTILE = (
    "<script>alert(1)</script>",
    '"><img src=x onerror="alert(2)">',
    "</style></svg></title><h1>gone</h1>",
    "' onfocus='alert(3)' tabindex='0",
    "{{ 7 * 7 }}{% raw %}",
    "averyveryverylongnamewithoutanyspaceatall" * 4,
    "🚑 emergency",
    "مستشفى الشمال",
)
TABLE = (
    ("b", 10, 0.5, Cell("90.0 ± 1.0", 0.9)),
    ("a", 9, None, Cell("10.0 ± 2.0", 0.1)),
    ("c", 100, -2.25, Cell("none", float("nan"))),
    ("B", 2, 1e-3, Cell("25.0 ± 3.0", 0.25)),
)


def whole_page(names=HOSTILE) -> Page:
    """Every section with these names as environments and as methods."""
    n = len(names)
    values = np.arange(n * n, dtype=float).reshape(n, n) / n**2
    values[0, 1] = np.nan
    x = [0.0, 1.0, 2.0]
    return Page(
        title=f"Title {names[0]}",
        lead=("First sentence.", names[1]),
        sections=(
            Heatmap(
                "Matrix", names, names, values, low=values - 0.01, high=values + 0.02, corner=names[0], note=names[1]
            ),
            Group(names[2], [Heatmap(name, names[:3], names[:2], values[:3, :2], unit="percent") for name in names[:2]],
                  note=names[3]),
            Bars(names[3], {name: [Bar(name, 0.5, 0.4, 0.7), Bar("TRM", 0.6)] for name in names}),
            Curves(names[0], {name: (x, [i, 1.0, i / 2]) for i, name in enumerate(names)}, names[1], names[2]),
            Table("Numbers", ["Name", "Count", "Value", "Own words"], TABLE, digits=2, emphasised=[1], note=names[0]),
            Table("Names", [*names], [[*names], [*reversed(names)]]),
            Text(names[1], [*names]),
            Pictures("Pictures", {names[0]: np.zeros((3, 2, 4, 4, 3), np.uint8)}),
        ),
        settings={names[0]: names[1], "List": list(names)},
        command=f"trm audit {names[0]}",
    )  # fmt: skip
