"""Models to and from the hub, which a local folder stands in for."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from transferrisk.errors import InputError
from transferrisk.fitting import Model
from transferrisk.models import SavedModel, build_model, from_hub, push_to_hub, save_model
from transferrisk.sklearn import TransferRiskClassifier


class LocalHub:
    """The three calls of `HfApi` that a push makes, on a folder."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def create_repo(self, repo_id, private, exist_ok):
        (self.root / repo_id).mkdir(parents=True, exist_ok=exist_ok)
        return f"file://{self.root / repo_id}"

    def upload_folder(self, repo_id, folder_path, allow_patterns):
        for path in Path(folder_path).iterdir():
            if path.name in allow_patterns:
                shutil.copy(path, self.root / repo_id)

    def upload_file(self, repo_id, path_or_fileobj, path_in_repo):
        (self.root / repo_id / path_in_repo).write_bytes(path_or_fileobj)


@pytest.fixture
def hub(tmp_path):
    pytest.importorskip("huggingface_hub")
    return LocalHub(tmp_path / "hub")


def test_a_classifier_comes_back_the_same(hub):
    rng = np.random.default_rng(0)
    X, y, site = rng.normal(size=(60, 3)), rng.choice(["no", "yes"], 60), np.arange(60) % 3
    model = TransferRiskClassifier(max_epochs=2, random_state=0).fit(X, y, environments=site)
    url = model.push_to_hub("me/visits", api=hub)
    folder = hub.root / "me" / "visits"
    assert url == f"file://{folder}"
    np.testing.assert_array_equal(
        TransferRiskClassifier.from_pretrained(folder).predict_proba(X), model.predict_proba(X)
    )
    np.testing.assert_allclose(Model.from_pretrained(folder).predict_proba(X), model.predict_proba(X), atol=1e-6)
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: transferrisk\n")
    assert "no, yes" in card


def test_the_card_of_a_fit_is_the_page_of_the_repository(hub, tmp_path):
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, SavedModel(build_model("mlp:4", 2, (3,)), "mlp:4", (3,), ("no", "yes"), ("north", "south")))
    (folder / "card.md").write_text("# Model of outcome\n", encoding="utf-8")
    (folder / "private.csv").write_text("not to be pushed")
    push_to_hub(folder, "me/outcome", api=hub)
    pushed = hub.root / "me" / "outcome"
    assert sorted(path.name for path in pushed.iterdir()) == ["README.md", "model.json", "model.safetensors"]
    assert "# Model of outcome\n" in (pushed / "README.md").read_text(encoding="utf-8")
    assert from_hub(pushed) == pushed


def test_what_is_not_a_model_is_not_pushed(hub, tmp_path):
    with pytest.raises(InputError):
        push_to_hub(tmp_path, "me/nothing", api=hub)
    assert not hub.root.exists()


def test_a_name_that_cannot_be_fetched_is_one_line(hub, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(InputError, match="no such name") as told:
        from_hub("no such name")
    assert "\n" not in str(told.value)
