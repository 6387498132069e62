"""The model card: what the model is, how it was chosen and what it is not for, in Markdown."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date

from ..reports.text import markdown, markdown_text
from ..reports.values import Table
from .facts import columns_of, how_compared, named, ranked, settings_of
from .fitted import Fitted


def card(fitted: Fitted, command: str = "") -> str:
    """The whole card; `command` is what made it."""
    from .. import __version__

    samples, source = fitted.source.samples, fitted.source
    classes = named(samples.class_names)
    counts = samples.group_counts().tolist()
    parts = [
        f"# Model of {markdown_text(source.label)}",
        f"Made on {date.today().isoformat()} by transferrisk {__version__}"
        + (f" with `{command}`." if command else "."),
        "## Data",
        f"{markdown_text(source.name)}: {len(samples)} rows, {len(samples.environment_names)} environments (column "
        f"{markdown_text(source.environment)}), classes {markdown_text(classes)}.",
        _table(
            ["Environment", "Rows", *samples.class_names],
            [[name, sum(row), *row] for name, row in zip(samples.environment_names, counts, strict=True)],
        ),
        "## What the model is given",
        "Neither the label nor the environment is a feature.",
        _table(["Column", "Taken as", "Features", "Remark"], columns_of(fitted.model.encoder)),
        "## Comparison",
        _comparison(fitted),
        f"**Chosen: {fitted.choice.algorithm}**, {markdown_text(fitted.choice.why)}.",
        "## Settings",
        "\n".join(
            f"- {name}: {markdown_text(value if isinstance(value, str) else '; '.join(value))}"
            for name, value in settings_of(fitted).items()
        ),
        "The model of the last step is kept; nothing was selected by its accuracy on the way.",
        "## Intended use and limits",
        f"For telling {markdown_text(classes)} apart in places like the environments above, also new ones. "
        + (
            "The comparison is what is known about new environments: expect an accuracy between the worst and the "
            "best of the held-out ones, and less where a new one differs more than they do from each other. Where the "
            "algorithm was chosen by these numbers, its own are a little too good."
            if fitted.comparison is not None and fitted.comparison.held == "environments"
            else "How it does in a new environment was not measured."
        )
        + " Probabilities were not calibrated. It was not examined for fairness between groups other than the "
        "environments and classes above.",
        "## How to predict",
        "```bash\ntrm predict MODEL new.parquet --output predictions.parquet\n```",
        "```python\nfrom transferrisk import fitting\n\nmodel = fitting.load('MODEL')\n"
        f"probabilities = model.predict_proba({'frame' if source.kind == 'table' else 'array'})\n```",
        "MODEL is the folder this card lies in.",
    ]
    return "\n\n".join(parts) + "\n"


def _comparison(fitted: Fitted) -> str:
    if fitted.comparison is None:
        return "No algorithms were compared, so nothing is known about environments that were not trained on."
    rows = [
        [name, *(f"{100 * value:.1f}" for value in (*accuracies, mean, worst))]
        for name, accuracies, mean, worst in ranked(fitted.comparison)
    ]
    table = _table(["Accuracy, %", *fitted.comparison.environments, "Mean", "Worst"], rows)
    return f"{how_compared(fitted.comparison)}\n\n{table}"


def _table(columns: Sequence[str], rows: Sequence[Sequence[str | float | int]]) -> str:
    return markdown(Table("", columns, rows)).rstrip("\n")
