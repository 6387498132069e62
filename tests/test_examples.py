"""The examples run. Those with real tables need pip to reach a package index, and say so where it cannot."""

from __future__ import annotations

import subprocess
import sys
from hashlib import sha256
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[1] / "examples"


@pytest.fixture
def example(monkeypatch):
    """Imports one of them by name."""
    monkeypatch.syspath_prepend(EXAMPLES)

    def load(name):
        return __import__(name)

    return load


def test_own_loop_gains_where_the_measurement_misleads(example):
    own_loop = example("own_loop")
    assert own_loop.train(1.0, steps=100) > own_loop.train(0.0, steps=100) + 0.03


def test_pipeline_gains_where_sites_disagree(example):
    scores = example("pipeline").main()
    assert scores["trm"].min() > scores["erm"].min()


@pytest.mark.parametrize(("name", "predictions"), [("employment", "predictions.parquet"), ("wages", "predictions.csv")])
def test_real_tables(example, name, predictions, tmp_path):
    """In a process of its own, on a small part of the table."""
    module = example(name)
    if not reachable(module.REQUIREMENT, tmp_path):
        pytest.skip(f"pip cannot download {module.REQUIREMENT}")
    command = [sys.executable, str(EXAMPLES / f"{name}.py"), str(tmp_path), "--rows", "3000", "--fit", "--epochs", "2"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    for file in ("audit.html", "model/model.safetensors", "model/card.md", predictions):
        assert (tmp_path / file).stat().st_size > 0


@pytest.mark.parametrize("name", ["employment", "wages"])
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
