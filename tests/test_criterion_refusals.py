"""Refusals and warnings of a criterion, in a line that says what to do."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from problems import arguments, overlapping_batch, random_batch

from transferrisk import TransferRisk
from transferrisk.errors import ConvergenceWarning, DivergedError, InputError, LabelWarning
from transferrisk.functional import optimal_predictor, transfer_matrix
from transferrisk.solvers import CG, Newton


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": 0.0}, "ridge must .* got 0.0"),
        ({"weights": "mean"}, "weights must .*'eg', 'worst', 'uniform', got 'mean'"),
        ({"query": "one"}, "query must .* got 'one'"),
        ({"solver": "adam"}, "solver must .* got 'adam'.* newton"),
        ({"implicit": "approximate"}, "implicit must .* got 'approximate'.* exact"),
        ({"gradient_matching": float("nan")}, "gradient_matching must .* got nan"),
        ({"weights_lr": -1.0}, "weights_lr must .* got -1.0"),
        ({"bound": -1.0}, "bound must .* got -1.0"),
        ({"environments": [4]}, r"environments must .* got \[4\]"),
        ({"environments": []}, r"environments must .* got \[\]"),
        ({"ridge": "a"}, "ridge must .* got 'a'"),
        ({"ridge": True}, "ridge must .* got True"),
        ({"gradient_matching": None}, "gradient_matching must .* got None"),
        ({"bound": "1"}, "bound must .* got '1'"),
        ({"num_classes": "3"}, "num_classes must .* got '3'"),
        ({"num_classes": 0}, "num_classes must .* got 0"),
        ({"environments": ["a", "b"]}, r"environments must .* got \['a', 'b'\]"),
        ({"environments": "ab"}, "environments must .* got 'ab'"),
        ({"environments": [0.5, 1.5]}, r"environments must .* got \[0.5, 1.5\]"),
        ({"environments": 2.0}, "environments must .* got 2.0"),
        ({"environments": torch.tensor([0.0, 1.0])}, "environments must .* got tensor"),
        ({"solver": 3}, "solver must .*'newton', .*transferrisk.solvers, got 3"),
        ({"solver": CG()}, r"solver must .*'newton', .* got CG\("),
        ({"solver": Newton}, r"solver must .* class Newton: write Newton\(\)"),
        ({"implicit": None}, "implicit must .*'none'.* got None"),
        ({"fused": "no"}, "fused must .* got 'no'"),
        ({"implicit": 3}, "implicit must .*'exact', .*transferrisk.solvers, got 3"),
        ({"capacity": 8}, "capacity .*captured=True.* got 8"),
        ({"captured": True, "num_classes": 2, "environments": 2, "capacity": 0}, "capacity must .* got 0"),
        ({"captured": True}, "num_classes and environments must be given"),
        ({"captured": True, "num_classes": 2, "environments": 2, "solver": Newton()}, r"solver must .* got Newton\("),
    ],
)
def test_bad_settings_say_what_to_do(options, message):
    with pytest.raises(InputError, match=message):
        TransferRisk(**options)


def test_steps_cannot_be_captured_before_classes_and_environments_are_there():
    for criterion in (TransferRisk(), TransferRisk(num_classes=3), TransferRisk(environments=2)):
        with pytest.raises(InputError, match=r"num_classes and environments must be given"):
            criterion.capture()
        assert not criterion.captured
    criterion = TransferRisk()
    batch = arguments(random_batch(13, [6, 9], classes=3, width=4))
    risk = criterion.eval()(*batch).risk
    criterion.capture()  # a batch has shown them
    torch.testing.assert_close(criterion(*batch).risk, risk)


def test_bad_batches_say_what_to_do():
    batch = random_batch(13, [6, 9], classes=3, width=4)
    features, labels, environments = arguments(batch)
    for bad, message in [
        ((features[:5], labels, environments), r"features, labels .* got \(5, 4\), \(15,\)"),
        ((features, labels.double(), environments), "labels must be integers, got torch.float64"),
        ((features, labels - 1, environments), "labels must .* got -1"),
        ((features, labels * 90_000, environments), "labels must .* got 180000"),
        ((features, labels, environments > 0), "environments must be integers, got torch.bool"),
        ((features.to("meta"), labels, environments), "labels must be on meta.* got cpu"),
        ((features.long(), labels, environments), "features must .* got torch.int64"),
        ((features[:0], labels[:0], environments[:0]), "features must .* empty batch"),
        ((features.numpy(), labels, environments), "features must be a torch.Tensor, got ndarray: .*torch.from_numpy"),
        ((features, labels.tolist(), environments), "labels must be a torch.Tensor, got list: .*torch.tensor"),
        ((features, labels, None), "environments must be a torch.Tensor, got NoneType"),
        ((features, labels, environments * 0 + 5), "environments must .* got id 5 alone"),
        ((features * torch.tensor([1, 1, torch.nan, 1]), labels, environments), "features must be finite.* 15 of 15"),
        ((features.to(torch.float8_e4m3fn), labels, environments), "features must .* got torch.float8"),
        ((features, labels, np.array(["a"] * 15)), "environments must .* got ndarray: number them"),
        (
            (features, labels * 0, environments, None, (environments == 1).double()),
            "environments must .* got id 1 alone",
        ),
        (
            (features[:1].expand(5000, -1), torch.zeros(5000).long(), torch.arange(5000)),
            "environments must .* got 5000",
        ),
        ((features, labels, environments, torch.zeros(3, 4)), r"start must .*\(3, 5\).* got \(3, 4\)"),
        ((features, labels, environments, torch.zeros(2, 3, 5)), r"start must .* got \(2, 3, 5\)"),
        ((features, labels, environments, "zero"), "start must be a torch.Tensor, got str"),
    ]:
        criterion = TransferRisk()
        with pytest.raises(InputError, match=message):
            criterion(*bad)
        assert not len(criterion.environment_ids)  # a refused first batch leaves no trace
        assert criterion.num_classes is None
    features[(environments == 1).nonzero()[0], 1] = torch.inf
    with pytest.raises(InputError, match=r"features must be finite.* 1 of 15 rows, in environment 30"):
        TransferRisk()(features, labels, 29 + environments)
    features = batch.features.nan_to_num(posinf=0)
    criterion = TransferRisk(num_classes=2)
    with pytest.raises(InputError, match=r"labels must be below num_classes=2.* got 2"):
        criterion(features, labels, environments)
    criterion = TransferRisk()
    criterion(features, labels, environments)
    with pytest.raises(InputError, match=r"environments must be among \[0, 1\].* got 7.*environments="):
        criterion(features, labels, environments * 7)


def test_diverged_neumann_names_the_environments():
    features, labels, environments = arguments(overlapping_batch(17), ids=[4, 6])
    criterion = TransferRisk(implicit="neumann")
    with pytest.raises(DivergedError, match=r"environments \[4, 6\]"):
        criterion(features.requires_grad_(), labels, environments)


def test_a_warning_names_what_was_not_solved_and_points_at_the_line_that_called():
    features, labels, environments = arguments(random_batch(18, [12, 9], classes=3, width=4))
    moving, cut_short, predictor = features.clone().requires_grad_(), Newton(max_iterations=1), "optimal predictor"
    for call, name in (
        (lambda: TransferRisk(solver=cut_short)(features, labels, environments), predictor),
        (lambda: TransferRisk(solver=cut_short)(features.float(), labels, environments), predictor),
        (lambda: TransferRisk(implicit=CG(max_iterations=1))(moving, labels, environments), "implicit gradient"),
        (lambda: transfer_matrix(features, labels, environments, solver=cut_short), predictor),
        (lambda: optimal_predictor(features, labels, 3, 1e-3, solver=cut_short), predictor),
    ):
        with pytest.warns(ConvergenceWarning, match=f"{name}.* was not solved .* in float64") as caught:
            call()
        assert caught[0].filename == __file__
        assert caught[0].lineno == call.__code__.co_firstlineno


def test_labels_that_start_at_one_are_noticed_when_classes_are_counted():
    features, labels, environments = arguments(random_batch(18, [12, 9], classes=3, width=4))
    criterion = TransferRisk()
    with pytest.warns(LabelWarning, match=r"labels are 1\.\.3 .*num_classes.*subtract 1") as caught:
        criterion(features, labels + 1, environments)
    assert caught[0].filename == __file__
    criterion(features, labels + 1, environments)  # once; further warnings would be errors
    TransferRisk(num_classes=4)(features, labels + 1, environments)
    with pytest.warns(LabelWarning):
        transfer_matrix(features, labels + 1, environments)
    transfer_matrix(features, torch.where(labels == 0, 1, 2 * labels), environments)  # 1, 2, 4: a batch lacks some
