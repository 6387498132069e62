"""The examples run. Those with real tables need pip to reach a package index, and say so where it cannot."""

from __future__ import annotations

import subprocess
import sys
import warnings
from hashlib import sha256
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest

from transferrisk.extras import require
from transferrisk.sklearn import TransferRiskClassifier

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports one of them by name."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name):
        return __import__(name)

    return load


def test_the_loop_gains_where_the_measurement_misleads(example):
    loop = example("loop")
    assert loop.train(1.0, steps=100)[-1] > loop.train(0.0, steps=100)[-1] + 0.03


def test_the_audit_names_the_scanner_where_predictors_fail(example):
    report = example("audit").audited(per_scanner=100)
    left_out = report.left_out_accuracy.value
    assert report.environments[left_out.argmin()] == "D"


def test_leaving_out_the_device_helps_at_the_new_hospital(example):
    hospitals = example("hospitals")
    assert hospitals.accuracies(True, rows=150)["new"] > hospitals.accuracies(False, rows=150)["new"] + 0.1


def test_in_the_search_trm_is_best_at_the_hardest_site(example):
    found = example("search").search(per_site=100)
    algorithms = [row["model__algorithm"] for row in found.cv_results_["params"]]
    worst = np.min([found.cv_results_[f"split{i}_test_score"] for i in range(4)], axis=0)
    assert worst[algorithms.index("trm")] > worst[algorithms.index("erm")]


def test_lightning_and_fabric_train_as_the_loop_does(example):
    require("torchvision")  # which Lightning imports, and does not import as a CPU-only torch needs
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of Lightning's own imports
        lightning = example("lightning")
    for train in (lightning.with_lightning, lightning.with_fabric):
        assert train(1.0, epochs=25) > train(0.0, epochs=25) + 0.03


def test_photographs_are_read_from_folders_and_trained_on(example, tmp_path):
    photographs = example("photographs")
    rows = photographs.photographs(tmp_path, count=60)
    assert [row.shape for row in rows.values()] == 3 * [(20, 160, 3)]
    assert 0 <= photographs.accuracy(tmp_path, "trm", epochs=1) <= 1


def test_a_tilted_risk_gains_at_the_unseen_site(example):
    found = example("algorithm").compared(epochs=20)
    assert found["tilt 10"] > found["ERM"]


def test_results_are_those_of_the_published_table(example):
    """results/paper/cmnist-defaults/training_domain.csv was written by `trm report` from the same records."""
    module = example("results")
    published = pd.read_csv(module.RECORDS.parent / "training_domain.csv").query("panel == 'label-correlated'")
    published = published.astype({"column": float}).pivot_table("mean", "column", "line")
    found = module.accuracies()
    np.testing.assert_allclose(found, published.loc[found.index, found.columns], atol=1e-3)


def test_other_libraries_work_with_ours(example, capsys):
    """skrub, LightGBM and fairlearn see the same held-out hospitals, and polars gives what pandas gives."""
    module = example("interoperability")
    table = module.patients(per_hospital=60)
    scores = module.accuracies(table)
    assert scores["TransferRiskClassifier"].mean() > scores["LGBMClassifier"].mean() > 0.5
    by_hospital = module.fairness(table).by_group
    np.testing.assert_allclose(by_hospital["accuracy"], scores["TransferRiskClassifier"])
    assert (by_hospital["rows"] == 60).all()

    predicted = module.from_polars(pl.from_pandas(table))
    assert isinstance(predicted, pd.DataFrame)
    known, new = table[table.hospital != "west"], table[table.hospital == "west"]
    model = TransferRiskClassifier(random_state=0).fit(
        known[["age", "device"]], known["ill"], environments=known["hospital"]
    )
    np.testing.assert_array_equal(predicted["chance"], model.predict_proba(new[["age", "device"]])[:, 1])
    assert "all others" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("name", "predictions", "further"),
    [
        ("employment", "predictions.parquet", ["--epochs", "2"]),
        ("wages", "predictions.csv", ["--epochs", "2"]),
        ("claims", "predictions.csv", ["--algorithms", "linear,trm-leaves"]),
    ],
)
def test_real_tables(example, trm, name, predictions, further, tmp_path, monkeypatch):
    """On a small part of the table; the commands run in this process."""
    module = example(name)
    if not reachable(module.REQUIREMENT, tmp_path):
        pytest.skip(f"pip cannot download {module.REQUIREMENT}")
    ended = []
    monkeypatch.setattr(example("shared"), "trm", lambda *arguments: ended.append(trm(*arguments)))
    module.main([str(tmp_path), "--rows", "1500", "--fit", *further])
    assert len(ended) >= 3
    assert not any(code for code, *_ in ended), ended
    for file in ("audit.html", "model/model.safetensors", "model/card.md", predictions):
        assert (tmp_path / file).stat().st_size > 0


def test_the_mark_of_claims_is_the_answer_by_one_of_two_books(example):
    """Its share of agreement is the table of shares, within four standard errors, and only the mark is made."""
    claims = example("claims")
    rng = np.random.default_rng(0)
    table = pd.DataFrame({name: rng.normal(size=6000) for name in claims.COLUMNS})
    table = table.assign(site=rng.integers(1, 7, 6000), year=rng.integers(1, 3, 6000), mdvis=rng.integers(6, size=6000))
    found = claims.experiment(table)
    first = table[table["year"] == 1]
    np.testing.assert_array_equal(found[[*claims.COLUMNS.values()]], first[[*claims.COLUMNS]])
    assert ((found["visits"] == "often") == (first["mdvis"] > 2)).all()
    agree = ((found["mark"] == "1") == (found["visits"] == "often")).groupby(found["site"])
    for site, share in claims.OLD_BOOK.items():
        error = (share * (1 - share) / agree.size()[site]) ** 0.5
        assert abs(agree.mean()[site] - share) < 4 * error


def test_a_command_that_fails_ends_an_example(example):
    with pytest.raises(SystemExit) as ended:
        example("shared").trm("no such command")
    assert ended.value.code == 2


@pytest.mark.parametrize("name", ["employment", "wages", "claims"])
def test_a_wheel_with_another_content_is_refused(example, name, tmp_path):
    module = example(name)
    wheel = tmp_path / f"{module.REQUIREMENT.replace('==', '-')}-py3-none-any.whl"
    wheel.write_bytes(b"something else")
    with pytest.raises(SystemExit, match="is not the file this example was written for") as told:
        module.main([str(tmp_path)])
    assert "\n" not in str(told.value)
    assert [path.name for path in tmp_path.iterdir()] == [wheel.name]
    assert (
        example("shared").download_wheel(module.REQUIREMENT, sha256(b"something else").hexdigest(), tmp_path) == wheel
    )


def reachable(requirement: str, folder: Path) -> bool:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:", "--retries", "0"]
    return not subprocess.run([*pip, "--dest", str(folder), requirement], capture_output=True, check=False).returncode
