"""Tables, JSON, model card and page of a fit.

The page has no transfer matrix of the final features: they were trained on all rows, to which any labels can be fitted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms import describe_algorithm
from ..auditing.columns import column_sections
from ..auditing.shift import shift_sections, shift_sentences, shifts_json
from ..errors import counted, listed
from ..models.blend import BLEND
from ..reports import Bar, Bars, Curves, Page, Section, Table, percent
from ..reports.elements import Cell, Entry
from ..reports.render import markdown, markdown_text
from ..settings import as_json
from .blending import told_members
from .candidates import BASELINES, named
from .compare import numbered_in_time
from .decisions import decide_held_out
from .fitted import Fitted
from .metrics import METRICS, confusion
from .model import CARD, COMPARISON, REPORT
from .plan import Plan
from .scoring import ENDS, class_tables, figures_table, reliability_section
from .source import Source
from .trainings import Curve
from .verdict import decision_notes, how_compared, others_of, verdict

Z = 1.96  # of a 95 % interval
MOST = 20  # columns that a terminal shows
WIDE = 8  # environments that have a column of their own in the comparison
COLUMNS = ("Column", "Taken as", "Features", "Remark")


def summarise_fit(fitted: Fitted, folder: Path) -> dict[str, Any]:
    """Return the fit in the types of JSON, with the paths of its files."""
    return {
        "algorithm": fitted.choice.algorithm,
        "name": named(fitted.choice.algorithm),
        "why": fitted.choice.why,
        "verdict": verdict(fitted),
        "decision": as_json(fitted.decision),
        "comparison": None if fitted.comparison is None else fitted.comparison.to_dict(),
        "columns": None if fitted.columns is None else fitted.columns.to_dict(),
        "shifts": shifts_json(fitted.shifts) if fitted.shifts else None,
        "rows": len(fitted.source.samples),
        "environments": fitted.source.sizes,
        "network": {
            "backbone": fitted.plan.backbone,
            "weights": fitted.plan.weights,
            "frozen": bool(fitted.plan.frozen),
            "on_top": fitted.plan.on_top,
        },
        "classes": list(fitted.source.samples.class_names),
        "features": [
            {"column": name, "taken_as": kind, "features": number, "remark": remark}
            for name, kind, number, remark in columns_of(fitted.source)
        ],
        "model": str(folder),
        "card": str(folder / CARD),
        "report": str(folder / REPORT),
        "comparison_file": str(folder / COMPARISON),
    }


def columns_of(source: Source) -> list[tuple[str, str, int, str]]:
    """Return (column, taken as, number of features, remark) of each input of a model."""
    if source.schema is not None:
        schema = source.schema
        used = [(c.name, c.kind, len(c.features), schema.remarks.get(c.name, "")) for c in schema.columns]
        return used + [(name, "not used", 0, why) for name, why in schema.dropped.items()]
    if source.kind == "images":
        channels, height, width = source.shape
        return [("images", f"images of {width} x {height} pixels", channels, "")]
    return [(listed(source.columns) or "features", "vectors, standardised", source.shape[0], "")]


def columns_table(source: Source, folder: Path) -> Table:
    """Build the table of the columns and their use; if there are many, those with a remark come first."""
    samples, sizes = source.samples, source.sizes
    found = columns_of(source)
    if len(found) > MOST:
        found.sort(key=lambda column: not column[-1])
    rows: list[Sequence[Entry]] = [
        (source.label, "label", "", f"{len(samples.class_names)} classes"),
        (source.environment, "environment", "", f"{min(sizes.values())} to {max(sizes.values())} rows"),
        *found[:MOST],
    ]
    more = f"and {len(found) - MOST} more columns: see {folder / CARD}" if len(found) > MOST else ""
    title = f"{source.name}: {counted(len(samples), 'row')}, {len(sizes)} environments"
    return Table(title, COLUMNS, rows, note=more)


def comparison_table(fitted: Fitted, width: int | None = None) -> Table:
    """Build the table of each candidate's accuracy and loss; the chosen one is emphasised.

    If there are many environments, or more than fit into `width` letters, only the worst is shown, with its name.
    """
    comparison = fitted.comparison
    assert comparison is not None
    where = "in environments not trained on" if comparison.held == "environments" else "on held-out rows"
    where += ", before calibration" if fitted.decision.is_calibrated else ""
    summary, what = comparison.summary, METRICS[comparison.metric]
    places, last = list(comparison.accuracy.index), [f"Mean {what}", f"Worst {what}"]
    longest = max(map(len, map(named, (*summary.index, *comparison.stopped))))
    widths = [max(map(len, (*name.split(), "99.9"))) for name in (*places, "Mean", "Worst", *last)]
    folded = len(places) > WIDE or (width is not None and longest + sum(widths) + 2 * len(widths) > width)
    rows: list[list[Entry]] = []
    for name, found in summary.iterrows():
        own = comparison.accuracy[name]
        row: list[Entry] = [named(str(name))]
        row += [] if folded else [percent(own[place]) for place in places]
        row += [percent(found["mean"]), percent(found["worst"]), *([str(own.idxmin())] if folded else [])]
        row += [Cell(f"{found[key]:.3f}", float(found[key])) for key in ("mean_loss", "worst_loss")]
        rows.append(row)
    ended: dict[int, list[str]] = {}
    for name, one in comparison.stopped.items():  # their means are not known
        shown = [percent(one.accuracy.get(place, np.nan)) for place in places] * (not folded)
        rows.append([f"{named(name)}†", *shown, *(None,) * (4 + folded)])
        ended.setdefault(len(one.accuracy), []).append(named(name))
    columns = ["Candidate", *places * (not folded), "Mean", "Worst", *["Worst in"] * folded, *last]
    note = "Bold: the chosen candidate."
    if ended:
        after = "; ".join(f"after {count}: {listed(names)}" for count, names in sorted(ended.items()))
        note += f" † Stopped early, being far behind in log loss in the environments tested until then ({after})."
    if BLEND in summary.index:
        note += f" {named(BLEND)}, computed from the others: {told_members(comparison.members)}."
    chosen = summary.index.get_loc(fitted.choice.algorithm)
    return Table(f"Accuracy, %, and {what}, {where}", columns, rows, emphasised=[chosen], note=note)


def held_out_table(fitted: Fitted) -> Table:
    """Build the table of the chosen candidate's figures in each environment that was held out."""
    where = "when it was held out" if fitted.decision.held == "environments" else "on held-out rows"
    where += f", calibrated by the {others_of(fitted)}" if fitted.decision.is_calibrated else ""
    found = figures_table(fitted.decision.seen, f"{named(fitted.choice.algorithm)}, by environment, {where}")
    return replace(found, note=decision_notes(fitted))


def held_out_sections(fitted: Fitted) -> list[Section]:
    """Build the sections on the predictions for held-out rows: by class, confusion, reliability."""
    assert fitted.comparison is not None
    comparison, samples = fitted.comparison, fitted.source.samples
    raw = comparison.probabilities[fitted.choice.algorithm]
    tested = np.isfinite(raw).all(1)
    labels, given, chances = samples.labels.numpy()[tested], raw[tested], fitted.held_out[tested]
    curves = {"as predicted": (labels, chances)}
    if fitted.decision.is_calibrated:
        curves = {"before calibration": (labels, given), "calibrated": (labels, chances)}
    places = numbered_in_time(samples, comparison.order)[tested]
    decided = decide_held_out(labels, given, places, fitted.decision.metric, bool(comparison.order))
    matrix = confusion(labels, decided, chances.shape[1])
    names = samples.class_names
    return [*class_tables(matrix, names), reliability_section(curves, classes=names)]


def fit_sections(fitted: Fitted, width: int | None = None) -> list[Section | str]:
    """Build what a terminal of `width` letters shows of a fit."""
    chosen = f"Chosen: {named(fitted.choice.algorithm)}, {fitted.choice.why}."
    by_column = fitted.columns.sentences if fitted.columns is not None else ()
    if fitted.comparison is None:
        return [*verdict(fitted), chosen, *by_column]
    return [
        *verdict(fitted),
        comparison_table(fitted, width),
        how_compared(fitted.comparison),
        chosen,
        held_out_table(fitted),
        *(shift_sentences(fitted.shifts) if fitted.shifts else ()),
        *by_column,
    ]


def frozen_note(source: Source, plan: Plan) -> str:
    """Return a sentence on whether a pretrained backbone is trained; "" if there is none."""
    if plan.frozen:
        return (
            f"{plan.backbone} is taken as it is (frozen), and {plan.on_top} trained on its features; --tuned trains "
            "all of it, which takes far longer."
        )
    if source.kind != "images" or plan.weights in (None, "none"):
        return ""
    return f"All of {plan.backbone} is trained; --frozen takes it as it is and trains a small network on its features."


def settings_of(fitted: Fitted) -> dict[str, str | Sequence[str]]:
    """Return the settings of the final training, by name."""
    samples, config, plan = fitted.source.samples, fitted.config, fitted.plan
    network = str(plan.backbone) + (f", weights {plan.weights}" if plan.weights is not None else "")
    if plan.frozen and config is not None:
        width = len(fitted.model.network.featuriser.standardise.mean)  # type: ignore[arg-type]  # an OnFrozen
        network += f", frozen: only {plan.on_top} on its {width} features, standardised, was trained"
    trained = {"Model": named(fitted.choice.algorithm)}
    if fitted.comparison is not None and fitted.choice.algorithm == BLEND:
        trained["Model"] += f": {told_members(fitted.comparison.members)}"
    if fitted.choice.algorithm in (*BASELINES, BLEND):
        if plan.frozen:
            trained["Features"] = f"of {plan.backbone}, frozen"
    elif config is not None and fitted.curve is not None:
        steps = counted(fitted.curve[0][-1], "step")
        drawn = f"{config.batch_size} samples of each environment" if config.batch_size else "all samples"
        trained |= {
            "Algorithm": describe_algorithm(fitted.choice.algorithm, **fitted.settings),
            "Network": network,
            "Training": f"{steps} on {drawn}, SGD with learning rate {config.lr:g}, momentum {config.momentum:g} and "
            f"weight decay {config.weight_decay:g}, {config.decay_words}"
            + (", images varied" if config.augment else ""),
        }
    environments = [f"{name}: {counted(size, 'row')}" for name, size in fitted.source.sizes.items()]
    more = len(environments) - 2 * ENDS
    by_class = zip(samples.class_names, samples.group_counts().sum(0).tolist(), strict=True)
    return {
        "Data": f"{fitted.source.name}: {counted(len(samples), 'row')}, label {fitted.source.label!r}, environment "
        f"{fitted.source.environment!r}",
        "Environments": [*environments[: 2 * ENDS], *([f"and {more} more, which {CARD} lists"] if more > 0 else [])],
        "Classes": [f"{name}: {counted(size, 'row')}" for name, size in by_class],
        **trained,
        "Seed": str(plan.seed),
    }


def names_in_text(names: Sequence[str]) -> str:
    """Join names by commas; names that hold a comma are quoted."""
    return ", ".join(repr(name) if "," in name else name for name in names)


def wilson(share: Any, count: int) -> tuple[Any, Any]:
    """Return Wilson's 95 % interval of shares of `count` rows."""
    centre = share + Z * Z / (2 * count)
    half = Z * np.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return np.maximum(0.0, (centre - half) / scale), np.minimum(1.0, (centre + half) / scale)


def model_card(fitted: Fitted, command: str = "") -> str:
    """Return the model card in Markdown: the model, its data, the comparison, intended use and limits."""
    from .. import __version__

    samples, source = fitted.source.samples, fitted.source
    classes = markdown_text(names_in_text(samples.class_names))
    counts = samples.group_counts()
    rows = zip(samples.environment_names, counts.sum(1).tolist(), *counts.T.tolist(), strict=True)
    compared = "No algorithms were compared, so nothing is known about environments that were not trained on."
    if fitted.comparison is not None:
        tables = (comparison_table(fitted), held_out_table(fitted))  # their titles become headings of level 3
        compared = "\n\n".join([how_compared(fitted.comparison), *(f"##{markdown(table).strip()}" for table in tables)])
    expected = "Its accuracy in a new environment was not measured."
    if fitted.comparison is not None and fitted.comparison.held == "environments":
        expected = (
            "The expected figures come from held-out environments: expect less where a new one differs more than they "
            "do from each other. The figures of a candidate that was chosen by them are a little too good."
        )
    learned = "" if fitted.decision.temperature != 1 else "Probabilities were not calibrated."
    learned = " ".join(filter(None, [learned, decision_notes(fitted)]))
    settings = []
    for name, value in settings_of(fitted).items():
        settings.append(f"- {name}: {markdown_text(value if isinstance(value, str) else '; '.join(value))}")
    paragraphs = [
        f"# Model of {markdown_text(source.label)}",
        f"Fitted on {date.today().isoformat()} by transferrisk {__version__}"
        + (f" with `{command}`." if command else "."),
        *map(markdown_text, verdict(fitted)),
        "## Data",
        f"{markdown_text(source.name)}: {len(samples)} rows, {len(samples.environment_names)} environments (column "
        f"{markdown_text(source.environment)}), classes {classes}.",
        markdown(Table("", ["Environment", "Rows", *samples.class_names], list(rows))).strip("\n"),
        "## Inputs of the model",
        "Neither the label nor the environment is a feature.",
        markdown(Table("", COLUMNS, columns_of(source))).strip("\n"),
        "## Comparison",
        compared,
        f"**Chosen: {named(fitted.choice.algorithm)}**, {markdown_text(fitted.choice.why)}.",
        "## Settings",
        "\n".join(settings),
        "## Intended use and limits",
        f"Predicts {markdown_text(source.label)} ({classes}) in places like the environments above, and in new ones. "
        f"{expected} {learned} It was not examined for fairness between groups other than the environments and "
        "classes above.",
        "## How to predict",
        "```bash\ntrm predict MODEL new.parquet --output predictions.parquet\n```",
        "```python\nfrom transferrisk.fitting import load_model\n\nmodel = load_model('MODEL')\n"
        f"probabilities = model.predict_proba({'frame' if source.kind == 'table' else 'array'})\n```",
        "MODEL is the folder of this card.",
    ]
    return "\n\n".join(paragraphs) + "\n"


def fit_page(fitted: Fitted, command: str = "") -> Page:
    """Build the page: the comparison as a table and bars, the trainings, the inputs of the model."""
    comparison, settings = fitted.comparison, settings_of(fitted)
    chosen = named(fitted.choice.algorithm)
    lead = verdict(fitted)
    lead.append(f"Chosen: {chosen}, {fitted.choice.why}. It was trained on all {len(fitted.source.samples)} rows.")
    if fitted.plan.frozen and "Network" in settings:
        lead.append(f"The network is {settings['Network']}.")
    sections: list[Section] = []
    curves: dict[str, Curve] = {}
    if comparison is not None:
        bars: dict[str, list[Bar]] = {}
        # Ten candidates in ten environments would be a hundred bars.
        others = comparison.summary["loss"].drop(fitted.choice.algorithm).sort_values().index
        drawn = [fitted.choice.algorithm, *others[: None if len(others) < 3 else 1], *others.intersection(["majority"])]
        shown = comparison.accuracy[[*dict.fromkeys(drawn)]]
        note = "Lines are 95 % intervals over the rows of an environment."
        if len(shown) > 2 * ENDS:
            order = comparison.loss[fitted.choice.algorithm].sort_values(ascending=False).index
            shown = shown.loc[[*order[:ENDS], *order[-ENDS:]]]
            note += (
                f" Of {len(order)} environments the {ENDS} with the highest log loss and the {ENDS} with the lowest."
            )
        for place, accuracy in shown.iterrows():
            rows = comparison.rows[str(place)]
            low, high = wilson(accuracy, rows)
            bars[f"{place} ({rows} rows)"] = list(map(Bar, map(named, accuracy.index), accuracy, low, high))
        if len(others) >= 3:
            note += " The chosen candidate, the next best by its loss and the majority class are shown."
        drawing = Bars("Accuracy by environment, with intervals", bars, note=note)
        table = comparison_table(fitted)
        table = replace(table, note=f"{table.note} {how_compared(comparison)}")
        sections += [table, drawing, held_out_table(fitted)]
        sections += shift_sections(fitted.shifts) if fitted.shifts else []
        curves |= {named(name): curve for name, curve in comparison.curves.items()}
    if fitted.curve is not None:
        curves[f"{chosen}, all rows"] = fitted.curve
    note = (
        "Algorithms minimise different losses, so the heights of their curves cannot be compared. The first training "
        "of each algorithm in the comparison is shown."
    )
    sections += column_sections(fitted.columns) if fitted.columns is not None else []
    sections += held_out_sections(fitted) if comparison is not None else []
    sections.append(Table("Inputs of the model", COLUMNS, columns_of(fitted.source)))
    if curves:
        sections.append(Curves("Training", curves, "step", "loss", note=note))
    title = f"{fitted.source.label}: a model for new environments"
    return Page(title, tuple(lead), tuple(sections), settings, command)
