"""What every experiment of the theory promises: flat rows, the same again, settings that pass through JSON."""

from __future__ import annotations

import json
from dataclasses import asdict, fields

import pytest

from transferrisk.errors import InputError
from transferrisk.experiments.theory import convergence, implicit_gradient, theorem_1, toy_2d

SMALL = {
    toy_2d: {"offsets": [0.0, 0.5], "spreads": [0.0], "angles": 5, "steps": 3, "node_step": 0.5},
    theorem_1: {"dimensions": [8, 16], "samples": 200},
    implicit_gradient: {"batch_sizes": [16], "ridges": [0.1], "batches": 3, "checked": 1, "pool": 500},
    convergence: {"steps": [10, 20], "factors": [1.0], "repeats": 2},
}
modules = pytest.mark.parametrize("module", SMALL, ids=lambda m: m.__name__.rpartition(".")[2])


@modules
def test_rows_are_flat_and_the_same_again(module):
    settings = module.Settings(**SMALL[module])
    steps = []
    found = module.rows(settings, lambda *step: steps.append(step))
    assert {type(value) for row in found for value in row.values()} <= {str, int, float, bool, type(None)}
    assert all(isinstance(row["what"], str) for row in found)
    assert len({tuple(sorted(row)) for row in found}) == len(
        {row["what"] for row in found}
    )  # one kind, one set of keys
    json.dumps(found, allow_nan=False)
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert steps[-1][0] == steps[-1][1]
    again = module.Settings(**json.loads(json.dumps(asdict(settings))))
    assert again == settings
    assert module.rows(again) == found


@modules
def test_the_defaults_are_settings(module):
    settings = module.Settings()
    assert settings.seed == 0
    assert module.Settings(**{f.name: getattr(settings, f.name) for f in fields(settings)}) == settings


@pytest.mark.parametrize(
    ("module", "wrong", "message"),
    [
        (toy_2d, {"seed": -1}, "seed=-1 is no seed"),
        (toy_2d, {"deviations": [1.0, 1.0]}, r"sum to 2: take their mean off them"),
        (toy_2d, {"offsets": [float("nan")]}, "offsets=nan is not finite"),
        (toy_2d, {"offsets": []}, r"offsets=\[\] is no list of at least 1"),
        (theorem_1, {"dimensions": [2]}, "dimensions=2 is too few: give at least 3"),
        (theorem_1, {"causal": 0.5}, "causal=0.5 is outside the theorem's assumption"),
        (theorem_1, {"means": [[2.5, 0], [0, 2.5]]}, r"break the theorem's assumption mu_1 . mu_2 <= "),
        (theorem_1, {"means": [[2.4, 0], [-0.42, 0]]}, r"\|mu_1 - mu_2\| >= 2 sqrt\(2 d\)"),
        (theorem_1, {"means": [[2.5, 0, 1], [-0.4, 2.5, 1]]}, "are not in a plane"),
        (implicit_gradient, {"features": 15}, "not fewer than the 15 inputs"),
        (implicit_gradient, {"ridges": [0]}, "ridges=0 is not a positive number"),
        (implicit_gradient, {"batches": 1.5}, "batches=1.5 is not a count"),
        (convergence, {"queries": ["some"]}, "queries='some' is not known: choose from 'all', 'random'"),
        (convergence, {"batch_size": 101}, "batch_size=101 is more than the 100 samples"),
        (convergence, {"environments": 2}, "environments=2 is too few: give at least 3"),
    ],
)
def test_bad_settings(module, wrong, message):
    with pytest.raises(InputError, match=message):
        module.Settings(**wrong)
