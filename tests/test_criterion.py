"""TransferRisk in anybody's loop: environments, weights, hard batches, captured steps, what it keeps."""

from __future__ import annotations

import copy
import warnings

import pytest
import torch
from problems import arguments, overlapping_batch, random_batch, relative

from transferrisk import TransferRisk
from transferrisk import criterion as criterion_module
from transferrisk.errors import InputError, StepWarning
from transferrisk.functional import optimal_predictor, transfer_matrix, transfer_risk
from transferrisk.solvers import CG, Newton


@pytest.mark.parametrize("E", [2, 3, 7, 20])
def test_any_number_of_environments(E):
    batch = random_batch(E, [3 + i % 4 for i in range(E)], classes=3, width=4)
    out = TransferRisk()(*arguments(batch))
    assert out.matrix.shape == (E, E)
    expected = transfer_matrix(batch.features, batch.labels, batch.index, 3, 1e-3)
    torch.testing.assert_close(out.matrix, expected)
    torch.testing.assert_close(out.weights.sum(1), torch.ones(E, dtype=torch.float64))
    off = ~torch.eye(E, dtype=torch.bool)
    torch.testing.assert_close(out.risk, out.matrix[off].mean(), rtol=1e-6, atol=0)  # uniform at the first step


def test_ids_need_not_be_0_to_E():
    batch = random_batch(0, [6, 7, 8], classes=3, width=4)
    usual = TransferRisk()(*arguments(batch))
    odd = TransferRisk()(*arguments(batch, ids=[40, -3, 7]))  # sorted order: -3, 7, 40
    order = torch.tensor([1, 2, 0])
    torch.testing.assert_close(odd.matrix, usual.matrix[order][:, order])
    torch.testing.assert_close(odd.risk, usual.risk)


def test_alpha_moves_in_train_mode_only_after_the_risk():
    batch = random_batch(1, [9, 9, 9], classes=3, width=4)
    criterion = TransferRisk(weights_lr=0.5)
    first = criterion(*arguments(batch))
    expected = (first.weights * torch.exp(0.5 * first.matrix)).fill_diagonal_(0)
    expected /= expected.sum(1, keepdim=True)
    torch.testing.assert_close(criterion.alpha, expected.float())
    second = criterion.eval()(*arguments(batch))
    torch.testing.assert_close(second.weights.float(), criterion.alpha)
    torch.testing.assert_close(criterion.alpha, expected.float())
    assert second.risk > first.risk


def test_weights_drift_to_the_worst_case():
    batch = random_batch(2, [9, 9, 9], classes=3, width=4)
    criterion = TransferRisk(weights_lr=50.0)
    for _ in range(20):
        out = criterion(*arguments(batch))
    worst = TransferRisk(weights="worst")(*arguments(batch))
    torch.testing.assert_close(out.risk, worst.risk, rtol=1e-4, atol=0)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_move_in_a_model_of_half_precision_as_in_float32(dtype):
    features, labels, environments = arguments(random_batch(3, [12, 12, 12], classes=2, width=4))
    features = features.float()
    plain, halved = TransferRisk(num_classes=2, environments=3), TransferRisk(num_classes=2, environments=3)
    torch.nn.ModuleDict({"criterion": halved}).to(dtype)
    for _ in range(50):
        plain(features, labels, environments)
        halved(features, labels, environments)
    torch.testing.assert_close(halved.alpha, plain.alpha)


def test_rows_of_weight_zero_may_hold_anything():
    features, labels, environments = arguments(random_batch(4, [12, 12, 12], classes=2, width=4))
    weights = torch.ones(36, dtype=features.dtype)
    weights[::5] = 0
    spoilt = features.clone()
    spoilt[::5] = torch.nan
    clean, found = TransferRisk(), TransferRisk()
    expected = clean(features, labels, environments, sample_weights=weights)
    torch.testing.assert_close(found(spoilt, labels, environments, sample_weights=weights).risk, expected.risk)


def test_random_query_is_algorithm_one():
    batch = random_batch(3, [9, 9, 9], classes=3, width=4)
    criterion = TransferRisk(query="random", weights="worst")
    every = TransferRisk(weights="worst")(*arguments(batch))
    torch.manual_seed(0)
    seen = set()
    for _ in range(30):
        out = criterion(*arguments(batch))
        (row,) = (~out.matrix.isnan().any(1)).nonzero().flatten().tolist()
        seen.add(row)
        torch.testing.assert_close(out.matrix[row], every.matrix[row])
        torch.testing.assert_close(out.risk, (every.weights * every.matrix)[row].sum())
    assert seen == {0, 1, 2}
    torch.testing.assert_close(criterion.eval()(*arguments(batch)).risk, every.risk)


def test_weights_that_nearly_vanished_come_back():
    batch = random_batch(6, [9, 9, 9], classes=3, width=4)
    criterion = TransferRisk(weights_lr=500.0)
    for _ in range(10):
        criterion(*arguments(batch))
    assert float(criterion.alpha[0].max()) == pytest.approx(1)
    heaviest = int(criterion.alpha[0].argmax())
    left = batch.index != heaviest
    criterion.eval()
    out = criterion(batch.features[left], batch.labels[left], batch.index[left])
    assert out.weights[0].sum() == pytest.approx(1)  # the others share what is left of the mass


@pytest.mark.parametrize("kind", ["low rank", "duplicates", "near-duplicates"])
@pytest.mark.parametrize("scale", [1.0, 10.0, 100.0])
def test_float32_on_hard_batches_is_right_or_solved_in_float64(kind, scale):
    """Few directions, or equal rows with unequal labels, far beyond what float32 resolves at this ridge."""
    generator = torch.Generator().manual_seed(0)
    n, d = 96, 200
    if kind == "low rank":
        features = torch.randn(n, 3, generator=generator) @ torch.randn(3, d, generator=generator)
    else:
        features = torch.randn(12, d, generator=generator).repeat(8, 1)
    if kind == "near-duplicates":
        features = features + 1e-4 * torch.randn(n, d, generator=generator)
    labels, index = torch.randint(5, (n,), generator=generator), torch.arange(n) % 3
    gradients = []
    for dtype in (torch.float32, torch.float64):
        moving = (scale * features).to(dtype).requires_grad_()
        out = TransferRisk()(moving, labels, index)
        out.risk.backward()
        assert out.risk.dtype == moving.grad.dtype == dtype
        assert out.matrix.dtype == out.weights.dtype == out.solution.value.dtype == out.inverse.value.dtype == dtype
        gradients.append(moving.grad)
    assert relative(gradients[0], gradients[1]) < 1e-3


def test_absent_environment_is_left_out_and_keeps_its_weight():
    batch = random_batch(6, [9, 9, 9], classes=3, width=4)
    criterion = TransferRisk(environments=[0, 1, 2, 3], weights_lr=1.0)
    before = criterion.alpha.clone()
    features = batch.features.clone().requires_grad_()
    out = criterion(features, batch.labels, batch.index)
    assert out.matrix[3].isnan().all()
    assert out.matrix[:, 3].isnan().all()
    reference = TransferRisk()(*arguments(batch))
    torch.testing.assert_close(out.risk, reference.risk)
    out.risk.backward()
    assert features.grad.isfinite().all()
    assert torch.equal(criterion.alpha[3], before[3])
    assert torch.equal(criterion.alpha[:, 3], before[:, 3])
    torch.testing.assert_close(criterion.alpha.sum(1), torch.ones(4))


@pytest.mark.parametrize(
    ("sizes", "kind"),
    [([1, 9, 5], "one sample"), ([6, 9], "one class"), ([6, 9, 7], "a class in one place"), ([6, 9], "constant")],
)
def test_odd_batches_have_a_finite_risk_and_its_exact_derivative(sizes, kind):
    features, labels, environments = arguments(random_batch(7, sizes, classes=3, width=4))
    if kind == "one class":
        labels = torch.where(environments == 0, 1, labels)
    elif kind == "a class in one place":
        labels = torch.where((environments != 0) & (labels == 2), 0, labels)
    elif kind == "constant":
        features = torch.ones_like(features)
    criterion = TransferRisk().eval()
    moving = features.clone().requires_grad_()
    out = criterion(moving, labels, environments)
    out.risk.backward()
    direction = torch.randn(features.shape, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    change = [criterion(features + t * direction, labels, environments).risk for t in (1e-5, -1e-5)]
    numeric = float(change[0] - change[1]) / 2e-5
    assert float((moving.grad * direction).sum()) == pytest.approx(numeric, rel=1e-6, abs=1e-9)
    if kind == "a class in one place":
        assert out.matrix[1, 0] > out.matrix[1, 2]  # where the class was never seen it costs most


def odd_batch(kind):
    """Features, labels, environments and sample weights."""
    sizes = [1, 14, 9] if kind == "one row" else [40, 35] if kind == "15 classes" else [12, 14, 9]
    classes = {"15 classes": 15, "1 feature, 2 classes": 2}.get(kind, 3)
    batch = random_batch(27, sizes, classes, width=1 if kind == "1 feature, 2 classes" else 4)
    features, labels, environments = arguments(batch)
    weights = torch.rand(len(labels), generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    if kind == "a class is absent":
        labels = torch.where((environments == 1) & (labels == 2), 0, labels)
    elif kind == "collinear":
        features = torch.cat([features, features @ torch.ones(4, 30, dtype=torch.float64), features[:, :1]], 1)
    elif kind == "far from zero":
        features = features + 100
    elif kind == "large":
        features = 1e3 * features
    elif kind == "small":
        features = 1e-3 * features
    elif kind == "uneven weights":
        weights = torch.where(weights > 0.5, 1e5, 1e-5).to(torch.float64)
    elif kind == "zero weights":
        weights = torch.where(weights > 0.5, weights, 0)
    return features, labels, environments, weights


@pytest.mark.parametrize("weighted", [False, True], ids=["all the same", "weighted"])
@pytest.mark.parametrize("weights", ["eg", "worst", "uniform"])
@pytest.mark.parametrize(
    "kind",
    ["1 feature, 2 classes", "one row", "15 classes", "a class is absent", "collinear", "far from zero", "large",
     "small", "uneven weights", "zero weights"],
)  # fmt: skip
def test_gradient_of_odd_batches_is_that_of_finite_differences(kind, weights, weighted):
    features, labels, environments, each = odd_batch(kind)
    each = each if weighted else None
    criterion = TransferRisk(weights=weights).eval()
    moving = features.clone().requires_grad_()
    criterion(moving, labels, environments, sample_weights=each).risk.backward()
    noise = torch.randn(features.shape, generator=torch.Generator().manual_seed(3), dtype=torch.float64)
    for direction in (noise * features.std(), moving.grad / moving.grad.norm() * features.norm() / 100):
        change = [
            float(criterion(features + t * direction, labels, environments, sample_weights=each).risk)
            for t in (1e-4, -1e-4, 2e-4, -2e-4)
        ]
        numeric = (8 * (change[0] - change[1]) - (change[2] - change[3])) / 12e-4
        allowed = 1e-6 * max(abs(numeric), 1e-3 * float(moving.grad.norm() * direction.norm()))
        assert abs(float((moving.grad * direction).sum()) - numeric) < allowed


@pytest.mark.parametrize("offset", [0, 10, 1e3])
def test_float32_features_far_from_zero_have_the_gradient_of_float64(offset):
    batch = random_batch(28, [40, 30, 35], classes=3, width=8)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        moving = (batch.features + offset).float().to(dtype).requires_grad_()
        TransferRisk()(moving, batch.labels, batch.index).risk.backward()
        gradients.append(moving.grad)
    assert relative(gradients[0], gradients[1]) < 1e-5


@pytest.mark.parametrize("scale", [1e-4, 1e-6, 1e-8])
def test_tiny_float32_features_have_the_gradient_of_float64(scale):
    batch = random_batch(33, [40, 30, 35], classes=3, width=8)
    gradients = []
    for dtype in (torch.float32, torch.float64):
        moving = (scale * batch.features).float().to(dtype).requires_grad_()
        out = TransferRisk()(moving, batch.labels, batch.index)
        out.risk.backward()
        assert out.risk.dtype == dtype
        gradients.append(moving.grad)
    assert relative(gradients[0], gradients[1]) < 1e-5


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.uint16, torch.uint64])
@pytest.mark.parametrize("captured", [False, True])
def test_labels_and_environments_may_be_integers_of_any_type(dtype, captured):
    batch = random_batch(29, [9, 8, 7], classes=3, width=4)
    options = {"captured": True, "num_classes": 3, "environments": 3} if captured else {}
    gradients = []
    for kind in (torch.int64, dtype):
        moving, labels, environments = (
            batch.features.clone().requires_grad_(),
            batch.labels.to(kind),
            batch.index.to(kind),
        )
        TransferRisk(**options)(moving, labels, environments).risk.backward()
        gradients.append(moving.grad)
    assert torch.equal(*gradients)
    W = optimal_predictor(batch.features, batch.labels.to(dtype), 3, 1e-2)
    assert torch.equal(W, optimal_predictor(batch.features, batch.labels, 3, 1e-2))
    matrix = transfer_matrix(batch.features, batch.labels.to(dtype), batch.index.to(dtype))
    assert torch.equal(matrix, transfer_matrix(batch.features, batch.labels, batch.index))
    risk = transfer_risk(batch.features, batch.labels.to(dtype), batch.index.to(dtype), 3, 3, 1e-2).risk
    assert torch.equal(risk, transfer_risk(batch.features, batch.labels, batch.index, 3, 3, 1e-2).risk)


@pytest.mark.parametrize("query", ["all", "random"])
@pytest.mark.parametrize("captured", [False, True])
def test_an_environment_whose_weights_are_zero_counts_as_absent(query, captured):
    batch = random_batch(31, [9, 8, 7, 6], classes=3, width=4)
    weights = torch.where(batch.index == 2, 0.0, 1.0).double()
    present = batch.index != 2
    options = {"query": query, "captured": captured, "num_classes": 3, "environments": 4}
    for seed in range(8):
        results = []
        for part, each in ((slice(None), weights), (present, None)):
            moving = batch.features.clone().requires_grad_()
            torch.manual_seed(seed)
            criterion = TransferRisk(**options)
            out = criterion(moving[part], batch.labels[part], batch.index[part], sample_weights=each)
            out.risk.backward()
            results.append((out.risk.detach(), moving.grad, out.matrix, criterion.alpha))
        assert results[0][1].isfinite().all()
        for weighted, without in zip(*results, strict=True):
            torch.testing.assert_close(weighted, without, rtol=1e-6, atol=1e-9, equal_nan=True)


def test_weights_that_leave_one_environment_are_refused():
    batch = random_batch(32, [5, 6], classes=3, width=4)
    with pytest.raises(InputError, match=r"environments must be two or more .* got id 1 alone"):
        TransferRisk()(*arguments(batch), sample_weights=batch.index.double())
    with pytest.raises(InputError, match=r"sample_weights must be above 0 .* got 0 for all"):
        TransferRisk()(*arguments(batch), sample_weights=torch.zeros(11))


def test_a_weight_is_a_number_of_samples():
    batch = random_batch(30, [7, 6], classes=3, width=4)
    times = torch.randint(1, 4, (13,), generator=torch.Generator().manual_seed(0))
    repeated = (part.repeat_interleave(times, 0) for part in arguments(batch))
    weighted = TransferRisk()(*arguments(batch), sample_weights=times.double())
    torch.testing.assert_close(weighted.matrix, TransferRisk()(*repeated).matrix)


def test_bfloat16_features_are_solved_in_float32():
    batch = random_batch(14, [32, 40], classes=4, width=24)
    half = batch.features.bfloat16().requires_grad_()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        out = TransferRisk()(half, batch.labels, batch.index)
    out.risk.backward()
    assert out.risk.dtype == torch.float32
    assert half.grad.dtype == torch.bfloat16
    exact = half.detach().double().requires_grad_()
    reference = TransferRisk()(exact, batch.labels, batch.index)
    reference.risk.backward()
    assert out.risk.item() == pytest.approx(reference.risk.item(), rel=1e-4)
    assert relative(half.grad, exact.grad) < 5e-3  # the rounding of bfloat16 itself


def test_predictors_are_the_optimal_ones():
    batch = random_batch(15, [12, 9], classes=3, width=4)
    out = TransferRisk(ridge=1e-2)(*arguments(batch))
    for q in range(2):
        own = batch.index == q
        expected = optimal_predictor(batch.features[own], batch.labels[own], 3, 1e-2)
        torch.testing.assert_close(out.solution.value[q], expected)


def test_the_papers_setting_runs_on_small_features():
    batch = random_batch(16, [12, 9], classes=3, width=3)
    features = (0.3 * batch.features).requires_grad_()
    out = TransferRisk(solver="sgd", implicit="neumann", gradient_matching=0.1)(features, batch.labels, batch.index)
    out.risk.backward()
    assert features.grad.isfinite().all()


def test_captured_setting_gives_the_same_numbers_and_nan_for_a_bad_batch():
    batch = random_batch(19, [16, 16], classes=3, width=8)
    options = {
        "environments": 2,
        "num_classes": 3,
        "captured": True,
        "solver": Newton.captured(20, 60),
        "implicit": CG(max_iterations=80, fixed=True),
    }
    for capacity in (None, 16, 20):
        features = batch.features.clone().requires_grad_()
        out = TransferRisk(capacity=capacity, **options)(features, batch.labels, batch.index)
        out.risk.backward()
        exact = batch.features.clone().requires_grad_()
        reference = TransferRisk()(exact, batch.labels, batch.index)
        reference.risk.backward()
        torch.testing.assert_close(out.risk, reference.risk)
        torch.testing.assert_close(features.grad, exact.grad, rtol=1e-6, atol=1e-9)
    assert TransferRisk(capacity=15, **options)(*arguments(batch)).risk.isnan()  # a sample would be lost
    good = TransferRisk(**options)
    assert good(batch.features, batch.labels, batch.index * 0).risk.isnan()  # one environment only
    assert good(batch.features, batch.labels + 1, batch.index).risk.isnan()  # a label out of range
    assert good(batch.features, batch.labels - 1, batch.index).risk.isnan()
    assert good(batch.features, batch.labels, batch.index * 3).risk.isnan()  # an unknown environment
    assert good(batch.features * torch.inf, batch.labels, batch.index).risk.isnan()


def test_captured_defaults_are_accurate_on_ordinary_batches():
    batch = random_batch(21, [128, 128], classes=10, width=64, dtype=torch.float32)
    gradients = []
    for criterion in (TransferRisk(), TransferRisk(captured=True, environments=2, num_classes=10)):
        features = batch.features.clone().requires_grad_()
        out = criterion(features, batch.labels, batch.index)
        out.risk.backward()
        assert out.solution.converged.all()
        assert out.inverse.converged.all()
        gradients.append(features.grad)
    assert relative(gradients[1], gradients[0]) < 1e-3


def test_no_gradient_is_computed_when_none_is_wanted():
    features, labels, environments = arguments(overlapping_batch(20))
    criterion = TransferRisk(implicit="neumann")  # would raise if the implicit part were computed
    assert not criterion(features, labels, environments).risk.requires_grad
    with torch.no_grad():
        criterion(features.requires_grad_(), labels, environments)


@pytest.mark.parametrize("used", [False, True], ids=["before the first batch", "after"])
@pytest.mark.parametrize("explicit", [False, True], ids=["inferred", "given"])
def test_state_dict_round_trips(used, explicit):
    batch = random_batch(4, [9, 9, 9], classes=4, width=4)
    options = {"environments": [2, 5, 9], "num_classes": 4} if explicit else {}
    criterion = TransferRisk(**options)
    if used:
        criterion(*arguments(batch, ids=[2, 5, 9]))
    restored = TransferRisk(**options)
    restored.load_state_dict(copy.deepcopy(criterion.state_dict()))
    for name, tensor in criterion.state_dict().items():
        assert torch.equal(tensor, restored.state_dict()[name])
    following = random_batch(5, [5, 6, 7], classes=3, width=4)  # with a class fewer: num_classes must be remembered
    a, b = (c(*arguments(following, ids=[2, 5, 9])) for c in (criterion, restored))
    assert torch.equal(a.risk, b.risk)
    assert torch.equal(criterion.alpha, restored.alpha)


def test_a_state_of_other_environments_or_classes_is_refused():
    saved = TransferRisk(environments=3, num_classes=2).state_dict()
    for environments, classes, message in [
        (2, 2, r"environments must be \[0, 1, 2\].* got \[0, 1\]"),
        ([7, 8, 9], 2, r"environments must be \[0, 1, 2\].* got \[7, 8, 9\]"),
        (3, 5, r"num_classes must be 2.* got 5"),
    ]:
        with pytest.raises(InputError, match=message):
            TransferRisk(environments=environments, num_classes=classes).load_state_dict(saved)
    with pytest.raises(RuntimeError, match="Missing key"):
        TransferRisk().load_state_dict({k: v for k, v in saved.items() if k != "alpha"})
    with pytest.raises(RuntimeError, match="Unexpected key"):
        TransferRisk().load_state_dict(saved | {"beta": torch.zeros(1)})


def test_an_empty_state_leaves_explicit_settings_alone():
    criterion = TransferRisk(environments=[4, 5, 6], num_classes=5)
    criterion.load_state_dict(TransferRisk().state_dict())
    assert criterion.environment_ids.tolist() == [4, 5, 6]
    assert criterion.num_classes == 5


def test_first_batch_in_inference_mode_does_not_spoil_training():
    batch = random_batch(4, [9, 9], classes=3, width=4)
    criterion = TransferRisk().eval()
    with torch.inference_mode():
        criterion(*arguments(batch))
    features = batch.features.clone().requires_grad_()
    criterion.train()(features, batch.labels, batch.index).risk.backward()
    assert features.grad.isfinite().all()


def test_a_compiled_model_breaks_its_graph_once_and_has_the_same_gradient():
    features, labels, environments = arguments(random_batch(22, [8, 8, 8], classes=3, width=5, dtype=torch.float32))
    layer, graphs, gradients = torch.nn.Linear(5, 6), [], []

    def loss_of(criterion):
        def loss(features):
            hidden = layer(features).relu()
            return hidden.square().mean() + 2 * criterion(hidden, labels, environments).risk

        return loss

    def backend(graph, _):
        graphs.append(graph)
        return graph.forward

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch's, about its own compiler
        for loss in (loss_of(TransferRisk()), torch.compile(loss_of(TransferRisk()), backend=backend)):
            for _ in range(2):  # the weights of environments move in between
                layer.weight.grad = None
                loss(features).backward()
            gradients.append(layer.weight.grad)
    assert len(graphs) == 2
    assert torch.equal(gradients[0], gradients[1])


@pytest.mark.parametrize("training", [True, False])
def test_where_all_predictors_are_too_many_some_are_taken_and_it_says_so(monkeypatch, training):
    batch = random_batch(23, [4] * 7, classes=3, width=4)
    exact = TransferRisk(weights="worst")(*arguments(batch))
    monkeypatch.setattr(criterion_module, "MOST_LOGITS", 3 * 28 * 3)
    criterion = TransferRisk(weights="worst").train(training)
    seen = set()
    for _ in range(3):
        with pytest.warns(StepWarning, match=r"7 environments.* 3 "):
            out = criterion(*arguments(batch))
        rows = (~out.matrix.isnan()).any(1).nonzero().flatten()
        assert len(rows) == len(out.solution.value) == 3
        torch.testing.assert_close(out.matrix[rows], exact.matrix[rows])
        torch.testing.assert_close(out.risk, (exact.weights * exact.matrix)[rows].sum(1).mean())
        seen.add(tuple(rows.tolist()))
    assert seen != {(0, 3, 6)} if training else seen == {(0, 3, 6)}


def test_environments_that_are_absent_cost_nothing_and_too_many_are_refused():
    batch = random_batch(24, [5, 6, 7], classes=3, width=4)
    ids = [7, 1500, 1999]
    features, exact = batch.features.clone().requires_grad_(), batch.features.clone().requires_grad_()
    out = TransferRisk(environments=2000)(features, batch.labels, torch.tensor(ids)[batch.index])
    reference = TransferRisk()(exact, batch.labels, batch.index)
    out.risk.backward()
    reference.risk.backward()
    assert len(out.solution.value) == 3
    torch.testing.assert_close(out.matrix[ids][:, ids], reference.matrix)
    torch.testing.assert_close(features.grad, exact.grad)
    with pytest.raises(InputError, match=r"environments must be .*4096, got 10000"):
        TransferRisk(environments=10_000)
