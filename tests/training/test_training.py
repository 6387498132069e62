"""The loop, what it measures, and what may follow it."""

from __future__ import annotations

import copy
import math
from contextlib import nullcontext
from dataclasses import replace
from functools import partial

import pytest
import torch
import torch.nn.functional as F
from small import at, model, sets, small_run, steps_of
from torch import nn

from transferrisk.algorithms import ERM, create
from transferrisk.data import EnvironmentSet
from transferrisk.errors import DivergedError, InputError, TransferRiskError, full_memory
from transferrisk.functional import optimal_predictor
from transferrisk.models import Classifier
from transferrisk.training import (
    EarlyStopping,
    LossCurve,
    Steps,
    TrainConfig,
    Watch,
    evaluate,
    held_out_transfer_matrix,
    irm_penalties,
    setting_of,
    train,
)
from transferrisk.training.captured import make_step
from transferrisk.training.compiled import run_compiled
from transferrisk.training.engine import rounded_products
from transferrisk.training.evaluate import alternate_sources
from transferrisk.training.feed import Feed

# ---- the loop


def test_a_number_of_steps_takes_the_place_of_the_epochs():
    history = small_run("erm", steps=7, evaluations=1, decay_at=(0.5, 1.0)).train().history
    assert steps_of(history) == [7]
    assert history[-1]["epoch"] == pytest.approx(7 / 3)


def test_records_of_a_run():
    seen, losses = [], LossCurve()
    trained = small_run("trm", settings={"ridge": 1e-2}, evaluations=2).train(
        Steps(lambda done, total: seen.append((done, total))), losses
    )
    history = trained.history
    assert steps_of(history) == [4, 9]  # nine steps, evaluated half way and at the end
    assert seen == [(i + 1, 9) for i in range(9)]
    assert losses.steps == list(range(1, 10))
    assert history[-1]["epoch"] == 3.0
    assert set(at(history, 9, "train")) == {"north", "south"}
    assert set(at(history, 9, "test")) == {"east"}
    assert at(history, 9, "test")["east"]["samples"] == 60
    (batch,) = at(history, 9, "batch").values()
    assert batch["loss"] == losses.losses[-1] > 0
    assert batch["transfer_risk"] > 0


def test_nothing_is_evaluated_that_was_not_asked_for():
    data = sets()["train"]
    trained = train(model, data, create("erm", setting_of(data)), TrainConfig(epochs=1, batch_size=8))
    assert {record["part"] for record in trained.history} == {"batch"}
    assert trained.state.step == 3


def test_a_model_that_is_built_already_is_trained_itself():
    data, classifier = sets()["train"], model()
    before = [p.clone() for p in classifier.parameters()]
    trained = train(classifier, data, create("erm", setting_of(data)), TrainConfig(epochs=1, batch_size=8))
    assert trained.model is classifier
    assert not any(torch.equal(a, b) for a, b in zip(before, classifier.parameters(), strict=True))


@pytest.mark.parametrize("fails", [False, True])
def test_the_caller_s_generator_is_left_alone(fails):
    def stop(done, total):
        if fails:
            raise KeyboardInterrupt

    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        small_run("mldg").train(Steps(stop))
    assert torch.equal(torch.rand(3), expected)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"model": nn.Linear(4, 3)}, "model must .*got Linear: .*Classifier"),
        ({"model": lambda: nn.Linear(4, 3)}, "model must .*got .*Linear: .*Classifier"),
        ({"model": "cnn"}, "model must .*got 'cnn'"),
        ({"model": Classifier(nn.Linear(4, 6), 6, 2)}, "model must .*3 classes of data, got 2: .*num_classes=3"),
        ({"data": (torch.zeros(3, 4), torch.zeros(3))}, "data must .*EnvironmentSet, got tuple"),
        ({"algorithm": "irm"}, r"algorithm must .*got 'irm': .*create\('irm'"),
        ({"algorithm": nn.Linear(4, 3)}, r"algorithm must .*got Linear: .*create\('erm'"),
        ({"config": {"epochs": 1}}, "config must .*TrainConfig, got dict"),
        ({"evaluate": sets()["test"]}, "evaluate must .*got EnvironmentSet"),
        ({"evaluate": {"test": None}}, r"evaluate\['test'\] must .*EnvironmentSet, got NoneType"),
        ({"evaluate": {"foo": sets()["test"]}}, "evaluate .*got 'foo': .*training_domain"),
        (
            {"evaluate": {"training-domain": sets()["training_domain"]}},
            "evaluate .*got 'training-domain': did you mean 'training_domain'",
        ),
        ({"evaluate": {"batch": sets()["test"]}}, "evaluate .*got 'batch'"),
        (
            {"evaluate": {"test": replace(sets()["test"], class_names=("a", "b", "c", "d"))}},
            r"4 classes of evaluate\['test'\], got 3",
        ),
        ({"watch": EarlyStopping()}, r"watch must be a list .*got EarlyStopping: .*\[\.\.\.\]"),
        ({"watch": [LossCurve]}, r"watch\[0\] must be a Watch, got LossCurve"),
        ({"seed": -1}, "seed must .*got -1"),
        ({"seed": "lucky"}, "seed must .*got 'lucky'"),
    ],
)
def test_arguments_of_another_kind_are_refused_in_one_line(changed, message):
    data = sets()["train"]
    config = TrainConfig(steps=1, batch_size=8)
    given = {"model": model, "data": data, "algorithm": create("erm", setting_of(data)), "config": config}
    with pytest.raises(InputError, match=message) as error:
        train(**given | changed)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("name", ["erm", "mldg", "fish"])
def test_a_seed_fixes_a_run(name):
    first, again, other = (small_run(name, seed).train().history[-2] for seed in (0, 0, 1))
    assert first["part"] == "test"
    assert first["loss"] == again["loss"] != other["loss"]


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(
    ("algorithm", "find"),
    [
        ("erm", lambda state: state.model.head.bias),
        ("erm", lambda state: state.model.featuriser[2].running_mean),
        ("erm", lambda state: state.model.featuriser[2].running_var),
        ("trm", lambda state: state.algorithm.criterion.alpha),
        ("groupdro", lambda state: state.algorithm.weights),
    ],
    ids=["weights", "mean", "variance", "alpha", "group weights"],
)
def test_a_state_is_finite_only_if_everything_in_it_is(algorithm, find, value):
    state = small_run(algorithm).start()
    assert state.finite
    with torch.no_grad():
        find(state).view(-1)[-1] = value
    assert not state.finite


def test_a_diverging_run_says_so():
    with pytest.raises(DivergedError, match=r"erm has diverged at lr=1e\+20: .* after step \d+"):
        small_run("erm", lr=1e20, momentum=0.0).train()


class Raises(ERM):
    error: BaseException

    def step(self, model, batch, optimiser, epoch):
        raise self.error


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0"), "GPU's.*2.00 GiB.*now 8"),
        (RuntimeError("not enough memory: you tried to allocate 8 bytes."), "memory.*8 bytes.*now 8"),
        (MemoryError("Unable to allocate 3 TiB"), "memory.*now 8"),
        (RuntimeError("shapes differ"), None),
        (InputError("not that"), None),
    ],
)
def test_full_memory_is_told_in_one_line_and_other_errors_stay_what_they_are(error, said):
    algorithm = type("Full", (Raises,), {"error": error})
    with pytest.raises(type(error) if said is None else TransferRiskError, match=said) as told:
        small_run(algorithm).train()
    assert (told.value is error) == (said is None)
    assert "\n" not in str(told.value)


def test_a_real_allocation():
    with pytest.raises(RuntimeError) as error:
        torch.empty(10**15)
    assert "4000000000000000 bytes" in full_memory(error.value)


# ---- watches


class Recording(Watch):
    def __init__(self, name, calls, stop_after=None):
        self.name, self.calls, self.stop_after, self.steps = name, calls, stop_after, 0

    def begin(self, run):
        self.calls.append((self.name, "begin", run.total))

    def after_step(self, step, total, loss):
        self.steps = step
        self.calls.append((self.name, "step", step))

    def after_evaluation(self, records):
        self.calls.append((self.name, "evaluation", records[0]["step"]))

    def should_stop(self):
        return self.steps == self.stop_after

    def end(self, error):
        self.calls.append((self.name, "end", error))


def test_watches_are_told_in_order_and_may_end_a_training():
    calls = []
    trained = small_run().train(Recording("a", calls), Recording("b", calls, stop_after=4))
    assert trained.state.step == 4
    assert calls[:2] == [("a", "begin", 9), ("b", "begin", 9)]
    assert calls[-2:] == [("b", "end", None), ("a", "end", None)]
    assert [call for call in calls if call[0] == "b"][1:-1] == [
        ("b", "step", 1), ("b", "step", 2), ("b", "evaluation", 3), ("b", "step", 3), ("b", "step", 4),
    ]  # fmt: skip


def test_watches_that_have_begun_are_ended_when_another_fails():
    class Broken(Watch):
        def begin(self, run):
            raise KeyError("x")

    calls = []
    with pytest.raises(KeyError):
        small_run().train(Recording("a", calls), Broken(), Recording("c", calls))
    assert [call[:2] for call in calls] == [("a", "begin"), ("a", "end")]
    assert isinstance(calls[-1][2], KeyError)


def test_early_stopping_ends_and_keeps_the_best_weights():
    """The head is emptied after the third step, so that nothing gets better from there on."""
    best = {}

    class Emptied(ERM):
        def step(self, model, batch, optimiser, epoch):
            logs = super().step(model, batch, optimiser, epoch)
            if epoch >= 1:
                model.head.weight.data.zero_()
            return logs

    class Keep(Watch):
        def begin(self, run):
            self.run = run

        def after_evaluation(self, records):
            best.setdefault("head", self.run.state.model.head.weight.detach().clone())

    stopping = EarlyStopping("test", patience=2)
    trained = small_run(Emptied, epochs=10, evaluations=10).train(stopping, Keep())
    assert trained.state.step == 9  # two evaluations after the best
    assert len(stopping.scores) == 3
    assert torch.equal(trained.model.head.weight, best["head"])
    late = small_run(Emptied, epochs=10, evaluations=10).train(EarlyStopping("test", patience=2, after=5.0))
    assert late.state.epoch == 6.0
    with pytest.raises(InputError, match="'nowhere'"):
        small_run().train(EarlyStopping("nowhere"))


# ---- torch's arithmetic


def older(products, convolutions):
    torch.set_float32_matmul_precision(products)
    torch.backends.cudnn.allow_tf32 = convolutions


def newer(products, convolutions):
    torch.backends.cuda.matmul.fp32_precision = products
    torch.backends.cudnn.conv.fp32_precision = convolutions


def readable(read):
    try:
        return read()
    except RuntimeError:  # the newer settings contradict the older one
        return None


def rounding():
    backends = torch.backends
    parts = (backends.cuda.matmul, backends.mkldnn.matmul, backends.cudnn.conv, backends.cudnn.rnn)
    return {
        "products": readable(torch.get_float32_matmul_precision),
        "convolutions": readable(lambda: backends.cudnn.allow_tf32),
        **{str(i): part.fp32_precision for i, part in enumerate(parts)},
    }


@pytest.fixture
def _rounding_as_it_was():
    before = rounding()
    yield
    older(before["products"], before["convolutions"])
    newer(before["0"], before["2"])


@pytest.mark.usefixtures("_rounding_as_it_was")
@pytest.mark.parametrize("fails", [False, True])
@pytest.mark.parametrize(
    "user",
    [
        lambda: None,
        lambda: older("highest", True),
        lambda: older("high", False),
        lambda: newer("tf32", "ieee"),
        lambda: newer("ieee", "tf32"),
    ],
)
@pytest.mark.parametrize("rounded", [True, False])
def test_torch_rounds_afterwards_as_before(user, rounded, fails):
    """As an engine on a GPU does it."""
    user()
    before = rounding()
    with pytest.raises(KeyError) if fails else nullcontext(), rounded_products(rounded):
        assert rounding()["products"] == ("high" if rounded else "highest")
        assert rounding()["convolutions"] is rounded
        if fails:
            raise KeyError
    # An older setting that could not be read, because a newer one contradicts it, has no effect either.
    assert {k: v for k, v in rounding().items() if before[k] is not None} == {
        k: v for k, v in before.items() if v is not None
    }


# ---- evaluation


def test_evaluation_is_by_environment_and_leaves_the_model_training():
    data = sets()["train"]
    net = nn.Sequential(nn.Linear(4, 6), nn.Dropout(0.5), nn.BatchNorm1d(6))
    classifier = Classifier(net, 6, 3).train()
    scores, penalties = evaluate(classifier, data), irm_penalties(classifier, data)
    assert classifier.training
    assert evaluate(classifier, data) == scores  # no dropout
    classifier.eval()
    for e, name in enumerate(data.environment_names):
        part = data.select(data.environments == e)
        with torch.no_grad():
            logits = classifier(part.inputs[:])
        right = logits.argmax(1) == part.labels
        assert scores[name]["samples"] == 30
        assert scores[name]["accuracy"] == pytest.approx(float(right.float().mean()))
        assert scores[name]["loss"] == pytest.approx(float(F.cross_entropy(logits, part.labels)), rel=1e-5)
        worst = min(float(right[part.labels == c].float().mean()) for c in range(3))
        assert scores[name]["worst_group"] == pytest.approx(worst)
        scale = torch.ones((), requires_grad=True)
        (slope,) = torch.autograd.grad(F.cross_entropy(scale * logits, part.labels), scale)
        assert penalties[name] == pytest.approx(float(slope) ** 2, rel=1e-3)


def test_the_adjusted_average_weighs_groups_as_in_the_training_data():
    """Groups are environments with classes; the training data has other shares and another order of environments."""
    data = sets()["train"]
    names = data.environment_names
    training = data.select(torch.arange(len(data)) % 3 != data.labels % 2)
    training = replace(training, environments=len(names) - 1 - training.environments, environment_names=names[::-1])
    classifier = Classifier(nn.Linear(4, 6), 6, 3).eval()
    with torch.no_grad():
        right = (classifier(data.inputs[:]).argmax(1) == data.labels).float()
    average = 0.0
    for e, name in enumerate(names):
        for c in range(3):
            trained = (training.environments == training.environment_names.index(name)) & (training.labels == c)
            group = (data.environments == e) & (data.labels == c)
            average += float(trained.float().mean() * right[group].mean())
    scores = evaluate(classifier, data, trained_on=training)
    assert sum(record["adjusted"] for record in scores.values()) == pytest.approx(average, rel=1e-5)
    new = replace(data, environment_names=tuple(f"new {name}" for name in names))
    assert all("adjusted" not in record for record in evaluate(classifier, new, trained_on=training).values())
    lost = data.select(~((data.environments == 0) & (data.labels == 1)))
    assert math.isnan(evaluate(classifier, lost, trained_on=training)[names[0]]["adjusted"])


def test_only_what_is_asked_for_is_measured():
    plain, full = small_run(record=()).train().history, small_run().train().history
    assert not any({"irm", "transfer", "transfer_risk"} & set(record) for record in plain)
    validation = at(full, 9, "training_domain")
    assert all(record["irm"] >= 0 for record in validation.values())
    north = validation["north"]
    assert set(north["transfer"]) == {"north", "south"}
    assert north["transfer_risk"] == pytest.approx(north["transfer"]["south"])
    assert at(plain, 9, "test")["east"]["loss"] == at(full, 9, "test")["east"]["loss"]


def test_a_transfer_risk_is_unknown_where_a_loss_is():
    run = small_run(evaluations=1)
    validation = run.sets["training_domain"]
    north, (south, *_) = validation.environments == 0, (validation.environments == 1).nonzero().flatten().tolist()
    north[south] = True  # one sample of south is left: one to fit on, and none to test on
    run = replace(run, sets=run.sets | {"training_domain": validation.select(north)})
    records = at(run.train().history, 9, "training_domain")
    assert records["north"]["transfer"]["south"] is None
    assert records["north"]["transfer_risk"] is None
    assert math.isfinite(records["north"]["transfer"]["north"])


def test_held_out_transfer_matrix_fits_on_one_half_and_tests_on_the_other():
    classifier = Classifier(nn.Sequential(nn.Linear(4, 6), nn.ReLU()), 6, 3).eval()
    data = sets()["training_domain"]
    matrix = held_out_transfer_matrix(classifier, data, 1e-2)
    with torch.no_grad():
        features = classifier.featurise(data.inputs[:])
    half = torch.arange(len(data)) // 2 % 2  # environments alternate, so this alternates within each
    for q in range(2):
        fit = (data.environments == q) & (half == 0)
        W = optimal_predictor(features[fit], data.labels[fit], 3, 1e-2)
        for p in range(2):
            there = (data.environments == p) & (half == 1)
            logits = features[there] @ W[:, :-1].T + W[:, -1]
            assert float(matrix[q, p]) == pytest.approx(float(F.cross_entropy(logits, data.labels[there])), rel=1e-4)


def test_held_out_transfer_matrix_has_nan_where_there_is_nothing_to_fit_or_test():
    data = EnvironmentSet(
        torch.randn(21, 4),
        torch.arange(21) % 3,
        torch.tensor([0] * 10 + [1] + [2] * 10),
        ("a", "b", "c"),
        ("x", "y", "z"),
    )
    matrix = held_out_transfer_matrix(model().eval(), data, 1e-2)
    assert matrix.shape == (3, 3)
    assert matrix[:, 1].isnan().all()  # b's only sample is one to fit on
    assert matrix[:, [0, 2]].isfinite().all()


def test_samples_of_one_source_stay_in_one_half():
    data = EnvironmentSet(
        torch.zeros(8, 1), torch.zeros(8, dtype=torch.long), torch.zeros(8, dtype=torch.long), ("a",), ("x",),
        sources=torch.tensor([5, 5, 9, 9, 2, 2, 7, 7]),
    )  # fmt: skip
    halves = alternate_sources(data)
    assert halves.tolist() == [1, 1, 1, 1, 0, 0, 0, 0]  # in the order of the sources: 2, 5, 7, 9
    assert data.select(torch.tensor([0, 2])).sources.tolist() == [5, 9]


def test_group_priors_are_those_of_balanced_draws():
    data = EnvironmentSet(
        torch.zeros(6, 1), torch.tensor([0, 0, 0, 1, 0, 1]), torch.tensor([0, 0, 0, 0, 1, 1]), ("a", "b"), ("x", "y")
    )
    torch.testing.assert_close(setting_of(data).group_priors, torch.tensor([[0.375, 0.125], [0.25, 0.25]]))


# ---- optimisers


def test_adam_and_adamw_are_those_of_torch():
    for name, kind in (("adam", torch.optim.Adam), ("adamw", torch.optim.AdamW)):
        run = small_run("erm", optimiser=name, lr=0.01, weight_decay=0.1, momentum=0.8, decay_at=1.0)
        state = run.start()
        twin = copy.deepcopy(state.model)
        optimiser = kind(twin.parameters(), lr=0.01, betas=(0.8, 0.999), weight_decay=0.1)
        feed, step = Feed(run.sets["train"], state.sampler, torch.device("cpu")), make_step(state)
        for _ in range(5):
            batch, draw = feed.next(), torch.get_rng_state()
            step(batch)
            torch.set_rng_state(draw)
            optimiser.zero_grad()
            F.cross_entropy(twin(batch.inputs), batch.labels).backward()
            optimiser.step()
        for ours, theirs in zip(state.model.parameters(), twin.parameters(), strict=True):
            torch.testing.assert_close(ours, theirs)


def test_dropout_hides_features_while_training_alone():
    state = small_run("erm", dropout=0.5).start()
    state.model.featuriser = nn.Identity()
    inputs = torch.ones(4000, 6)
    features = state.model.train().featurise(inputs)
    assert set(features.unique().tolist()) == {0.0, 2.0}
    assert float(features.mean()) == pytest.approx(1, abs=0.05)
    assert torch.equal(state.model.eval().featurise(inputs), inputs)


def test_a_function_that_makes_the_algorithm_is_told_the_width_of_the_features():
    run = small_run()
    trained = train(model, run.sets["train"], partial(create, "fishr"), TrainConfig(epochs=1, batch_size=8))
    assert trained.state.algorithm.setting.num_features == 6
    assert trained.state.algorithm.averages.shape == (2, 3, 7)


def test_networks_are_compiled_while_they_train_and_a_function_of_the_user_stays():
    state = small_run("erm").start()
    state.compiles = True
    plain = state.model.apply_featuriser
    with state.compiled():
        assert state.model.apply_featuriser is run_compiled
    assert state.model.apply_featuriser is plain
    state.model.apply_featuriser = own = lambda network, inputs: network(inputs)
    with state.compiled():
        assert state.model.apply_featuriser is own
    assert state.model.apply_featuriser is own


def test_a_training_on_the_cpu_compiles_nothing():
    assert not small_run("erm").start().compiles
