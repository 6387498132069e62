"""scikit-learn's conventions: its own checks, clones, names of columns, pickles, and what is refused."""

from __future__ import annotations

import pickle
import warnings

import numpy as np
import pandas as pd
import pytest
import torch
from shifted import sites
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import parametrize_with_checks

from transferrisk.algorithms import ALGORITHMS, Algorithm, available, register
from transferrisk.errors import EnvironmentWarning, InputError
from transferrisk.sklearn import (
    BoostingClassifier,
    LeafTransferClassifier,
    LinearClassifier,
    MajorityClassifier,
    TransferRiskClassifier,
)
from transferrisk.training import LossCurve

X, y, SITE = sites(60, (0.9, 0.3, 0.6))


def short(algorithm="trm", **parameters):
    return TransferRiskClassifier(
        algorithm,
        **{"max_epochs": 12, "representation": "linear:4", "learning_rate": 0.1, "random_state": 0} | parameters,
    )


@pytest.mark.filterwarnings("ignore::transferrisk.errors.EnvironmentWarning")
@pytest.mark.filterwarnings("ignore:.*SCIPY_ARRAY_API")
@parametrize_with_checks(
    [
        TransferRiskClassifier(),
        TransferRiskClassifier("erm", representation="linear:16", standardise=False),
        MajorityClassifier(),
        LinearClassifier(),
        BoostingClassifier(params={"max_iter": 5}),
        BoostingClassifier(params={"max_iter": 5}, environments_lr=0.5),
        LeafTransferClassifier(params={"max_iter": 5}),
    ]
)
def test_scikit_learn_s_own_checks(estimator, check):
    check(estimator)


def test_parameters_come_back_and_clones_are_unfitted():
    classifier = short("irm", algorithm_params={"penalty_weight": 2.0}, representation="mlp:4")
    copied = clone(classifier.fit(X, y, environments=SITE))
    assert copied.get_params() == classifier.get_params()
    with pytest.raises(NotFittedError):
        copied.predict(X)
    assert copied.set_params(representation="linear:7").fit(X, y, environments=SITE).transform(X).shape == (len(X), 7)


def test_what_it_tells_of_itself():
    classifier = short().fit(X, y, environments=SITE)
    assert classifier.classes_.tolist() == [0, 1]
    assert classifier.environments_.tolist() == ["site 0", "site 1", "site 2"]
    assert (classifier.n_features_in_, classifier.n_iter_, classifier.algorithm_) == (6, 12, "trm")
    assert len(classifier.loss_curve_) == 12
    assert classifier.score(X, y) > 0.7
    assert not hasattr(classifier, "feature_names_in_")


def test_probabilities_decisions_and_labels_agree():
    three = (X[:, 0] > 0).astype(int) + (X[:, 1] > 0)
    for labels, classes in ((y, 2), (three, 3)):
        classifier = short().fit(X, labels, environments=SITE)
        probabilities = classifier.predict_proba(X)
        decisions = classifier.decision_function(X)
        np.testing.assert_allclose(probabilities.sum(1), 1)
        np.testing.assert_allclose(np.exp(classifier.predict_log_proba(X)), probabilities)
        np.testing.assert_array_equal(classifier.classes_[probabilities.argmax(1)], classifier.predict(X))
        if classes == 2:
            np.testing.assert_allclose(1 / (1 + np.exp(-decisions)), probabilities[:, 1])
        else:
            np.testing.assert_array_equal(decisions.argmax(1), probabilities.argmax(1))


def test_the_predictor_stands_on_the_representation():
    classifier = short(representation="mlp:4").fit(X, y, environments=SITE)
    features = classifier.transform(X)
    head = classifier.model_.head
    logits = features @ head.weight.detach().numpy().T + head.bias.detach().numpy()
    np.testing.assert_allclose(logits[:, 1] - logits[:, 0], classifier.decision_function(X), atol=1e-12)
    np.testing.assert_array_equal(features, short(representation="mlp:4").fit_transform(X, y, environments=SITE))
    assert (features >= 0).all()
    assert (features > 0).any()


def test_pandas_in_and_out():
    frame = pd.DataFrame(X, columns=list("abcdef"), index=np.arange(len(X)) + 1000)
    site = pd.Series(SITE, index=frame.index, dtype="category")
    classifier = short().set_output(transform="pandas").fit(frame, pd.Series(y, index=frame.index), environments=site)
    assert classifier.feature_names_in_.tolist() == list("abcdef")
    out = classifier.transform(frame)
    assert out.columns.tolist() == [f"transferriskclassifier{i}" for i in range(4)]
    assert out.columns.tolist() == classifier.get_feature_names_out().tolist()
    assert (out.index == frame.index).all()
    plain = short().fit(X, y, environments=SITE)
    np.testing.assert_array_equal(plain.transform(X), out.to_numpy())
    with pytest.raises(ValueError, match="feature names"):
        classifier.predict(frame[list("fedcba")])


def test_kinds_of_environments_make_no_difference():
    numbers = np.unique(SITE, return_inverse=True)[1]
    expected = short().fit(X, y, environments=SITE).predict_proba(X)
    for same in (numbers, numbers.astype(float), SITE.astype(object), list(SITE), pd.Series(SITE), numbers * 10 - 7):
        np.testing.assert_array_equal(short().fit(X, y, environments=same).predict_proba(X), expected)


@pytest.mark.parametrize(
    ("environments", "message"),
    [
        (SITE[1:], "inconsistent numbers of samples"),
        (np.stack([SITE, SITE], 1), r"environments must .*got ndarray of shape \(180, 2\)"),
        ([*SITE[:-1], None], f"environments .* row {len(SITE) - 1}"),
        (np.linspace(0, 1, len(SITE)) ** 2, "environments must .*got .*: .*sample_weight="),
        ([0.5, 1.5, 2] * 60, r"environments must .*got 0\.5: .*sample_weight="),
    ],
)
@pytest.mark.parametrize(
    "classifier", [short(), MajorityClassifier(), LinearClassifier(), BoostingClassifier(), LeafTransferClassifier()]
)
def test_environments_that_are_refused(classifier, environments, message):
    with pytest.raises(ValueError, match=message):
        classifier.fit(X, y, environments=environments)


@pytest.mark.parametrize("classifier", [short("erm"), MajorityClassifier(), LinearClassifier()])
def test_weights_of_rows_are_not_taken_for_environments(classifier):
    whole = np.arange(len(X)) % 100
    with pytest.warns(EnvironmentWarning, match="100 different values in 180 rows.*sample_weight=") as given:
        classifier.fit(X, y, whole)
    assert given[0].filename == __file__
    with pytest.raises(TypeError):
        classifier.fit(X, y, SITE, np.ones(len(X)))
    np.testing.assert_array_equal(
        clone(classifier).fit(X, y, SITE).predict_proba(X), classifier.fit(X, y, environments=SITE).predict_proba(X)
    )


@pytest.mark.parametrize("environments", [None, ["here"] * len(X)])
def test_without_several_environments_it_is_erm_and_says_so(environments):
    expected = short("erm").fit(X, y).predict_proba(X)
    with pytest.warns(EnvironmentWarning, match="trm needs two or more environments") as given:
        classifier = short().fit(X, y, environments=environments)
    assert len(given) == 1
    assert given[0].filename == __file__
    assert classifier.algorithm_ == "erm"
    np.testing.assert_array_equal(classifier.predict_proba(X), expected)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        short("erm").fit(X, y, environments=environments)


@pytest.mark.parametrize("algorithm", available())
def test_same_seed_same_numbers_and_torch_s_generator_is_left_alone(algorithm):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    a, b, other = (short(algorithm, random_state=s).fit(X, y, environments=SITE).predict_proba(X) for s in (3, 3, 4))
    assert torch.equal(torch.rand(3), expected)
    np.testing.assert_array_equal(a, b)
    assert not np.array_equal(a, other)


@pytest.mark.parametrize("make", [np.random.RandomState, np.random.default_rng])
def test_generators_are_drawn_from(make):
    first, second = (short(random_state=make(1)).fit(X, y, environments=SITE).predict_proba(X) for _ in range(2))
    np.testing.assert_array_equal(first, second)
    one = make(1)
    again = [short(random_state=one).fit(X, y, environments=SITE).predict_proba(X) for _ in range(2)]
    assert not np.array_equal(*again)


def test_pickles():
    classifier = short().fit(X, y, environments=SITE)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(classifier)).predict_proba(X), classifier.predict_proba(X))


@pytest.mark.parametrize(
    ("parameters", "message"),
    [
        ({"algorithm": "tmr"}, "algorithm 'tmr'.*'trm'"),
        ({"algorithm": 3}, "algorithm must be text, got 3"),
        ({"algorithm_params": {"rigde": 1}}, "'rigde'.*'ridge'"),
        ({"algorithm_params": ["ridge"]}, "algorithm_params must be a table or None, got"),
        ({"algorithm_params": {"ridge": -1.0}}, r"ridge must be .*got -1\.0"),
        ({"representation": "cnn"}, "'cnn'"),
        ({"representation": "mpl"}, "'mpl'.*'mlp'"),
        ({"representation": "linear:0"}, "linear:0"),
        ({"max_epochs": 0}, "max_epochs must be .*got 0"),
        ({"batch_size": "all"}, "batch_size must be .*got 'all'"),
        ({"learning_rate": 0.0}, r"learning_rate must be .*got 0\.0"),
        ({"learning_rate": "fast"}, "learning_rate must be .*got 'fast'"),
        ({"weight_decay": np.nan}, "weight_decay must be .*got nan"),
        ({"standardise": "yes"}, "standardise must be True or False, got 'yes'"),
        ({"device": "gpu"}, "device.*'gpu'"),
        ({"device": None}, "device must be text, got None"),
        ({"random_state": "lucky"}, "cannot be used to seed"),
        ({"early_stopping": True, "validation_environments": 2}, "validation_environments .* 1 of 3 .*got 2"),
        ({"early_stopping": True, "validation_environments": np.float64(0.9)}, r"validation_environments .*got 0\.9"),
        ({"early_stopping": True, "validation_environments": np.float64(2.5)}, r"validation_environments .*got 2\.5"),
        ({"early_stopping": True, "validation_environments": [np.int64(9)]}, "validation_environments .*got 9"),
        ({"max_epochs": np.float64(0.5)}, "max_epochs must be .*0.5"),
        ({"standardise": np.int64(3)}, "standardise must be .*3"),
        ({"algorithm_params": {"ridge": np.str_("low")}}, "ridge must be .*'low'"),
        ({"early_stopping": True, "validation_environments": ["site 9"]}, "validation_environments .*got 'site 9'"),
        ({"early_stopping": True, "validation_environments": ["site 0", "site 1"]}, "leave two of 3"),
        ({"early_stopping": True, "validation_environments": "site 0"}, "validation_environments .*got 'site 0'"),
        ({"watch": None}, "watch must be a list, got None"),
        ({"watch": LossCurve()}, "watch must be a list, got <.*LossCurve"),
        ({"watch": [1]}, r"watch\[0\] must be a Watch, got 1"),
        ({"watch": [LossCurve]}, r"watch\[0\] must be a Watch, got"),
    ],
)
def test_bad_parameters_are_told_in_one_line(parameters, message):
    with pytest.raises(ValueError, match=message) as error:
        short(**parameters).fit(X, y, environments=SITE)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("classifier", "message"),
    [
        (LinearClassifier(()), r"ridges must be .*got \(\)"),
        (LinearClassifier(0.1), r"ridges must be a list.*got 0\.1"),
        (LinearClassifier([0.1, -1.0]), r"ridges\[1\] must be .*got -1\.0"),
        (LinearClassifier(["a"]), r"ridges\[0\] must be .*got 'a'"),
        (LeafTransferClassifier(transfer_weight=-1), "transfer_weight must be .*got -1"),
        (LeafTransferClassifier(transfer_weight=np.nan), "transfer_weight must be .*got nan"),
        (LeafTransferClassifier(ridge="x"), "ridge must be .*got 'x'"),
        (LeafTransferClassifier(ridge=0.0), r"ridge must be .*got 0\.0"),
    ],
)
@pytest.mark.parametrize("rows", [20, len(X)])
def test_bad_parameters_of_the_others_are_told_in_one_line(classifier, message, rows):
    """With few rows an environment is too small to be used by some, and the parameters are wrong all the same."""
    kept = np.arange(len(X)) % (len(X) // rows) == 0
    with pytest.raises(InputError, match=message) as error:
        classifier.fit(X[kept], y[kept], environments=SITE[kept])
    assert "\n" not in str(error.value)


def test_ridges_may_be_an_array():
    assert LinearClassifier(np.array([0.1, 0.01])).fit(X, y, environments=SITE).ridge_ in (0.1, 0.01)


def test_a_clone_has_watches_of_its_own():
    curve = LossCurve()
    clone(short(watch=[curve])).fit(X, y, environments=SITE)
    assert curve.losses == []
    short(watch=[curve]).fit(X, y, environments=SITE)
    assert len(curve.losses) == 12


def test_a_batch_larger_than_the_table_is_lowered():
    with pytest.warns(UserWarning, match="batch_size .*180.*got 10000000") as given:
        classifier = short(batch_size=10**7, max_epochs=2).fit(X, y, environments=SITE)
    assert given[0].filename == __file__
    assert classifier.config_.batch_size == len(X)
    expected = short(batch_size=len(X), max_epochs=2).fit(X, y, environments=SITE)
    np.testing.assert_array_equal(classifier.predict_proba(X), expected.predict_proba(X))


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU")
def test_a_gpu_that_is_not_there():
    with pytest.raises(InputError, match="cuda"):
        short(device="cuda").fit(X, y, environments=SITE)
    assert short(device="auto").fit(X, y, environments=SITE).score(X, y) > 0.6


def test_one_class_is_refused():
    with pytest.raises(InputError, match="y must hold two or more classes"):
        short().fit(X, np.zeros(len(X)), environments=SITE)


def test_an_algorithm_that_does_not_heed_weights_refuses_them():
    class Unweighted(Algorithm):
        def objective(self, out, penalised):
            return {"loss": out.logits.square().mean()}

    with ALGORITHMS.temporary():
        register("unweighted-here")(Unweighted)
        short("unweighted-here").fit(X, y, environments=SITE)
        with pytest.raises(ValueError, match=r"sample_weight .*'unweighted-here'"):
            short("unweighted-here").fit(X, y, environments=SITE, sample_weight=np.ones(len(X)))


def test_the_range_of_environments_to_hold_out():
    four = np.arange(len(X)) % 4
    with pytest.raises(InputError, match=r"1 to 2 of 4 environments.*got 3"):
        short(early_stopping=True, validation_environments=3).fit(X, y, environments=four)
