"""The wheel and the sdist hold what an installation needs, and work where there is no source tree."""

from __future__ import annotations

import email
import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The wheel and the sdist."""
    pytest.importorskip("hatchling", reason="hatchling builds the wheel, and is not installed")
    folder = tmp_path_factory.mktemp("dist")
    build = [
        sys.executable,
        "-m",
        "hatchling",
        "build",
        "--target",
        "wheel",
        "--target",
        "sdist",
        "--directory",
        folder,
    ]
    done = subprocess.run(build, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (wheel,), (sdist,) = folder.glob("*.whl"), folder.glob("*.tar.gz")
    return {"wheel": wheel, "sdist": sdist}


@pytest.fixture
def wheel(built):
    return built["wheel"]


def test_every_file_of_the_package_is_in_the_wheel(wheel):
    with zipfile.ZipFile(wheel) as archive:
        names = {name for name in archive.namelist() if name.startswith("transferrisk/")}
        assert any(name.endswith("licenses/LICENSE") for name in archive.namelist())
    source = ROOT / "src"
    files = {path.relative_to(source).as_posix() for path in source.rglob("*") if path.is_file()}
    files = {name for name in files if "__pycache__" not in name and ".egg-info" not in name}
    assert names == files
    assert {"transferrisk/py.typed", "transferrisk/paper/recipes/cmnist.toml"} <= names


def test_links_of_the_readme_lead_somewhere_from_a_package_index(built):
    with zipfile.ZipFile(built["wheel"]) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith("dist-info/METADATA"))
        metadata = archive.read(name)
    with tarfile.open(built["sdist"]) as archive:
        (name,) = (name for name in archive.getnames() if name.endswith("/PKG-INFO"))
        assert archive.extractfile(name).read() == metadata
    message = email.message_from_bytes(metadata)
    assert message["Description-Content-Type"] == "text/markdown"
    text = message.get_payload()
    targets = re.findall(r"\]\(([^)]+)\)", text) + re.findall(r'src="([^"]+)"', text)
    repository = "https://github.com/transferrisk/transferrisk/"
    own = [target.removeprefix(repository) for target in targets if target.startswith(repository)]
    assert "raw/main/docs/images/demo.png" in own
    for target in own:
        assert (ROOT / target.partition("/main/")[2].partition("#")[0]).exists(), target
    assert all(target.startswith("https://") for target in targets)


def test_the_installed_wheel_finds_its_recipes_and_templates(wheel, tmp_path):
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(tmp_path / "installed")
    program = """
import transferrisk
from transferrisk.experiments.recipe import load_recipe
from transferrisk.reports import Page, Text, render_page
page = render_page(Page("T", ["a"], [Text("b", ["c"])], {}, "trm"))
print(transferrisk.__file__, load_recipe("theorem-1").name, len(page))
"""
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith(str(tmp_path / "installed"))


def test_the_sdist_holds_source_tests_and_documentation(built):
    with tarfile.open(built["sdist"]) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    assert {"LICENSE", "README.md", "Makefile", "tests/test_wheel.py", "docs/index.md", "mkdocs.yml"} <= names
    assert not any(name.startswith((".venv", "site/", "runs/")) for name in names)


@pytest.mark.parametrize("kind", ["wheel", "sdist"])
def test_it_installs_in_a_clean_environment(built, kind, tmp_path):
    """Dependencies are those of this environment; the package and the command are those that pip installs."""
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", tmp_path / "env"], check=True)
    python = tmp_path / "env" / "bin" / "python"
    (site,) = (tmp_path / "env").glob("lib/python*/site-packages")
    (site / "dependencies.pth").write_text(sysconfig.get_path("purelib"))
    pip = [sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", "--no-index"]
    pip += ["--ignore-installed", "--no-build-isolation", built[kind]]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    done = subprocess.run(pip, env=clean, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    for command in ([python.with_name("trm"), "--version"], [python, "-m", "transferrisk", "--version"]):
        done = subprocess.run(command, cwd=tmp_path, env=clean, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert "0.2.0" in done.stdout
    where = [python, "-c", "import transferrisk; print(transferrisk.__file__)"]
    done = subprocess.run(where, cwd=tmp_path, env=clean, capture_output=True, text=True, check=True)
    assert done.stdout.startswith(str(site))
