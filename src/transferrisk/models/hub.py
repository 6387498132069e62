"""Models on the Hugging Face hub: a repository has the files of a model's folder, and its card as the page.

`huggingface_hub` is an optional package, which is imported when a function here is called.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from ..errors import InputError, cause_of
from ..extras import require
from .saved import DESCRIPTION, WEIGHTS, SavedModel, load_model_folder

CARD = "card.md"
FILES = (DESCRIPTION, WEIGHTS, "schema.json", "comparison.json", "report.html")
"""Files that are pushed and fetched; the card is pushed as README.md."""


def push_to_hub(folder: Path | str, repo_id: str, *, private: bool = False, api: Any = None) -> str:
    """Push the folder of a model to a repository of the Hugging Face hub, which is created if it does not exist.

    Parameters
    ----------
    folder
        Folder that `trm fit`, `trm train` or `TransferRiskClassifier.save` wrote.
    repo_id
        Name of the repository, such as "me/visits".
    private
        Whether a new repository is private.
    api
        A `huggingface_hub.HfApi`. Default: one with the token that is stored on this machine.

    Returns
    -------
    str
        The address of the repository.

    Examples
    --------
    >>> from transferrisk.models import push_to_hub
    >>> push_to_hub("model", "me/visits")  # doctest: +SKIP
    'https://huggingface.co/me/visits'
    """
    folder = Path(folder)
    saved = load_model_folder(folder)  # a folder that cannot be read is not pushed
    hub = require("huggingface_hub", "hub")
    api = hub.HfApi() if api is None else api
    try:
        url = str(api.create_repo(repo_id, private=private, exist_ok=True))
        api.upload_folder(repo_id=repo_id, folder_path=str(folder), allow_patterns=list(FILES))
        card = card_of(folder, saved, repo_id).encode()
        api.upload_file(repo_id=repo_id, path_or_fileobj=card, path_in_repo="README.md")
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError, OSError) as error:
        raise InputError(f"{repo_id} cannot be pushed to: {cause_of(error)}") from None
    return url


def from_hub(name: str | Path, revision: str | None = None) -> Path:
    """Fetch the folder of a model from the Hugging Face hub; a folder on this machine is returned as it is.

    Parameters
    ----------
    name
        Name of a folder or of a repository, such as "me/visits".
    revision
        Branch, tag or commit. Default: the newest commit.

    Returns
    -------
    Path
        The folder, which `load_model`, `trm predict` and `TransferRiskClassifier.load` read.

    Examples
    --------
    >>> from transferrisk.models import from_hub
    >>> folder = from_hub("me/visits")  # doctest: +SKIP
    """
    if Path(name).is_dir():
        return Path(name)
    hub = require("huggingface_hub", "hub")
    try:
        return Path(hub.snapshot_download(str(name), revision=revision, allow_patterns=list(FILES)))
    except (hub.errors.HfHubHTTPError, hub.errors.HFValidationError, hub.errors.LocalEntryNotFoundError, OSError) as e:
        raise InputError(f"{name} is not a folder, and cannot be fetched from the hub: {cause_of(e)}") from None


def card_of(folder: Path, saved: SavedModel, repo_id: str) -> str:
    """Return the model card, that of `trm fit` if there is one, with the fields by which the hub finds the model."""
    path = folder / CARD
    if path.is_file():
        text = path.read_text(encoding="utf-8")
    else:
        listed = {"Classes": saved.classes, "Training environments": saved.environments}
        lines = [f"- {title}: {', '.join(names) or 'not known'}" for title, names in listed.items()]
        text = "\n".join([f"# {repo_id.rpartition('/')[2]}", "", "A model of transferrisk.", "", *lines, ""])
    use = "from transferrisk.fitting import Model\n\n" + f"model = Model.from_pretrained({json.dumps(repo_id)})\n"
    tags = "\n".join(f"- {tag}" for tag in ("transferrisk", "domain-generalization", "out-of-distribution"))
    return f"---\nlibrary_name: transferrisk\ntags:\n{tags}\n---\n\n{text}\n## Use\n\n```python\n{use}```\n"
