"""What a fit says about its model: whether the data can tell, what it expects, and the table of candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
from rows import ASKED

from transferrisk import audit
from transferrisk.auditing.report import pool, shared_variances
from transferrisk.fitting import Plan, fit
from transferrisk.fitting.report import comparison_table, held_out_table
from transferrisk.fitting.trainings import Stopped
from transferrisk.fitting.verdict import verdict
from transferrisk.reports.elements import NOTHING

CANDIDATES = Plan(("majority", "linear"), device="cpu", workers=1)


def fitted(path, strengths, rows=60, plan=CANDIDATES):
    """A fit to one environment for each strength of the relation between x and the outcome."""
    random = np.random.default_rng(0)
    site, x = np.repeat(np.arange(len(strengths)), rows), random.normal(size=len(strengths) * rows)
    outcome = np.array(strengths)[site] * x + random.logistic(size=len(x)) > 0
    names = [f"hospital-{place}" for place in site]
    pd.DataFrame({"x": x, "outcome": outcome, "site": names}).to_csv(path / "t.csv", index=False)
    return fit(path / "t.csv", ASKED, plan)


def test_three_environments_that_differ_cannot_tell(tmp_path):
    lines = verdict(fitted(tmp_path, (1, 3, 9)))
    assert "Unclear." in lines[0]
    assert "3 environments" in lines[0]
    assert "interval" not in lines[1]


def test_many_alike_can_tell_and_a_narrow_terminal_folds_them(tmp_path):
    found = fitted(tmp_path, (3,) * 8)
    lines = verdict(found)
    assert "Yes." in lines[0]
    seen = found.decision.seen.values()
    rows = [one.rows for one in seen]
    expected = pool([one.log_loss for one in seen], shared_variances(found.loss_variances, rows))
    assert f"{expected.mean:.3f} ({expected.low:.3f} to {expected.high:.3f})" in lines[1]
    wide, narrow = comparison_table(found, 200), comparison_table(found, 80)
    assert [*found.comparison.accuracy.index] == list(wide.columns[1:9])
    assert [len(table.columns) for table in (wide, narrow)] == [13, 6]
    (place,) = narrow.emphasised
    assert narrow.cells()[0][place][0].bold  # also where rows cannot be bold
    assert narrow.note.startswith("Bold: ")
    own = found.comparison.accuracy[found.choice.algorithm]
    assert narrow.rows[place][3] == own.idxmin()
    assert narrow.rows[place][4].value == pytest.approx(found.comparison.loss[found.choice.algorithm].mean())


def test_a_constant_is_not_calibrated(tmp_path):
    """The shares of the classes differ between environments, so that another temperature would have a lower loss."""
    random = np.random.default_rng(0)
    site = np.repeat(np.arange(6), 60)
    outcome = random.random(360) < np.where(site < 3, 0.7, 0.5)
    pd.DataFrame({"x": random.normal(size=360), "outcome": outcome, "site": site}).to_csv(tmp_path / "t.csv")
    found = fit(tmp_path / "t.csv", ASKED, Plan(("majority",), device="cpu", workers=1))
    assert {found.decision.temperature, *found.decision.temperatures.values()} == {1.0}
    assert held_out_table(found).note == ""


@pytest.mark.parametrize("strengths", [(3,) * 8, (1, 3, 9), (0, 0, 0, 0), (3, 3, -3)])
def test_audit_and_fit_give_the_same_answer_for_a_table(tmp_path, strengths):
    fit_verdict = verdict(fitted(tmp_path, strengths, rows=150))
    table = pd.read_csv(tmp_path / "t.csv")
    audit_verdict = audit(table[["x"]].to_numpy(), table["outcome"], table["site"], bootstrap=50).verdict
    answers = [lines[0].partition("? ")[2].partition(".")[0] for lines in (fit_verdict, audit_verdict)]
    assert answers[0] == answers[1]
    assert answers[0] in ("Yes", "With care", "Unclear", "No")
    assert ("interval" in fit_verdict[1]) == ("interval" in audit_verdict[1])


def test_candidates_that_were_stopped_are_marked_in_the_table(tmp_path):
    found = fitted(tmp_path, (3,) * 4)
    comparison = replace(found.comparison, stopped={"trm": Stopped({"hospital-0": 0.7, "hospital-1": 0.6}, 0.1, 0.02)})
    for width in (200, 60):
        table = comparison_table(replace(found, comparison=comparison), width)
        cells = [cell.text for cell in table.cells()[0][-1]]
        assert cells[0] == "TRM network†"
        assert "" not in cells
        assert ("70.0" in cells) == (width == 200)
        assert cells.count(NOTHING) == (6 if width == 200 else 5)
        assert "†" in table.note
        assert "after 2: TRM network" in table.note
