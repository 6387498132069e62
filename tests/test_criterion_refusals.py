"""What a criterion refuses or warns of, in a line that says what to do."""

from __future__ import annotations

import pytest
import torch
from problems import arguments, overlapping_batch, random_batch

from transferrisk import TransferRisk
from transferrisk.errors import ConvergenceWarning, DivergedError, InputError, LabelWarning
from transferrisk.functional import optimal_predictor, transfer_matrix
from transferrisk.solvers import CG, Newton


def test_one_environment_only_is_refused():
    batch = random_batch(11, [6, 9], classes=3, width=4)
    own = batch.index == 0
    with pytest.raises(InputError, match=r"one environment only \(id 5\).*at least two"):
        TransferRisk()(batch.features[own], batch.labels[own], batch.index[own] + 5)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_non_finite_features_name_the_environment(value):
    batch = random_batch(12, [6, 9, 4], classes=3, width=4)
    features = batch.features.clone()
    features[(batch.index == 2).nonzero()[0, 0], 1] = value
    with pytest.raises(InputError, match=r"1 of 19 feature rows hold nan or infinity, in environment 30"):
        TransferRisk()(features, batch.labels, torch.tensor([10, 20, 30])[batch.index])


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"ridge": 0.0}, "ridge=0.0 is not positive"),
        ({"weights": "mean"}, "weights='mean' is not known: use 'eg', 'worst' or 'uniform'"),
        ({"query": "one"}, "query='one' is not known"),
        ({"solver": "adam"}, "solver='adam' is not known: use one of 'newton'"),
        ({"implicit": "approximate"}, "implicit='approximate' is not known: use one of 'exact'"),
        ({"gradient_matching": float("nan")}, "gradient_matching=nan is not a number from 0 up"),
        ({"weights_lr": -1.0}, "weights_lr=-1.0 is not a number from 0 up"),
        ({"bound": -1.0}, "bound=-1.0 is negative"),
        ({"environments": [4]}, "1 environment given: transfer needs at least two"),
        ({"environments": []}, "0 environments given"),
        ({"ridge": "a"}, "ridge='a' is not a number: give a float"),
        ({"ridge": True}, "ridge=True is not a number"),
        ({"gradient_matching": None}, "gradient_matching=None is not a number"),
        ({"bound": "1"}, "bound='1' is not a number"),
        ({"num_classes": "3"}, "num_classes='3' is not a count: give an integer from 1 up"),
        ({"num_classes": 0}, "num_classes=0 is not a count"),
        (
            {"environments": ["a", "b"]},
            r"environments=\['a', 'b'\] are not integers: give their number, or integer ids",
        ),
        ({"environments": "ab"}, "environments='ab' are not integers"),
        ({"environments": [0.5, 1.5]}, r"environments=\[0.5, 1.5\] are not integers"),
        ({"environments": 2.0}, "environments=2.0 are not integers"),
        ({"environments": torch.tensor([0.0, 1.0])}, "are not integers"),
        ({"solver": 3}, "solver=3 is not a solver: use 'newton', .* or one of transferrisk.solvers"),
        ({"solver": CG()}, "is not a solver: use 'newton'"),
        ({"solver": Newton}, r"solver=Newton is a class: give a solver, Newton\(\)"),
        ({"implicit": 3}, "implicit=3 is not a solver: use 'exact', .* or one of transferrisk.solvers"),
        ({"capacity": 8}, "capacity=8 is for captured=True only"),
        ({"captured": True, "num_classes": 2, "environments": 2, "capacity": 0}, "capacity=0 is not a count"),
        ({"captured": True}, "give num_classes and environments"),
        (
            {"captured": True, "num_classes": 2, "environments": 2, "solver": Newton()},
            "needs solvers that read nothing from the device",
        ),
    ],
)
def test_bad_settings_say_what_to_do(options, message):
    with pytest.raises(InputError, match=message):
        TransferRisk(**options)


def test_bad_batches_say_what_to_do():
    batch = random_batch(13, [6, 9], classes=3, width=4)
    features, labels, environments = arguments(batch)
    for bad, message in [
        ((features[:5], labels, environments), r"features \(5, 4\), labels \(15,\)"),
        ((features, labels.double(), environments), "labels of type torch.float64 are not integers"),
        ((features, labels - 1, environments), "label -1 is negative"),
        ((features, labels * 90_000, environments), "label 180000 would make 180001 classes: number them"),
        ((features, labels, environments > 0), "environments of type torch.bool are not integers"),
        ((features.to("meta"), labels, environments), "features are on meta and labels on cpu"),
        ((features.long(), labels, environments), "features of type torch.int64 are not floating point"),
        ((features[:0], labels[:0], environments[:0]), "the batch is empty"),
        ((features.numpy(), labels, environments), "features must be a torch.Tensor, not ndarray: .*torch.from_numpy"),
        ((features, labels.tolist(), environments), "labels must be a torch.Tensor, not list: .*torch.tensor"),
        ((features, labels, None), "environments must be a torch.Tensor, not NoneType"),
        ((features, labels, environments, torch.zeros(3, 4)), r"start of shape \(3, 4\) is no predictor: \(3, 5\) is"),
        ((features, labels, environments, torch.zeros(2, 3, 5)), r"start of shape \(2, 3, 5\) is no predictor"),
        ((features, labels, environments, "zero"), "start must be a torch.Tensor, not str"),
    ]:
        criterion = TransferRisk()
        with pytest.raises(InputError, match=message):
            criterion(*bad)
        assert criterion.num_environments == 0  # a refused first batch leaves no trace
    criterion = TransferRisk(num_classes=2)
    with pytest.raises(InputError, match="label 2 is not below num_classes=2"):
        criterion(features, labels, environments)
    criterion = TransferRisk()
    criterion(features, labels, environments)
    with pytest.raises(InputError, match=r"environment 7 is not among \[0, 1\].*environments=\.\.\."):
        criterion(features, labels, environments * 7)


def test_diverged_neumann_names_the_environments():
    features, labels, environments = arguments(overlapping_batch(17), ids=[4, 6])
    criterion = TransferRisk(implicit="neumann")
    with pytest.raises(DivergedError, match=r"environments \[4, 6\]"):
        criterion(features.requires_grad_(), labels, environments)


def test_unconverged_predictors_warn():
    batch = random_batch(18, [12, 9], classes=3, width=4)
    with pytest.warns(ConvergenceWarning, match="optimal predictor was not solved"):
        TransferRisk(solver=Newton(max_iterations=1))(*arguments(batch))


def test_a_warning_points_at_the_line_that_called_and_asks_for_nothing_that_is_there_already():
    features, labels, environments = arguments(random_batch(18, [12, 9], classes=3, width=4))
    cut_short = Newton(max_iterations=1)
    for call in (
        lambda: TransferRisk(solver=cut_short)(features, labels, environments),
        lambda: TransferRisk(solver=cut_short)(features.float(), labels, environments),
        lambda: transfer_matrix(features, labels, environments, solver=cut_short),
        lambda: optimal_predictor(features, labels, 3, 1e-3, solver=cut_short),
    ):
        with pytest.warns(ConvergenceWarning) as caught:
            call()
        assert caught[0].filename == __file__
        assert caught[0].lineno == call.__code__.co_firstlineno
        assert "use float64" not in str(caught[0].message)


def test_labels_that_start_at_one_are_noticed_when_classes_are_counted():
    features, labels, environments = arguments(random_batch(18, [12, 9], classes=3, width=4))
    criterion = TransferRisk()
    with pytest.warns(LabelWarning, match=r"labels are 1\.\.3 and num_classes was not given.*subtract 1") as caught:
        criterion(features, labels + 1, environments)
    assert caught[0].filename == __file__
    criterion(features, labels + 1, environments)  # once; further warnings would be errors
    TransferRisk(num_classes=4)(features, labels + 1, environments)
    with pytest.warns(LabelWarning):
        transfer_matrix(features, labels + 1, environments)
    transfer_matrix(features, torch.where(labels == 0, 1, 2 * labels), environments)  # 1, 2, 4: a batch lacks some


def test_unconverged_implicit_gradient_warns():
    features, labels, environments = arguments(random_batch(18, [12, 9], classes=3, width=4))
    with pytest.warns(ConvergenceWarning, match="implicit gradient's linear system was not solved"):
        TransferRisk(implicit=CG(max_iterations=1))(features.requires_grad_(), labels, environments)
