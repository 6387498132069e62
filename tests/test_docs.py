"""Every Python block of README and the documentation runs, page by page, and links lead somewhere."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from transferrisk.data import Options
from transferrisk.fitting import Plan, fit
from transferrisk.fitting.export import export_onnx

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "CHANGELOG.md"]
PAGES += sorted((ROOT / "docs").glob("*.md")) + sorted((ROOT / "results").rglob("README.md"))


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)


PLUGINS = ROOT / "docs" / "plugins.md"


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if blocks(page, "python")],
    ids=lambda page: str(page.relative_to(ROOT)),
)
def test_the_python_of_a_page_runs_from_top_to_bottom(page, tmp_path):
    program = tmp_path / "page.py"
    program.write_text("\n\n".join(blocks(page, "python")), encoding="utf-8")
    environment = {**os.environ, "TRANSFERRISK_CACHE": str(tmp_path / "cache"), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "error", program], cwd=tmp_path, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]


def test_the_guide_to_plugins_shows_the_example_package():
    """Its first blocks are files of the package, which is installed and run by a test of its own."""
    shown = blocks(PLUGINS, "python")
    for name in ("tilted", "moons", "sine"):
        file = ROOT / "examples" / "plugin" / "src" / "transferrisk_example" / f"{name}.py"
        code = file.read_text(encoding="utf-8").partition("from __future__ import annotations\n")[2]
        assert code.strip() + "\n" in shown, name


def test_the_example_of_onnx_gives_the_probabilities_of_the_model(tmp_path, monkeypatch):
    for package in ("onnx", "onnxscript", "onnxruntime"):
        pytest.importorskip(package)
    (block,) = (code for code in blocks(ROOT / "docs" / "commands.md", "py") if "onnxruntime" in code)
    monkeypatch.chdir(tmp_path)
    i = np.arange(90)
    table = pd.DataFrame(
        {
            "wage": np.where(np.sin(i) > 0, "high", "low"), "region": np.take(["a", "b", "c"], i % 3),
            "education": np.where(i % 9, 8 + i % 7 + np.sin(i), np.nan), "experience": 1.5 * i,
            "ethnicity": np.take(["cauc", "afam", None], i % 8 % 3), "smsa": np.take(["yes", "no"], i % 5 % 2),
            "parttime": np.take(["yes", "no"], i % 7 % 2),
        }
    )  # fmt: skip
    table.to_csv("table.csv", index=False)
    options = Options(label="wage", environment="region", missing_indicators="always")
    model = fit("table.csv", options, Plan(algorithm="linear", compared=False, workers=1)).model
    export_onnx(model, Path("model.onnx"))
    found: dict[str, Any] = {}
    exec(compile(block, "commands.md", "exec"), found)
    rows = pd.DataFrame({name: [value or None for value in values] for name, values in found["rows"].items()})
    np.testing.assert_allclose(found["probabilities"], model.predict_proba(rows), atol=1e-6)
    assert tuple(found["classes"]) == model.classes


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)\s]+)\)", text) + re.findall(r'src="([^"]+)"', text):
        if "://" in target:
            continue
        name, _, anchor = target.partition("#")
        file = (page.parent / name).resolve() if name else page
        assert file.exists(), target
        if anchor:
            headings = re.findall(r"^#+ (.*)$", file.read_text(encoding="utf-8"), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w\- ]", "", h.lower()).replace(" ", "-") for h in headings}, target


def test_readme_is_a_front_door():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.encode()) <= 8192
    assert not re.search(r"\b(COMMIT|DATE|TODO|XXX)\b", text)
    assert re.search(r"!\[|<img ", text)


def test_shown_outputs_are_refreshed(tmp_path):
    """Every marked output follows its commands, and the tool replaces it by what they print."""
    spec = importlib.util.spec_from_file_location("outputs", ROOT / "docs" / "tools" / "outputs.py")
    outputs = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(outputs)
    for page in outputs.PAGES:
        text = page.read_text(encoding="utf-8")
        assert len(re.findall("^<!-- output", text, re.MULTILINE)) == len(outputs.SHOWN.findall(text)), page
    page = "```bash\necho a; echo b\n```\n<!-- output{}: tail -n 1 -->\n```text\nold\n```\n"
    shell = outputs.Shell(tmp_path)
    assert outputs.refreshed(page.format(""), shell) == page.format("").replace("old", "b")
    assert outputs.refreshed(page.format(", varies"), shell, check=True) == page.format(", varies")


def test_every_page_is_in_the_navigation():
    navigation = (ROOT / "mkdocs.yml").read_text(encoding="utf-8").partition("\nnav:")[2]
    for page in (ROOT / "docs").rglob("*.md"):
        assert re.search(rf" {page.relative_to(ROOT / 'docs').as_posix()}\n", navigation), page
