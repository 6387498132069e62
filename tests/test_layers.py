"""Layers depend downwards only: by what a file imports, and by the modules that are really loaded."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import transferrisk

ROOT = Path(transferrisk.__file__).parent
GROUND = {"errors", "extras", "files", "registry", "settings"}
CORE = {"solvers", "functional"}
DATA = {"data", "models", "results"}
TRAINED = CORE | DATA | {"criterion", "algorithms"}
BELOW = {  # what each layer may use, besides the ground
    "solvers": set(),
    "functional": {"solvers"},
    "criterion": CORE,
    "results": set(),
    "reports": {"results"},
    "data": set(),
    "models": {"data"},
    "auditing": CORE | {"data", "reports", "results"},
    "algorithms": CORE | {"criterion", "models", "data"},
    "training": TRAINED,
    "sklearn": TRAINED | {"training"},
    "fitting": TRAINED | {"training", "sklearn", "auditing", "reports"},
    "experiments": TRAINED | {"training", "sklearn", "fitting", "auditing", "reports"},
    "paper": TRAINED | {"training", "experiments", "reports"},
    "cli": TRAINED | {"training", "sklearn", "fitting", "auditing", "experiments", "reports"},
    "__main__": {"cli"},
}
HEAVY = {"pandas", "matplotlib", "lightning", "lightning_fabric", "sklearn", "rich", "typer", "timm", "torchvision"}
FILES = sorted(path for path in ROOT.rglob("*.py") if path != ROOT / "__init__.py")


def layer_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[0]


def imported(path: Path) -> set[str]:
    """The layers that a file imports from, wherever in the file."""
    package = ["transferrisk", *path.relative_to(ROOT).with_suffix("").parts]
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level] if node.level else []
            module = [*base, *(node.module.split(".") if node.module else [])]
            names = [[*module, alias.name] for alias in node.names] if module == ["transferrisk"] else [module]
            found |= {name[1] for name in names if name[0] == "transferrisk" and len(name) > 1}
        elif isinstance(node, ast.Import):
            found |= {a.name.split(".")[1] for a in node.names if a.name.startswith("transferrisk.")}
    return {name for name in found if not name.startswith("__")}


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_downwards(path):
    layer = layer_of(path)
    if layer in GROUND:
        assert imported(path) <= GROUND
    else:
        assert imported(path) <= BELOW[layer] | GROUND | {layer}


def test_the_check_would_notice():
    assert "functional" in imported(ROOT / "criterion" / "__init__.py")
    assert "training" not in BELOW["auditing"] | BELOW["reports"]


@pytest.mark.parametrize("layer", sorted(set(BELOW) - {"__main__"}))
def test_what_is_really_loaded(layer):
    """Importing every module of a layer loads nothing that stands above it. The kernels need Triton, and stay out."""
    own = [path.relative_to(ROOT).with_suffix("").parts for path in FILES if layer_of(path) == layer]
    names = [".".join(("transferrisk", *parts)).removesuffix(".__init__") for parts in own]
    names = [name for name in names if not name.endswith((".__main__", ".kernels"))]
    program = (
        "import importlib, sys\n"
        f"for name in {names}:\n"
        "    importlib.import_module(name)\n"
        "print(*sorted({name.split('.')[1] for name in sys.modules if name.startswith('transferrisk.')}))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert layer in done.stdout.split()
    assert set(done.stdout.split()) <= BELOW[layer] | GROUND | {layer}


def test_import_needs_no_extra_and_pulls_in_nothing_heavy():
    program = (
        "import sys, transferrisk, transferrisk.functional, transferrisk.algorithms\n"
        f"print(sorted({HEAVY} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
