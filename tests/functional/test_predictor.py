"""The optimal predictor, against scikit-learn's and against itself by other routes."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from problems import padded_loss, random_predictors, relative
from sklearn.linear_model import LogisticRegression

from transferrisk.errors import InputError
from transferrisk.functional import SoftmaxLoss, fit_rows, implicit_vjp, optimal_predictor, solve_predictor
from transferrisk.functional.linear_loss import with_bias
from transferrisk.solvers import CG, LBFGS, Cholesky, GradientDescent, Newton, Woodbury


def problem(seed, n, d, classes, batch=None):
    generator = torch.Generator().manual_seed(seed)
    shape = (n,) if batch is None else (batch, n)
    labels = torch.randint(classes, shape, generator=generator)
    centres = torch.randn(classes, d, generator=generator, dtype=torch.float64)
    return torch.randn(*shape, d, generator=generator, dtype=torch.float64) + centres[labels], labels


def loss_of(features, labels, classes, ridge):
    weights = torch.full((1, len(labels)), 1 / len(labels), dtype=features.dtype)
    return SoftmaxLoss(with_bias(features)[None], labels[None], weights, classes, ridge)


def value(predictor, *problem):
    return float(loss_of(*problem).evaluate(predictor[None])[0])


@pytest.mark.parametrize("ridge", [1e-1, 1e-3, 1e-4])
@pytest.mark.parametrize(("n", "d", "classes"), [(200, 5, 3), (60, 90, 4), (400, 20, 12)])
def test_reaches_scikit_learns_optimum(n, d, classes, ridge):
    features, labels = problem(n + d, n, d, classes)
    predictor = optimal_predictor(features, labels, classes, ridge)
    # scikit-learn minimises the sum of losses + |W|^2 / (2 C).
    reference = LogisticRegression(
        C=1 / (n * ridge), fit_intercept=False, tol=1e-12, max_iter=100_000, solver="newton-cg"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # its line search complains at the last digits
        reference.fit(with_bias(features).numpy(), labels.numpy())
    W = torch.tensor(reference.coef_)
    ours, theirs = value(predictor, features, labels, classes, ridge), value(W, features, labels, classes, ridge)
    assert abs(ours - theirs) < 1e-8
    assert ours <= theirs + 1e-12


def test_two_classes_are_sigmoid_regression_at_half_the_ridge():
    features, labels = problem(3, 120, 6, 2)
    predictor = optimal_predictor(features, labels, 2, 1e-2)
    torch.testing.assert_close(predictor[0], -predictor[1])
    reference = LogisticRegression(C=2 / (120 * 1e-2), fit_intercept=False, tol=1e-12, max_iter=100_000)
    reference.fit(with_bias(features).numpy(), labels.numpy())
    torch.testing.assert_close(2 * predictor[1], torch.tensor(reference.coef_[0]), rtol=1e-5, atol=1e-6)


@given(st.integers(0, 10**6), st.integers(1, 40), st.integers(1, 40), st.integers(2, 8), st.sampled_from([1e-1, 1e-3]))
def test_gradient_vanishes_and_both_spaces_agree(seed, n, d, classes, ridge):
    features, labels = problem(seed, n, d, classes)
    by_space = [solve_predictor(features, labels, classes, ridge, space=s) for s in ("predictor", "sample")]
    loss = loss_of(features, labels, classes, ridge)
    for solution in by_space:
        assert solution.converged.all()
        assert float(loss.linearise(solution.value[None]).gradient.norm()) < 1e-10
    torch.testing.assert_close(by_space[0].value, by_space[1].value, rtol=1e-8, atol=1e-8)


def test_unequal_environments_in_one_batch_equal_one_at_a_time():
    features, labels = problem(0, 30, 12, 4, batch=3)
    sizes = [30, 7, 18]
    keep = torch.arange(30) < torch.tensor(sizes).unsqueeze(-1)
    features[~keep] = 1e9  # padding may hold anything
    together = solve_predictor(features, labels, 4, 1e-3, sample_weight=keep)
    assert together.converged.all()
    for b, n in enumerate(sizes):
        alone = optimal_predictor(features[b, :n], labels[b, :n], 4, 1e-3)
        torch.testing.assert_close(together.value[b], alone, rtol=1e-8, atol=1e-9)


@pytest.mark.parametrize("scale", [1e-3, 1.0, 30.0])
def test_float32_agrees_with_float64(scale):
    features, labels = problem(5, 128, 64, 10)
    exact = optimal_predictor(scale * features, labels, 10, 1e-3)
    single = optimal_predictor((scale * features).float(), labels, 10, 1e-3)
    assert single.dtype == torch.float32
    assert relative(single, exact) < 1e-3


def test_captured_newton_reaches_the_same_answer():
    features, labels = problem(6, 64, 80, 5)
    fixed = solve_predictor(features, labels, 5, 1e-2, solver=Newton.captured(iterations=15, products=60))
    assert fixed.iterations == 15
    torch.testing.assert_close(fixed.value, optimal_predictor(features, labels, 5, 1e-2), rtol=1e-8, atol=1e-9)


def test_a_start_changes_nothing_but_the_number_of_iterations():
    features, labels = problem(7, 100, 10, 3)
    cold = solve_predictor(features, labels, 3, 1e-3)
    warm = solve_predictor(features, labels, 3, 1e-3, start=cold.value + 1e-6)
    assert warm.iterations < cold.iterations
    torch.testing.assert_close(warm.value, cold.value, rtol=1e-8, atol=1e-10)


def test_converges_from_far_away():
    features, labels = problem(8, 50, 10, 3)
    far = solve_predictor(features, labels, 3, 1e-3, start=100 * torch.randn(3, 11, dtype=torch.float64))
    assert far.converged.all()


@pytest.mark.parametrize("seed", [273, 303, 329, 333])
def test_converges_where_the_loss_falls_for_long_and_its_gradient_does_not(seed):
    generator = torch.Generator().manual_seed(seed)
    features = torch.randn(20, 2, generator=generator, dtype=torch.float64)
    labels = torch.randint(50, (20,), generator=generator)
    assert solve_predictor(features, labels, 50, 1e-8).converged


@pytest.mark.parametrize("solver", [GradientDescent(), Newton.captured()], ids=["descent", "captured"])
def test_on_a_cpu_input_is_checked_with_any_solver(solver):
    features, labels = torch.randn(6, 2), torch.arange(6) % 2
    for bad, message in (
        ((features, labels + 8, 2), "labels must .* got 9"),
        ((features, labels - 1, 2), "labels must .* got -1"),
        ((features * torch.nan, labels, 2), "features must be finite"),
    ):
        with pytest.raises(InputError, match=message):
            optimal_predictor(*bad, 1e-2, solver=solver)
    with pytest.raises(InputError, match="sample_weight must"):
        optimal_predictor(features, labels, 2, 1e-2, sample_weight=-torch.ones(6), solver=solver)


def test_the_papers_thirty_steps_lower_the_loss_and_say_that_they_did_not_arrive():
    features, labels = problem(9, 50, 10, 3)
    paper = solve_predictor(features, labels, 3, 1e-3, solver=GradientDescent(steps=30, rate=0.1))
    assert not paper.converged
    best = value(optimal_predictor(features, labels, 3, 1e-3), features, labels, 3, 1e-3)
    assert best < value(paper.value, features, labels, 3, 1e-3) < np.log(3)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"features": torch.full((5, 2), torch.nan)}, "features must be finite.* 5 of 5 rows"),
        ({"features": torch.zeros(0, 2), "labels": torch.zeros(0, dtype=torch.long)}, r"features .* got \(0, 2\)"),
        ({"features": torch.zeros(4, 2)}, r"features and labels .* got \(4, 2\) and \(5,\)"),
        ({"labels": torch.full((5,), 2)}, "labels must be below num_classes=2.* got 2"),
        ({"sample_weight": torch.zeros(5)}, "sample_weight must .* got 0 everywhere"),
        ({"sample_weight": torch.tensor([1.0, 1, 1, 1, -1])}, "sample_weight must .* negative"),
        ({"start": torch.zeros(4, 2, 3)}, r"start must .* got \(4, 2, 3\)"),
        ({"start": [[0.0] * 3] * 2}, "start must be a torch.Tensor, got list: .*torch.tensor"),
        ({"features": np.zeros((5, 2))}, "features must be a torch.Tensor, got ndarray: .*torch.from_numpy"),
        ({"labels": [0, 1, 0, 1, 0]}, "labels must be a torch.Tensor, got list: .*torch.tensor"),
        ({"sample_weight": torch.ones(4)}, r"sample_weight must .*\(5,\).* got \(4,\)"),
        ({"sample_weight": torch.ones(5, 1)}, r"sample_weight must .* got \(5, 1\)"),
        ({"sample_weight": torch.tensor([1.0, 1, 1, 1, torch.nan])}, "sample_weight must .* nan or infinity"),
        ({"sample_weight": torch.tensor([1.0, 1, 1, 1, torch.inf])}, "sample_weight must .* nan or infinity"),
        ({"sample_weight": np.ones(5)}, "sample_weight must be a torch.Tensor, got ndarray"),
        ({"num_classes": "2"}, "num_classes must .* got '2'"),
        ({"num_classes": None}, "num_classes must .* got None"),
        ({"ridge": "a"}, "ridge must .* got 'a'"),
        ({"ridge": 0}, "ridge must .* got 0"),
        ({"ridge": -1e-3}, "ridge must .* got -0.001"),
        ({"ridge": float("nan")}, "ridge must .* got nan"),
        ({"ridge": float("inf")}, "ridge must .* got inf"),
        ({"space": "dual"}, "space must .* got 'dual'"),
        ({"solver": "newton"}, "solver must .*transferrisk.solvers, got 'newton'"),
        ({"solver": Newton}, r"solver must .* class Newton: write Newton\(\)"),
        ({"start": torch.zeros(2, 2)}, r"start must .*\(2, 3\).* got \(2, 2\)"),
    ],
)
def test_bad_input_says_what_to_do(change, message):
    arguments = {"features": torch.zeros(5, 2), "labels": torch.tensor([0, 1, 0, 1, 0]), "num_classes": 2, "ridge": 0.1}
    for function in (solve_predictor, optimal_predictor):
        if function is solve_predictor or "start" not in change:
            with pytest.raises(InputError, match=message):
                function(**(arguments | change))


@given(st.integers(0, 10**6), st.integers(2, 10), st.integers(1, 10), st.integers(2, 5))
def test_all_inverse_hessian_routes_agree_with_the_dense_solve(seed, n, width, classes):
    loss = padded_loss(seed, 2, n, classes, width, ridge=1e-2)
    v = random_predictors(loss, seed)
    for space in ("predictor", "sample"):
        fit = fit_rows(loss.rows, loss.labels, loss.weights, classes, 1e-2, space=space)
        hessian = loss.hessian(fit.solution.value)
        dense = torch.linalg.solve(hessian.dense(), v.flatten(1)).reshape(v.shape)
        for solver in (CG(), Cholesky(), Woodbury()):
            _, solution = implicit_vjp(fit, v, solver)
            assert relative(solution.value, dense) < 1e-8
            error = (hessian.product(solution.value) - v).flatten(1).norm(dim=1)
            torch.testing.assert_close(solution.residual, error, atol=1e-8, rtol=0)


@pytest.mark.parametrize("space", ["predictor", "sample"])
@pytest.mark.parametrize(("n", "width"), [(7, 15), (15, 4)], ids=["n<d", "n>d"])
def test_the_implicit_vjp_is_the_derivative_of_the_predictor(n, width, space):
    loss = padded_loss(3, 2, n, classes=3, width=width, ridge=1e-2)
    v = random_predictors(loss)

    def predictors(rows):
        return fit_rows(rows, loss.labels, loss.weights, 3, 1e-2, space=space)

    gradient, _ = implicit_vjp(predictors(loss.rows), v)
    direction = random_predictors(loss)[:, :1] * (loss.weights > 0).unsqueeze(-1)
    ahead, back = (predictors(loss.rows + t * direction).solution.value for t in (1e-5, -1e-5))
    expected = (v * (ahead - back)).sum() / 2e-5
    assert float((gradient * direction).sum()) == pytest.approx(float(expected), rel=1e-7)


def test_rows_are_factored_once_for_the_predictors_and_their_derivative(monkeypatch):
    loss, factored = padded_loss(4, 2, 6, classes=3, width=20), []
    factor = torch.linalg.qr
    monkeypatch.setattr(torch.linalg, "qr", lambda rows: factored.append(rows.shape) or factor(rows))
    fit = fit_rows(loss.rows, loss.labels, loss.weights, 3, 1e-2)
    implicit_vjp(fit, random_predictors(loss))
    assert factored == [(2, 21, 6)]


@given(
    st.integers(0, 10**6),
    st.integers(2, 130),
    st.integers(1, 140),
    st.integers(2, 12),
    st.floats(-2, 1.7),
    st.floats(-3, 0),
    st.booleans(),
    st.floats(-2, 1.5),
)
def test_float32_converges_on_nearly_equal_rows_large_offsets_and_bad_starts(
    seed, n, d, classes, scale, noise, rectified, start
):
    """Features as a network has them: classes far apart or on top of each other, with labels that conflict."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(classes, (n,), generator=generator)
    centres = torch.randn(classes, d, generator=generator)
    features = 10**noise * torch.randn(n, d, generator=generator) + centres[labels]
    features = 10**scale * (features.relu() + 1 if rectified else features)
    labels = torch.where(torch.rand(n, generator=generator) < 0.9, labels, 0)
    W0 = 10**start * torch.randn(classes, d + 1, generator=generator)
    ridge = 1e-3 * max(1.0, 1e-2 * float(features.square().sum(1).mean()))  # within what float32 can resolve
    for space in ("predictor", "sample"):
        solution = solve_predictor(features, labels, classes, ridge, start=W0, space=space)
        assert solution.converged.all()
        assert solution.value.isfinite().all()


@pytest.mark.parametrize(("n", "d"), [(60, 7), (20, 60)])
@pytest.mark.parametrize("ridge", [1e-1, 1e-3])
def test_every_minimiser_finds_the_same_predictor(ridge, n, d):
    features, labels = problem(11, n, d, 3, batch=2)
    exact = solve_predictor(features, labels, 3, ridge).value
    dense = Newton(linear=Cholesky())
    for solver, dtype, tolerance in (
        (LBFGS(), torch.float64, 1e-4),
        (dense, torch.float64, 1e-9),
        (dense, torch.float32, 1e-3),
    ):
        found = solve_predictor(features.to(dtype), labels, 3, ridge, solver=solver)
        assert found.converged.all()
        torch.testing.assert_close(found.value.double(), exact, rtol=tolerance, atol=tolerance)
