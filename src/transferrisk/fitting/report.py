"""Tables, the model card and the page of a fit, and the folder that keeps them with the model.

The page shows no transfer matrix of the final features: they were trained on all rows, to which any labels can be
fitted.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import replace
from datetime import date
from pathlib import Path
from typing import Any

import numpy as np

from ..algorithms import describe_algorithm
from ..auditing.columns import ColumnReport, column_sections, unstable
from ..auditing.report import Pooled, pool
from ..auditing.shift import shift_sections, shift_sentences, shifts_json
from ..errors import InputError, counted, listed
from ..files import check_target, exchange, hidden_folder, new_folders, write_atomically
from ..models.blend import BLEND
from ..models.saved import WEIGHTS, save_model
from ..reports import Bar, Bars, Curves, Page, Section, Table, percent, write_page
from ..reports.elements import Cell, Entry
from ..reports.render import markdown, markdown_text
from ..settings import as_json, dumps
from .blending import told_members
from .candidates import BASELINES, named
from .compare import NEAR, Comparison, Curve, numbered_in_time
from .fitted import Fitted, Plan, Source
from .metrics import METRICS, confusion, decide_held_out
from .model import CARD, COMPARISON, FILES, REPORT, SCHEMA
from .scoring import ENDS, MANY, class_table, confusion_table, figures_table, reliability_section

Z = 1.96  # of a 95 % interval
MOST = 20  # columns that a terminal shows
WIDE = 8  # environments that have a column of their own in the comparison
WIDEST = 0.5  # interval of an accuracy beyond which it says nothing about a new environment
COLUMNS = ("Column", "Taken as", "Features", "Remark")


def check_output(folder: Path, force: bool) -> None:
    """Refuse a folder that could not become a model's, before hours of work and without creating anything."""
    check_target(folder / WEIGHTS)
    # A fit that was killed while it wrote may have left a hidden folder, which the next one removes.
    left = f".{Path(os.path.realpath(folder)).name[:100]}."
    found = list(folder.iterdir()) if folder.exists() else []
    there = {path.name for path in found if not (path.name.startswith(left) and path.is_dir())}
    if others := sorted(there.difference(FILES)):
        raise InputError(f"{folder} must hold a model or nothing, got {others[0]}: choose another output")
    if there and not force:
        raise InputError(f"{folder} holds a model already: choose another output, or replace it with force (--force)")


def kept_beside(folder: Path) -> Path:
    """Hidden folder beside a model's, for the trainings of a comparison that is not over."""
    place = Path(os.path.realpath(folder))
    return place.with_name(f".{place.name[:100]}.comparison")


def save_fit(fitted: Fitted, folder: Path | str, command: str = "", force: bool = False) -> None:
    """Write the model's folder; `command` is what the card and the page say to produce it with.

    It is written under a hidden name, and swaps names with the folder that is there, so that there is one whole model
    at any moment. Then trainings that were kept beside it are of no more use, and go.

    Parameters
    ----------
    fitted
        What `fit` returned.
    folder
        Where it goes.
    command
        What the card and the page say to produce it with.
    force
        Replace a folder that is there.

    Examples
    --------
    >>> import numpy as np
    >>> import pandas as pd
    >>> from pathlib import Path
    >>> from tempfile import mkdtemp
    >>> from transferrisk.data import Options
    >>> from transferrisk.fitting import Plan, fit, save_fit
    >>> folder = Path(mkdtemp())
    >>> i = np.arange(60)
    >>> table = pd.DataFrame({"x": np.sin(i), "y": np.sin(i) > 0, "site": ["a", "b", "c"] * 20})
    >>> table.to_csv(folder / "table.csv", index=False)
    >>> plan = Plan(algorithm="linear", compared=False, workers=1)
    >>> save_fit(fit(folder / "table.csv", Options(label="y", environment="site"), plan), folder / "model")
    >>> (folder / "model" / "model.safetensors").exists()
    True
    """
    check_output(Path(folder), force)
    compared = None if fitted.comparison is None else fitted.comparison.to_dict()
    content = {"chosen": fitted.choice.algorithm, "why": fitted.choice.why, "comparison": compared}
    place = Path(os.path.realpath(folder))
    there = place.exists()
    # A folder that a shell is in, that is mounted, or whose parent is not the user's, has to stay.
    stays = there and (Path.cwd().is_relative_to(place) or not os.access(place.parent, os.W_OK | os.X_OK))
    with new_folders(place.parent), ExitStack() as held:
        new = held.enter_context(hidden_folder(place if stays else place.parent, place.name)) / "new"
        new.mkdir()  # with the mode that the umask gives, while the hidden folder is this user's alone
        save_model(new, fitted.model)
        write_atomically(new / COMPARISON, dumps(content, indent=2) + "\n")
        if fitted.source.schema is not None:
            write_atomically(new / SCHEMA, dumps(fitted.source.schema.declaration(), indent=2) + "\n")
        write_atomically(new / CARD, model_card(fitted, command))
        write_page(new / REPORT, fit_page(fitted, command))
        if not there:
            new.rename(place)
        elif stays:
            _move_in(new, place)
        else:
            shutil.copymode(place, new)
            if not exchange(new, place):
                inside = held.enter_context(hidden_folder(place, place.name)) / "new"
                _move_in(Path(shutil.copytree(new, inside)), place)
    shutil.rmtree(kept_beside(place), ignore_errors=True)


def _move_in(new: Path, place: Path) -> None:
    """Replace one file after the other, the weights last: they are a whole model by themselves, the old one or the new.

    A failure brings the old files back.
    """
    old = new / "old"
    old.mkdir()
    names = sorted(FILES, key=lambda name: name == WEIGHTS)
    for name in names:
        if (place / name).exists():
            shutil.copy2(place / name, old / name)
    try:
        _replace_all(new, place, names)
    except BaseException:
        _replace_all(old, place, names)
        raise


def _replace_all(source: Path, place: Path, names: Sequence[str]) -> None:
    for name in names:
        if (source / name).exists():
            os.replace(source / name, place / name)
        else:
            (place / name).unlink(missing_ok=True)


def summarise_fit(fitted: Fitted, folder: Path) -> dict[str, Any]:
    """The fit in the types of JSON, with where everything lies."""
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
    """(column, taken as, number of features, remark) of what a model is given."""
    if source.schema is not None:
        schema = source.schema
        used = [(c.name, c.kind, len(c.features), schema.remarks.get(c.name, "")) for c in schema.columns]
        return used + [(name, "not used", 0, why) for name, why in schema.dropped.items()]
    if source.kind == "images":
        channels, height, width = source.shape
        return [("images", f"images of {width} x {height} pixels", channels, "")]
    return [(listed(source.columns) or "features", "vectors, standardised", source.shape[0], "")]


def columns_table(source: Source, folder: Path) -> Table:
    """Table of the columns and how they are used; if there are many, those with a remark come first."""
    samples, sizes = source.samples, source.sizes
    found = columns_of(source)
    if len(found) > MOST:
        found.sort(key=lambda column: not column[-1])
    rows = [
        (source.label, "label", "", f"{len(samples.class_names)} classes"),
        (source.environment, "environment", "", f"{min(sizes.values())} to {max(sizes.values())} rows"),
        *((name, kind, str(number), remark) for name, kind, number, remark in found[:MOST]),
    ]
    more = f"and {len(found) - MOST} more columns: see {folder / CARD}" if len(found) > MOST else ""
    title = f"{source.name}: {counted(len(samples), 'row')}, {len(sizes)} environments"
    return Table(title, COLUMNS, rows, note=more)


def comparison_table(fitted: Fitted, width: int | None = None) -> Table:
    """Accuracy and loss of each candidate; the chosen one is emphasised.

    Many environments, or a `width` in letters that is too small for them, leave the worst one alone with its name.
    """
    comparison = fitted.comparison
    assert comparison is not None
    where = "in environments not trained on" if comparison.held == "environments" else "on held-out rows"
    where += ", before calibration" if _is_calibrated(fitted) else ""
    summary, what = comparison.summary, METRICS[comparison.metric]
    places, last = list(comparison.accuracy.index), [f"Mean {what}", f"Worst {what}"]
    candidates = [named(name) for name in (*summary.index, *comparison.stopped)]
    wanted = max(map(len, candidates)) + sum(
        2 + max(map(len, name.split())) for name in (*places, *last, "Worst", "Worst")
    )
    folded = len(places) > WIDE or (width is not None and wanted > width)
    rows: list[list[Entry]] = []
    for name, found in summary.iterrows():
        own = comparison.accuracy[name]
        row: list[Entry] = [named(str(name))]
        row += [] if folded else [percent(own[place]) for place in places]
        row += [percent(found["mean"]), percent(found["worst"]), *([str(own.idxmin())] if folded else [])]
        row += [Cell(f"{found[key]:.3f}", float(found[key])) for key in ("mean_loss", "worst_loss")]
        rows.append(row)
    for name, one in comparison.stopped.items():  # in the table, but for what is not known
        shown = [percent(one.accuracy.get(place)) for place in places] * (not folded)
        rows.append([named(name), *shown, *(percent(None),) * (4 + folded)])
    columns = ["Candidate", *places * (not folded), "Mean", "Worst", *["Worst in"] * folded, *last]
    chosen = summary.index.get_loc(fitted.choice.algorithm)
    return Table(f"Accuracy, %, and {what}, {where}", columns, rows, emphasised=[chosen])


def held_out_table(fitted: Fitted) -> Table:
    """Figures of the chosen candidate in each environment that it was not trained on."""
    where = "when it was held out" if fitted.decision.held == "environments" else "on held-out rows"
    where += f", calibrated by the {_others(fitted)}" if _is_calibrated(fitted) else ""
    found = figures_table(fitted.decision.seen, f"{named(fitted.choice.algorithm)}, by environment, {where}")
    notes = [threshold_note(fitted)]
    if fitted.decision.temperature != 1:
        notes.append(
            f"Probabilities are calibrated: logits are divided by {fitted.decision.temperature:.2f}, which was chosen "
            "by the log loss in held-out environments."
        )
    return replace(found, note=" ".join(filter(None, notes)))


def threshold_note(fitted: Fitted) -> str:
    """Sentence on the threshold between two classes, where one was learned."""
    decision = fitted.decision
    if decision.threshold is None:
        return ""
    return (
        f"{fitted.model.classes[1]!r} is predicted where its probability is above {decision.threshold:.3f}, which has "
        f"the least {METRICS[decision.metric]} in held-out environments; accuracies there are with the threshold that "
        f"the {_others(fitted)} give."
    )


def _is_calibrated(fitted: Fitted) -> bool:
    """Tell whether the figures of a held-out environment are of probabilities that the others calibrate."""
    return any(temperature != 1 for temperature in fitted.decision.temperatures.values())


def _others(fitted: Fitted) -> str:
    ordered = fitted.comparison is not None and fitted.comparison.order
    return "earlier environments" if ordered else "other environments"


def held_out_sections(fitted: Fitted) -> list[Section]:
    """What the chosen candidate predicted for rows that were held out: by class, confusion, reliability."""
    assert fitted.comparison is not None
    comparison, samples = fitted.comparison, fitted.source.samples
    raw = comparison.probabilities[fitted.choice.algorithm]
    tested = np.isfinite(raw).all(1)
    labels, given, chances = samples.labels.numpy()[tested], raw[tested], fitted.held_out[tested]
    curves = {"as predicted": (labels, chances)}
    if _is_calibrated(fitted):
        curves = {"before calibration": (labels, given), "calibrated": (labels, chances)}
    places = numbered_in_time(samples, comparison.order)[tested]
    decided = decide_held_out(labels, given, places, fitted.decision.metric, bool(comparison.order))
    matrix = confusion(labels, decided, chances.shape[1])
    tables: list[Section] = [class_table(matrix, samples.class_names)]
    if len(samples.class_names) <= MANY:
        tables.append(confusion_table(matrix, samples.class_names))
    return [*tables, reliability_section(curves, classes=samples.class_names)]


def verdict(fitted: Fitted) -> list[str]:
    """Sentences that say whether the model can be used in a new environment, and what to expect there.

    Intervals are of a new environment's true value, so they count environments and not rows.
    """
    comparison, chosen, seen = fitted.comparison, named(fitted.choice.algorithm), fitted.decision.seen
    columns = None if fitted.plan.drop_unstable else fitted.columns
    warning, advice = ("", "") if columns is None else (columns.warning, _advice_to_drop(columns))
    if comparison is None:
        unknown = f"{chosen} was fitted. Nothing was compared, so what it does in a new environment is not known."
        return list(filter(None, [unknown, warning, advice]))
    if comparison.held == "rows":
        unknown = (
            f"{chosen} was fitted. Whether it works in a new environment cannot be known from "
            f"{counted(len(fitted.source.sizes), 'environment')}: no environment could be held out. Get labelled rows "
            "from a third one."
        )
        return list(filter(None, [unknown, warning, advice]))
    accuracy, loss = (_expected(fitted, name) for name in ("accuracy", "log_loss"))
    guess = float(np.mean(list(comparison.frequent.values())))
    below = [name for name, one in seen.items() if one.accuracy <= one.majority and one.entropy > 0]
    useless = accuracy.mean <= guess or len(below) > len(seen) / 2
    unclear = not accuracy.high - accuracy.low <= WIDEST  # nan: there is no interval
    usable = "Yes"
    if useless:
        usable = "No"
    elif unclear:
        usable = f"The data cannot tell: {counted(len(seen), 'environment')} that were held out are too few"
    elif below or warning or not accuracy.low > guess:
        usable = "With care"
    span, losses = "", ""
    if np.isfinite([accuracy.low, accuracy.high, loss.low, loss.high]).all():
        span = f" (95 % interval for a new environment: {100 * accuracy.low:.1f} to {100 * accuracy.high:.1f} %)"
        losses = f" ({loss.low:.3f} to {loss.high:.3f})"
    lines = [
        f"Can the model be used in a new environment? {usable}. In {counted(len(seen), 'environment')}, each held out "
        f"once, the model has a mean accuracy of {100 * accuracy.mean:.1f} %{span} and a mean log loss of "
        f"{loss.mean:.3f}{losses}; always saying the class that is most frequent in the environments trained on gives "
        f"{100 * guess:.1f} %."
    ]
    if comparison.metric != "log_loss":
        of_metric = comparison.summary.loc[fitted.choice.algorithm]
        lines.append(
            f"By the metric that was asked for ({comparison.metric}), it has a mean {METRICS[comparison.metric]} of "
            f"{of_metric['mean_loss']:.3f} in held-out environments, and {of_metric['worst_loss']:.3f} in the worst "
            "one."
        )
    if below:
        lines.append(
            f"In {listed(map(repr, below), 5)} it is no more accurate than always saying the class that is most "
            "frequent there."
        )
    if fitted.with_all is not None:
        lines.append(_gained(fitted, fitted.with_all))
    worst = max(seen, key=lambda place: seen[place].log_loss)
    lines.append(
        f"The environment to worry about is {worst!r}, with an accuracy of {100 * seen[worst].accuracy:.1f} % and a "
        f"log loss of {seen[worst].log_loss:.3f}."
    )
    lines.append(warning)
    if advice:
        lines.append(advice)
    elif useless:
        lines.append("Next: run trm audit, which tells whether any environment's model works in another.")
    elif unclear:
        lines.append("Next: get labelled rows from more environments, and fit again.")
    else:
        lines.append("Next: label some rows of the new environment, and compare with them what trm predict says there.")
    return list(filter(None, lines))


def _advice_to_drop(columns: ColumnReport) -> str:
    """Advice to fit again without the unstable columns; "" where held-out losses speak against it."""
    names = unstable(columns)
    changes = [loss.mean for name in names if (loss := columns[name].loss) is not None and np.isfinite(loss.mean)]
    told = listed(map(repr, names), 5)
    if len(changes) < len(names):
        return f"Next: fit again with --drop-unstable and compare. What a model loses without {told} is not known."
    if names and max(changes) <= -NEAR:
        return (
            "Next: fit again with --drop-unstable. In held-out environments a linear model has a lower log loss "
            f"without {told}."
        )
    return ""


def _gained(fitted: Fitted, with_all: Comparison) -> str:
    """What leaving out unstable columns did in held-out environments."""
    assert fitted.comparison is not None
    assert fitted.source.schema is not None
    name, what = fitted.choice.algorithm, METRICS[with_all.metric]
    gone = [column for column, why in fitted.source.schema.dropped.items() if "differs between environments" in why]
    if not gone:
        return "No column has an effect that differs between environments, so none was dropped."
    now, whole = fitted.comparison.summary.loc[name], with_all.summary
    other = name if name in whole.index else whole["loss"].idxmin()  # where its training with all columns was stopped
    before = whole.loc[other]
    return (
        f"Dropped, since their effect differs between environments: {listed(map(repr, gone))}. Each held-out "
        "environment was tested without the columns that the others alone show to be unstable, which may be fewer: so "
        f"tested, the mean {what} is {now['loss']:.3f} and the accuracy {100 * now['mean']:.1f} %; with all columns "
        f"{named(other)} has {before['loss']:.3f} and {100 * before['mean']:.1f} %. Held-out environments that agree "
        "with the others cannot show what such a column costs where its effect is reversed."
    )


def _expected(fitted: Fitted, figure: str) -> Pooled:
    """Mean of a figure over held-out environments, each counted the same, and its interval for a new one."""
    values = np.array([getattr(one, figure) for one in fitted.decision.seen.values()])
    if figure == "log_loss":
        found = pool(values, fitted.loss_variances, evenly=True)
        return replace(found, low=float(np.maximum(found.low, 0)))
    rows = np.array([one.rows for one in fitted.decision.seen.values()])
    smoothed = (values * rows + 1) / (rows + 2)
    found = pool(values, smoothed * (1 - smoothed) / rows, evenly=True)
    return replace(found, low=float(np.maximum(found.low, 0)), high=float(np.minimum(found.high, 1)))


def fit_sections(fitted: Fitted, width: int | None = None) -> list[Section | str]:
    """Sections that a terminal of so many letters shows of a fit."""
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
    """Sentence on whether a pretrained backbone is trained, and how to change that; "" if there is none."""
    if plan.frozen:
        return (
            f"{plan.backbone} is taken as it is (frozen), and {plan.on_top} trained on its features; --tuned trains "
            "all of it, which takes far longer."
        )
    if source.kind != "images" or plan.weights in (None, "none"):
        return ""
    return f"All of {plan.backbone} is trained; --frozen takes it as it is and trains a small network on its features."


def how_compared(comparison: Comparison) -> str:
    """Sentence that says how the accuracies of a comparison were measured."""
    seeds = f", {len(comparison.seeds)} seeds" if len(comparison.seeds) > 1 else ""
    if comparison.held == "rows":
        return (
            "No environment could be held out: the accuracies are on a fifth of each environment's rows, of "
            f"environments that were trained on, and say nothing about new ones{seeds}."
        )
    held_out, average = len(comparison.accuracy), ""
    if BLEND in comparison.summary.index:
        weights = "learned from earlier ones, equal in the first" if comparison.order else "learned without it"
        average = (
            f" {named(BLEND)}: {told_members(comparison.members)}; in each held-out environment it was tested with "
            f"weights {weights}."
        )
    if comparison.order:
        return (
            f"Environments follow each other ({listed(comparison.order)}), and only the future was held out: each of "
            f"{held_out} later ones was tested on with all its rows, after training on the earlier ones alone{seeds}."
            f"{average}"
        )
    which = "Each environment was held out once"
    if comparison.left_out:
        which = f"{held_out} of {held_out + comparison.left_out} environments, drawn by seed, were held out, each once"
    stopped = [
        f"{named(name)} after {len(one.accuracy)} of {held_out} environments, behind the best there by "
        f"{one.behind:.3f} with a standard error of {one.error:.3f}"
        for name, one in comparison.stopped.items()
    ]
    given_up = f" Stopped, since far behind in log loss: {'; '.join(stopped)}." if stopped else ""
    return (
        f"{which}: trained on the others, tested on all its rows, which neither the model nor the encoding had seen"
        f"{seeds}. Means count each environment the same; the choice goes by the pooled {METRICS[comparison.metric]}, "
        f"in which those with few rows count less.{given_up}{average}"
    )


def settings_of(fitted: Fitted) -> dict[str, str | Sequence[str]]:
    """Settings that the final model was trained with, by name."""
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
            "Training": f"{steps} on {drawn}, SGD with rate {config.lr:g}, momentum {config.momentum:g} and weight "
            f"decay {config.weight_decay:g}, {config.decay_words}" + (", images varied" if config.augment else ""),
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
    """Wilson's 95 % interval of shares of `count` rows."""
    centre = share + Z * Z / (2 * count)
    half = Z * np.sqrt(share * (1 - share) / count + Z * Z / (4 * count * count))
    scale = 1 + Z * Z / count
    return np.maximum(0.0, (centre - half) / scale), np.minimum(1.0, (centre + half) / scale)


def model_card(fitted: Fitted, command: str = "") -> str:
    """The model card: what the model is, how it was chosen and what it is not for, in Markdown."""
    from .. import __version__

    samples, source = fitted.source.samples, fitted.source
    classes = markdown_text(names_in_text(samples.class_names))
    counts = samples.group_counts()
    rows = zip(samples.environment_names, counts.sum(1).tolist(), *counts.T.tolist(), strict=True)
    compared = "No algorithms were compared, so nothing is known about environments that were not trained on."
    if fitted.comparison is not None:
        tables = (comparison_table(fitted), held_out_table(fitted))
        compared = "\n\n".join([how_compared(fitted.comparison), *(markdown(table).strip() for table in tables)])
    expected = "How it does in a new environment was not measured."
    if fitted.comparison is not None and fitted.comparison.held == "environments":
        expected = (
            "What to expect of a new environment comes from held-out ones: expect less where a new one differs more "
            "than they do from each other. Where a candidate was chosen by these numbers, its own are a little too "
            "good."
        )
    calibrated = "Probabilities were not calibrated."
    if fitted.decision.temperature != 1:
        calibrated = "Probabilities were calibrated by the log loss in held-out environments."
    calibrated = " ".join(filter(None, [calibrated, threshold_note(fitted)]))
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
        "## What the model is given",
        "Neither the label nor the environment is a feature.",
        markdown(Table("", COLUMNS, columns_of(source))).strip("\n"),
        "## Comparison",
        compared,
        f"**Chosen: {named(fitted.choice.algorithm)}**, {markdown_text(fitted.choice.why)}.",
        "## Settings",
        "\n".join(settings),
        "## Intended use and limits",
        f"For telling {classes} apart in places like the environments above, also new ones. {expected} "
        f"{calibrated} It was not examined for fairness between groups other than the "
        "environments and classes above.",
        "## How to predict",
        "```bash\ntrm predict MODEL new.parquet --output predictions.parquet\n```",
        "```python\nfrom transferrisk.fitting import load_model\n\nmodel = load_model('MODEL')\n"
        f"probabilities = model.predict_proba({'frame' if source.kind == 'table' else 'array'})\n```",
        "MODEL is the folder this card lies in.",
    ]
    return "\n\n".join(paragraphs) + "\n"


def fit_page(fitted: Fitted, command: str = "") -> Page:
    """The page: the comparison as a table and bars, the trainings, what the model is given."""
    comparison, settings = fitted.comparison, settings_of(fitted)
    chosen = named(fitted.choice.algorithm)
    lead = verdict(fitted)
    lead.append(f"{chosen} was trained on all {len(fitted.source.samples)} rows: {fitted.choice.why}.")
    if fitted.plan.frozen and "Network" in settings:
        lead.append(f"The network is {settings['Network']}.")
    sections: list[Section] = []
    curves: dict[str, Curve] = {}
    if comparison is not None:
        lead.append(how_compared(comparison))
        bars: dict[str, list[Bar]] = {}
        shown, note = comparison.accuracy, "Lines are 95 % intervals over the rows of an environment."
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
        kind = "environments not trained on" if comparison.held == "environments" else "held-out rows"
        sections += [comparison_table(fitted), Bars(f"Accuracy in {kind}", bars, note=note), held_out_table(fitted)]
        sections += shift_sections(fitted.shifts) if fitted.shifts else []
        curves |= {named(name): curve for name, curve in comparison.curves.items()}
    if fitted.curve is not None:
        curves[f"{chosen}, all rows"] = fitted.curve
    note = (
        "The algorithms minimise different things, so the heights of their curves do not compare. Of each compared "
        "algorithm, the first training is shown."
    )
    sections += column_sections(fitted.columns) if fitted.columns is not None else []
    sections += held_out_sections(fitted) if comparison is not None else []
    sections.append(Table("What the model is given", COLUMNS, columns_of(fitted.source)))
    if curves:
        sections.append(Curves("Training", curves, "step", "loss", note=note))
    title = f"{fitted.source.label}: a model for new environments"
    return Page(title, tuple(lead), tuple(sections), settings, command)
