"""The folder of a fitted model: refused before the work if it cannot be written, then written whole or not at all."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

from ..errors import InputError
from ..files import check_target, exchange, hidden_folder, new_folders, write_atomically
from ..models.saved import DESCRIPTION, WEIGHTS, save_model
from ..reports import write_page
from ..settings import dumps
from .fitted import Fitted
from .model import CARD, COMPARISON, FILES, REPORT, SCHEMA
from .report import fit_page, model_card


def check_output(folder: Path, force: bool) -> None:
    """Refuse an output folder that cannot be written, before the work and without creating anything."""
    check_target(folder / WEIGHTS)
    # A fit that was killed while it wrote may have left a hidden folder, which the next fit removes.
    left = f".{Path(os.path.realpath(folder)).name[:100]}."
    found = list(folder.iterdir()) if folder.exists() else []
    there = {path.name for path in found if not (path.name.startswith(left) and path.is_dir())}
    if others := sorted(there.difference(FILES)):
        raise InputError(f"{folder} must hold a model or nothing, got {others[0]}: choose another output")
    if there and not force:
        raise InputError(
            f"{folder} holds a model already: choose another output, or replace it with --force (force=True in Python)"
        )


def kept_beside(folder: Path) -> Path:
    """Return the hidden folder beside a model's for the finished trainings of a comparison."""
    place = Path(os.path.realpath(folder))
    return place.with_name(f".{place.name[:100]}.comparison")


def save_fit(fitted: Fitted, folder: Path | str, command: str = "", force: bool = False) -> None:
    """Write a fitted model to a folder, with its card and its page.

    The folder is written under a hidden name and then takes the place of the old one, so that there is one whole model
    at any moment. Trainings that were kept beside it are removed.

    Parameters
    ----------
    fitted
        Result of `fit`.
    folder
        Folder to write.
    command
        Command that produced the model, for the card and the page.
    force
        Replace a model that is already in the folder.

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
    # The working folder, a mount point, or a folder whose parent is not writable has to stay.
    stays = there and (Path.cwd().is_relative_to(place) or not os.access(place.parent, os.W_OK | os.X_OK))
    with new_folders(place.parent), ExitStack() as held:
        new = held.enter_context(hidden_folder(place if stays else place.parent, place.name)) / "new"
        new.mkdir()  # with the mode that the umask gives; the hidden folder around it is private to this user
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
    """Replace one file after the other; the old files are restored if that fails.

    The weights alone are a whole model, and come after all files but their description: that one is away meanwhile,
    since it would be refused beside other weights.
    """
    old = new / "old"
    old.mkdir()
    names = [*(name for name in FILES if name not in (WEIGHTS, DESCRIPTION)), WEIGHTS, DESCRIPTION]
    for name in names:
        if (place / name).exists():
            shutil.copy2(place / name, old / name)
    try:
        _replace_all(new, place, names)
    except BaseException:
        _replace_all(old, place, names)
        raise


def _replace_all(source: Path, place: Path, names: Sequence[str]) -> None:
    (place / DESCRIPTION).unlink(missing_ok=True)
    for name in names:
        if (source / name).exists():
            os.replace(source / name, place / name)
        else:
            (place / name).unlink(missing_ok=True)
