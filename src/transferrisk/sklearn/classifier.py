"""`TransferRiskClassifier`: the algorithms as a scikit-learn classifier for rows of several environments."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Lock
from typing import Any, ClassVar, Literal, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax, softmax
from sklearn.base import BaseEstimator, ClassifierMixin, ClassNamePrefixFeaturesOutMixin, TransformerMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data

from ..algorithms import configure, create, get_algorithm
from ..data import EnvironmentSet
from ..data.values import Standardise
from ..errors import EnvironmentWarning, InputError, warn
from ..models import Classifier, OnFrozen, build_model, features_of, from_hub, push_to_hub
from ..results import Record, mean_score
from ..settings import Count, NonNegative, Positive, Settings
from ..solvers import threads_set
from ..training import EarlyStopping, Engine, LossCurve, TrainConfig, Trained, Watch, setting_of, train
from ..training.defaults import (
    VECTORS,
    WARM_UP,
    balanced,
    default_backbone,
    environment_sizes,
    settings_for,
    vector_config,
)
from .saving import load_classifier, save_classifier
from .splitter import choose_held_out, encode_training_environments

Array = NDArray[Any]
EVALUATIONS = 50  # of the environments held out, with early stopping
SMALL_STEP = 1 << 20  # numbers in a step up to which one thread is as fast as several
_ALONE = Lock()


@dataclass(frozen=True)
class _Parameters(Settings):
    """Parameters of the constructor; scikit-learn asks for a check in `fit`, not before."""

    algorithm: str
    algorithm_params: Mapping[str, Any] | None
    representation: str
    max_epochs: Count | Literal["auto"]
    batch_size: Count | Literal["auto"] | None
    learning_rate: Positive
    weight_decay: NonNegative | Literal["auto"]
    early_stopping: bool
    n_iter_no_change: Count
    standardise: bool
    device: str
    watch: Sequence[Watch]
    verbose: int | bool


class TransferRiskClassifier(
    ClassNamePrefixFeaturesOutMixin,  # type: ignore[misc]  # scikit-learn has no types, here and below
    TransformerMixin,  # type: ignore[misc]
    ClassifierMixin,  # type: ignore[misc]
    BaseEstimator,  # type: ignore[misc]
):
    """Classifier for environments it was not trained in, fitted to rows of several environments.

    It learns a representation of the rows and a linear predictor on it. Each environment (a site, a year, a device)
    counts the same, however many rows it has. Without `environments`, or with only one, the empirical risk is
    minimised: `algorithm_` is then "erm", and unless that was asked for there is an `EnvironmentWarning`.

    Parameters
    ----------
    algorithm : str, default="trm"
        Name of an algorithm, see `transferrisk.algorithms.available`.
    algorithm_params : dict or None, default=None
        Settings of the algorithm, such as {"ridge": 1e-3}. By default, `start_epoch` is 0.6 of the epochs, and TRM has
        `weights` "worst" and `ridge` 0.01.
    representation : str, default="auto"
        Network below the predictor. "linear:16" learns A x + b of length 16, so that decisions stay linear in the row
        x; "mlp:64" learns relu(A x + b); "linear" takes rows as they are; other networks for vectors are listed by
        `transferrisk.models.available`. "auto": "linear:16" up to 500 rows, otherwise "mlp:64".
    max_epochs : int or "auto", default="auto"
        Number of passes over the rows. "auto": 100 if a step sees all rows, otherwise as many as make 200 to 1000
        steps, by the number of rows.
    batch_size : int, "auto" or None, default="auto"
        Rows of each environment in a step; None: all rows. "auto": all up to 500 rows, otherwise 128 of each
        environment, or fewer, down to 16, if there are more than 16 environments. A number above that of all rows is
        lowered to it, with a warning.
    learning_rate : float, default=0.05
        Learning rate of SGD with momentum 0.9; a tenth of it for the last fifth of the steps.
    weight_decay : float or "auto", default="auto"
        Weight decay. "auto": 0.01, or 0.001 from 5000 rows on.
    early_stopping : bool, default=False
        Whether to hold environments out and evaluate the accuracy there 50 times. Training stops after
        `n_iter_no_change` evaluations without a gain, counted from a while after `start_epoch`, and the weights with
        the highest accuracy are kept. With fewer than three environments, nothing is held out, with a warning.
    validation_environments : int, float or list, default=1
        Environments to hold out: their number or share, drawn at random, or a list of them.
    n_iter_no_change : int, default=10
        Number of evaluations without a gain after which training stops.
    standardise : bool, default=True
        Whether to subtract the mean of each column and divide by its standard deviation.
    random_state : int, RandomState, Generator or None, default=None
        Source of all random numbers.
    device : str, default="cpu"
        Device to train on: "cpu", "cuda", "cuda:1", or "auto", which is a GPU if there is one. The fitted model is on
        the CPU.
    watch : sequence of `transferrisk.training.Watch`, default=()
        Objects that follow the training, such as a progress bar. They are not saved. `sklearn.base.clone` copies them,
        and so do searches and cross-validation, whose trainings the copies follow, not these objects.
    verbose : int, default=0
        Above 0, a line is printed at each evaluation.

    Attributes
    ----------
    classes_ : ndarray of shape (C,)
        Labels.
    environments_ : ndarray of shape (E,) or None
        Environments, sorted; None: none were given.
    validation_environments_ : ndarray or None
        Environments that were held out.
    algorithm_, representation_ : str
        Algorithm and network that were used.
    settings_ : dict
        Settings of the algorithm.
    config_ : transferrisk.training.TrainConfig
        Configuration of the training.
    model_ : transferrisk.models.Classifier
        Fitted network, which takes float tensors of rows.
    n_iter_ : int
        Number of epochs trained.
    loss_curve_, loss_steps_ : list
        Loss of each step and the number of the step; on a GPU, of every fiftieth step.
    validation_scores_ : list or None
        Accuracy in the held-out environments at each evaluation.
    n_features_in_ : int
        Number of columns.
    feature_names_in_ : ndarray
        Names of the columns, if they are strings.

    Notes
    -----
    `fit` requests `environments` by itself, so Pipeline, GridSearchCV and cross_validate pass it on.

    Examples
    --------
    >>> import numpy as np
    >>> from transferrisk.sklearn import TransferRiskClassifier
    >>> rng = np.random.default_rng(0)
    >>> y, site = rng.integers(2, size=150), np.repeat(["A", "B", "C"], 50)
    >>> X = rng.normal(size=(150, 3)) + 2 * y[:, None]
    >>> model = TransferRiskClassifier(random_state=0).fit(X, y, environments=site)
    >>> bool(model.score(X, y) > 0.9)
    True
    """

    __metadata_request__fit: ClassVar[Mapping[str, bool]] = {"environments": True}

    def __init__(
        self,
        algorithm: str = "trm",
        *,
        algorithm_params: Mapping[str, Any] | None = None,
        representation: str = "auto",
        max_epochs: int | str = "auto",
        batch_size: int | str | None = "auto",
        learning_rate: float = VECTORS.lr,
        weight_decay: float | str = "auto",
        early_stopping: bool = False,
        validation_environments: Any = 1,
        n_iter_no_change: int = 10,
        standardise: bool = True,
        random_state: Any = None,
        device: str = "cpu",
        watch: Sequence[Watch] = (),
        verbose: int = 0,
    ) -> None:
        self.algorithm = algorithm
        self.algorithm_params = algorithm_params
        self.representation = representation
        self.max_epochs = max_epochs
        self.batch_size = batch_size
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.early_stopping = early_stopping
        self.validation_environments = validation_environments
        self.n_iter_no_change = n_iter_no_change
        self.standardise = standardise
        self.random_state = random_state
        self.device = device
        self.watch = watch
        self.verbose = verbose

    def fit(self, X: Any, y: Any, environments: Any = None, *, sample_weight: Any = None) -> Self:
        """Fit to rows, their labels and their environments.

        Parameters
        ----------
        X
            Rows, (n, d).
        y
            Label of each row, (n,).
        environments
            Environment of each row, (n,): strings or integers. None: all rows are of one, and the empirical
            risk is minimised with a warning.
        sample_weight
            Weight of each row within its environment, (n,). Rows of weight 0 are left out. None: equal
            weights.

        Returns
        -------
        self
            The fitted classifier.
        """
        parameters = _Parameters(**{name: getattr(self, name) for name in _Parameters.__dataclass_fields__})
        configure(parameters.algorithm, **(parameters.algorithm_params or {}))
        with np.errstate(invalid="ignore"):  # sums of large numbers, by which scikit-learn looks for infinite ones
            X, y = validate_data(self, X, y, dtype=(np.float64, np.float32), order="C")
        check_classification_targets(y)
        classes, labels = np.unique(y, return_inverse=True)
        if len(classes) < 2:
            raise InputError(f"y must hold two or more classes, got one class only, {classes[:1].tolist()[0]!r}")
        names, index = encode_training_environments(environments, len(X))
        weights = None
        if sample_weight is not None:
            weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
            kept = weights > 0
            if not kept.any():
                raise InputError("sample_weight must be above zero in some row, got zero everywhere")
            X, labels, index, weights = X[kept], labels[kept], index[kept], weights[kept]
        present, index = np.unique(index, return_inverse=True)  # environments without weight are gone
        names = names[present]
        algorithm = self._usable_algorithm(parameters, names, environments is None, weights is not None)
        told = tuple(map(str, names.tolist()))
        data = EnvironmentSet(
            torch.from_numpy(np.require(X, requirements=["C", "W"])),  # shared where torch allows it
            torch.from_numpy(labels.astype(np.int64)),
            torch.from_numpy(index.astype(np.int64)),
            told if len(set(told)) == len(told) else tuple(f"{name} ({i})" for i, name in enumerate(told)),
            tuple(map(str, range(len(classes)))),
            weights=None if weights is None else torch.from_numpy(weights),
        )
        state = self.random_state
        draw = state.integers if isinstance(state, np.random.Generator) else check_random_state(state).randint
        seed = int(draw(2**31 - 1))
        held_out = chosen = None
        if self.early_stopping:
            chosen = choose_held_out(self.validation_environments, names, seed)
        if chosen is not None:
            held_out = balanced(data.only([data.environment_names[e] for e in chosen]), None)
            data = data.only([name for e, name in enumerate(data.environment_names) if e not in chosen])
        self._train(parameters, algorithm, data, held_out, seed)
        self.classes_ = classes
        self.environments_ = None if environments is None else names
        self.validation_environments_ = None if chosen is None else names[chosen]
        self.algorithm_ = algorithm
        return self

    def decision_function(self, X: Any) -> Array:
        """Return the logits of each row.

        Parameters
        ----------
        X
            Rows, (n, d).

        Returns
        -------
        ndarray
            Logits, (n, C); with two classes, the second minus the first, (n,).
        """
        logits = self._logits(X)
        return logits[:, 1] - logits[:, 0] if logits.shape[1] == 2 else logits

    def predict_proba(self, X: Any) -> Array:
        """Return the probability of each class.

        Parameters
        ----------
        X
            Rows, (n, d).

        Returns
        -------
        ndarray
            Probabilities, (n, C), in the order of `classes_`.
        """
        return np.asarray(softmax(self._logits(X), axis=1))

    def predict_log_proba(self, X: Any) -> Array:
        """Return the logarithm of the probability of each class.

        Parameters
        ----------
        X
            Rows, (n, d).

        Returns
        -------
        ndarray
            Logarithms, (n, C), in the order of `classes_`.
        """
        return np.asarray(log_softmax(self._logits(X), axis=1))

    def predict(self, X: Any) -> Array:
        """Return the most likely label of each row.

        Parameters
        ----------
        X
            Rows, (n, d).

        Returns
        -------
        ndarray
            Labels, (n,).
        """
        best = self._logits(X).argmax(1)
        return np.asarray(self.classes_[best])

    def transform(self, X: Any) -> Array:
        """Return the representation of each row.

        Parameters
        ----------
        X
            Rows, (n, d).

        Returns
        -------
        ndarray
            Representations, (n, length).
        """
        return self._featurise(X).double().numpy()

    def save(self, folder: Path | str) -> None:
        """Write the fitted classifier to a folder of its own, without pickle; `load` reads it.

        Parameters
        ----------
        folder
            Folder to write to.
        """
        check_is_fitted(self)
        save_classifier(self, Path(folder))

    @classmethod
    def load(cls, folder: Path | str) -> Self:
        """Read a classifier that `save` wrote; its predictions are the same to the bit.

        Parameters
        ----------
        folder
            Folder that `save` wrote.

        Returns
        -------
        TransferRiskClassifier
            The fitted classifier.
        """
        return load_classifier(cls, Path(folder))

    def push_to_hub(self, repo_id: str, *, private: bool = False, api: Any = None) -> str:
        """Push the fitted classifier to the Hugging Face hub, as `models.push_to_hub` does with its folder.

        Parameters
        ----------
        repo_id
            Repository, such as me/model.
        private
            Whether a new repository is private.
        api
            As for `models.push_to_hub`.

        Returns
        -------
        str
            Address of the repository.
        """
        with TemporaryDirectory() as folder:
            self.save(folder)
            return push_to_hub(folder, repo_id, private=private, api=api)

    @classmethod
    def from_pretrained(cls, name: str | Path, revision: str | None = None) -> Self:
        """Read a classifier from a folder or the Hugging Face hub, see `models.from_hub`.

        Parameters
        ----------
        name
            Folder or repository.
        revision
            Branch, tag or commit of the repository. None: its main branch.

        Returns
        -------
        TransferRiskClassifier
            The fitted classifier.
        """
        return cls.load(from_hub(name, revision))

    @property
    def _n_features_out(self) -> int:
        return self.model_.head.in_features

    def _usable_algorithm(self, parameters: _Parameters, names: Array, absent: bool, weighted: bool) -> str:
        """Return the name of the algorithm to use: the parameter, or ERM if there are too few environments."""
        name = parameters.algorithm
        if weighted and not get_algorithm(name).weighted:
            raise InputError(f"sample_weight must be left out: algorithm {name!r} does not support it")
        if len(names) > 1 or name == "erm":
            return name
        got = "none were given" if absent else f"{names[:1].tolist()[0]!r} is the only one"
        warn(
            f"{name} needs two or more environments, and {got}: the empirical risk is minimised; give environments, or "
            'set algorithm="erm"',
            EnvironmentWarning,
        )
        return "erm"

    def _train(
        self,
        parameters: _Parameters,
        algorithm: str,
        data: EnvironmentSet,
        held_out: EnvironmentSet | None,
        seed: int,
    ) -> None:
        """Train the network, and set the attributes that describe the training."""
        batch, epochs, decay = parameters.batch_size, parameters.max_epochs, parameters.weight_decay
        if isinstance(batch, int) and batch > len(data):
            warn(f"batch_size must be at most the number of rows, {len(data)}, got {batch}: it is lowered", UserWarning)
            batch = len(data)
        config = vector_config(
            environment_sizes(data),
            None if isinstance(epochs, str) else epochs,
            None if isinstance(batch, str) else batch,
            all_rows=True if batch is None else None,
        )
        config = replace(
            config,
            lr=parameters.learning_rate,
            weight_decay=config.weight_decay if isinstance(decay, str) else decay,
            evaluations=EVALUATIONS if held_out is not None else 10 if parameters.verbose else 1,
        )
        on_cpu = Engine.of(parameters.device).device.type == "cpu"
        # A weighted row and a repeated row differ by rounding only. In float64 the difference stays negligible over a
        # hundred steps on all rows, and small tables can afford float64.
        dtype = torch.float64 if config.batch_size is None and on_cpu else torch.float32
        rows, classes, name = data.inputs[:], len(data.class_names), parameters.representation
        shape = (rows.shape[1],)
        name = default_backbone(shape, len(rows)) if name == "auto" else name
        weights = None if data.weights is None else data.weights.numpy()
        standardise = Standardise(torch.zeros(shape), torch.ones(shape), dtype)
        if parameters.standardise:
            standardise = Standardise.fit(rows.numpy(), weights, dtype)

        # Rows are standardised once, before training, and by the model itself afterwards.
        data = replace(data, inputs=standardise(rows))
        if held_out is not None:
            held_out = replace(held_out, inputs=standardise(held_out.inputs[:]))

        def make() -> Classifier:
            return build_model(name, classes, shape).to(dtype)

        with _ALONE, torch.random.fork_rng([]):
            head = make().predictor.numel() if on_cpu else None
        given = (parameters.algorithm_params or {}) if algorithm == parameters.algorithm else {}
        settings = settings_for(algorithm, given, config, len(data.environment_names), vectors=True, head=head)
        curve = LossCurve()
        watch: list[Watch] = [curve, *self.watch]
        stopping = None
        if held_out is not None:
            # The effect of a penalty is visible a while after its start.
            begin = settings.get("start_epoch")  # None: no fixed start
            after = (WARM_UP * config.epochs if begin is None else begin) + 0.1 * config.epochs
            stopping = EarlyStopping("test", parameters.n_iter_no_change, after)
            watch.append(stopping)
        if parameters.verbose:
            watch.append(_Printed(config.epochs))
        data = balanced(data, config.batch_size)
        if data.weights is not None:
            data = replace(data, weights=data.weights.to(dtype))
        trained = fit_network(
            make, data, algorithm, settings, config, seed=seed, device=parameters.device, precision="fp32",
            evaluate={} if held_out is None else {"test": held_out}, watch=watch,
        )  # fmt: skip
        with _ALONE, torch.random.fork_rng([]):
            whole = OnFrozen(build_model("linear", classes, shape), trained.model, standardise)
        self.model_: Classifier = whole.eval()
        self.representation_ = name
        self.config_, self.settings_ = config, settings
        self.n_iter_ = max(1, round(trained.state.epoch))
        self.loss_curve_, self.loss_steps_ = curve.losses, curve.steps
        self.validation_scores_ = None if stopping is None else stopping.scores

    def _featurise(self, X: Any) -> torch.Tensor:
        check_is_fitted(self)
        with np.errstate(invalid="ignore"):  # as in `fit`
            X = validate_data(self, X, reset=False, dtype=(np.float64, np.float32), order="C")
        rows = torch.from_numpy(np.require(X, requirements=["C", "W"]))
        return features_of(self.model_, rows.__getitem__, len(rows))

    def _logits(self, X: Any) -> Array:
        features = self._featurise(X)
        with torch.inference_mode():
            return np.asarray(self.model_.head(features).double().numpy())


class _Printed(Watch):
    """Prints a line at each evaluation."""

    def __init__(self, epochs: int) -> None:
        self.epochs = epochs

    def after_evaluation(self, records: Sequence[Record]) -> None:
        scores = [f", {r['environment']} {r['accuracy']:.1%}" for r in records if r["part"] == "test"]
        loss = mean_score(records, "batch", "loss")
        print(f"epoch {records[0]['epoch']:g} of {self.epochs}: loss {loss:.4f}{''.join(scores)}")


def fit_network(
    make: Callable[[], Classifier],
    data: EnvironmentSet,
    algorithm: str,
    settings: Mapping[str, Any],
    config: TrainConfig,
    *,
    seed: int,
    device: str,
    precision: str | None = None,
    evaluate: Mapping[str, EnvironmentSet] | None = None,
    watch: Sequence[Watch] = (),
) -> Trained:
    """Train the network that `make` builds, and return it on the CPU, in evaluation mode.

    Torch's global generators keep their state. Since algorithms draw from them, threads fit one after another, and the
    same seed gives the same model.
    """
    engine = Engine.of(device, precision=precision)
    rows = len(data) if config.batch_size is None else config.batch_size * len(data.environment_names)
    small = rows * data.inputs[:1].numel() <= SMALL_STEP
    devices = range(torch.cuda.device_count()) if engine.on_gpu else []
    with _ALONE, torch.random.fork_rng(devices), threads_set(1 if small else None):
        torch.manual_seed(seed)
        trained = train(
            make(),
            data,
            create(algorithm, setting_of(data), **settings),
            config,
            evaluate=evaluate or {},
            watch=watch,
            seed=seed,
            engine=engine,
        )
    trained.model.autocast = None
    trained.model.cpu().eval()
    return trained
