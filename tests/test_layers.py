"""The layers import only downwards, and importing the package stays cheap."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import transferrisk

ROOT = Path(transferrisk.__file__).parent
# Each layer may import itself, what stands before it, and the shared ground.
ORDER = [
    "solvers",
    "functional",
    "auditing",
    "criterion",
    "algorithms",
    "training",
    "sklearn",
    "experiments",
    "fitting",
    "cli",
]
GROUND = {"errors", "extras", "files", "plugins", "registry", "results", "settings", "__init__"}
ASIDE = {
    "data": {"errors", "extras", "files", "plugins", "registry", "settings"},
    "models": {"errors", "files", "plugins", "registry", "settings"},
    "reports": {"errors", "files", "results", "settings"},
    "results": {"errors", "files", "settings"},
    "paper": {
        "algorithms",
        "data",
        "errors",
        "experiments",
        "files",
        "functional",
        "results",
        "settings",
        "solvers",
        "training",
    },
    "errors": set(),
    "extras": {"errors"},
    "files": {"errors"},
    "plugins": {"errors"},
    "registry": {"errors", "plugins"},
    "settings": {"errors"},
    "__main__": {"cli"},
}
MAY_USE_ASIDE = {
    "auditing": {"data", "reports"},
    "algorithms": {"models"},
    "training": {"data", "models"},
    "sklearn": {"data", "models"},
    "experiments": {"data", "models"},
    "fitting": {"data", "models", "reports"},
}


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """Modules of the package that a file imports, as dotted paths below it, wherever in the file."""
    package = ["transferrisk", *path.relative_to(ROOT).with_suffix("").parts]
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [[*module, alias.name] for alias in node.names] if module == ["transferrisk"] else [module]
            found |= {".".join(name[1:]) for name in names if name[0] == "transferrisk"}
        elif isinstance(node, ast.Import):
            found |= {a.name.partition(".")[2] for a in node.names if a.name.split(".")[0] == "transferrisk"}
    return {name for name in found if name}


def allowed(layer: str, module: str) -> bool:
    target = module.split(".")[0]
    if target == layer or target in GROUND or target.startswith("__"):
        return True
    if layer in ASIDE:
        return any(module == name or module.startswith(name + ".") for name in ASIDE[layer])
    if layer == "cli":
        return target != "paper"  # which is found by its entry points
    below = ORDER[: ORDER.index(layer)] if layer in ORDER else []
    return target in below or target in MAY_USE_ASIDE.get(layer, set())


FILES = sorted(p for p in ROOT.rglob("*.py") if p != ROOT / "__init__.py")


@pytest.mark.parametrize("path", FILES, ids=lambda p: str(p.relative_to(ROOT)))
def test_imports_point_downwards(path):
    layer = layer_of(path)
    assert layer in {*ORDER, *ASIDE}, f"{layer} is in no layer: add it to the order"
    upward = sorted(module for module in imported(path) if not allowed(layer, module))
    assert not upward, f"{path.relative_to(ROOT)} imports {upward}"


def test_the_check_would_notice():
    assert not allowed("solvers", "functional.transfer")
    assert not allowed("functional", "algorithms")
    assert not allowed("data", "training.loop")
    assert not allowed("reports", "training.loop")
    assert not allowed("cli", "paper.tasks")
    assert not allowed("experiments", "paper.tasks")
    assert allowed("algorithms", "functional")
    assert "functional.transfer" in imported(ROOT / "criterion.py")


HEAVY = {"pandas", "matplotlib", "lightning", "lightning_fabric", "sklearn", "rich", "typer", "timm", "torchvision"}


def test_import_needs_no_extra_and_pulls_in_nothing_heavy():
    code = (
        "import sys, transferrisk, transferrisk.functional, transferrisk.algorithms\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
