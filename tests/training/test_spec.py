"""A training as plain values: what is not asked for is the paper's."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from small import at, sets, steps_of

from transferrisk.algorithms import parse_settings
from transferrisk.data import EnvironmentSet, Options, load_data
from transferrisk.errors import InputError
from transferrisk.models import load_model_folder
from transferrisk.models.saved import encode_tensors, read_tensors
from transferrisk.settings import as_json, dumps
from transferrisk.training import RunFolder, TrainConfig, TrainSpec, Watch, run_spec
from transferrisk.training.feed import SAMPLED, content_digests
from transferrisk.training.finetune import balanced_draw, few_samples, finetuning

SHORT = {"epochs": 1, "evaluations": 1}


class Look(Watch):
    """Keeps the run."""

    def begin(self, run):
        self.run = run


def looked_at(spec, **options):
    look = Look()
    trained = run_spec(spec, device="cpu", watch=[look], **options)
    return look.run, trained


def test_evaluations_end_with_the_last_step_and_never_before_the_first():
    assert TrainConfig(evaluations=3).evaluated(10) == {3, 7, 10}
    assert TrainConfig(evaluations=10).evaluated(2) == {1, 2}


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"epochs": 0}, "epochs must be .*>= 1.*, got 0"),
        ({"batch_size": "8"}, "batch_size must be .*, got '8'"),
        ({"record": ("iris",)}, r"record.*'irm', 'transfer', got 'iris'"),
        ({"lr": math.inf}, "lr must be .*, got inf"),
        ({"decay_at": 1.1}, "decay_at must be .*<= 1 .*got 1.1"),
    ],
)
def test_bad_config(config, message):
    with pytest.raises(InputError, match=message):
        TrainConfig(**config)


@pytest.mark.parametrize(
    ("name", "pairs", "expected"),
    [
        ("trm", ["ridge=1e-2", "bound=none", "query=random"], {"ridge": 0.01, "bound": None, "query": "random"}),
        ("trm", ["bound=2"], {"bound": 2.0}),
        ("mldg", ["order=2", "beta=1"], {"order": 2, "beta": 1.0}),
        ("trm", ["solver=sgd"], {"solver": "sgd"}),
    ],
)
def test_settings_have_the_types_of_the_config(name, pairs, expected):
    parsed = parse_settings(name, pairs)
    assert parsed == expected
    assert all(type(parsed[key]) is type(value) for key, value in expected.items())


# ---- the spec


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"data": "gausian"}, "'gausian'.*gaussian"),
        ({"algorithm": "tmr"}, "'tmr'.*'trm'"),
        ({"settings": {"rigde": 1}}, "trm: .*'rigde'.*'ridge'"),
        ({"settings": {"ridge": -1}}, "algorithm trm: ridge must be .*, got -1"),
        ({"training": {"batchsize": 3}}, "training: .*'batchsize'.*'batch_size'"),
        ({"training": {"lr": -1}}, "training: lr must be .*, got -1"),
        ({"training": {"augment": True}}, "augment"),
        ({"init": "a", "weights": "b"}, "'a' and 'b'"),
        ({"finetune_samples": 10}, "algorithm must be 'erm'.*got 'trm'"),
        ({"finetune_samples": 1, "algorithm": "erm"}, "finetune_samples must be .*>= 2.*, got 1"),
        ({"seed": -1}, "seed must be .*, got -1"),
        ({"precision": "fp8"}, "precision must be .*'fp8'"),
        ({"shift": "sideways"}, "shift must be .*'sideways'"),
        ({"bias": 0.9}, "bias must be left out.*'gaussian'"),
        ({"data": "10c-digits", "bias": 0.9, "biases": [1.0, 0.9]}, "biases must .* got both"),
    ],
)
def test_what_cannot_be_asked_for(values, message):
    with pytest.raises(InputError, match=message):
        TrainSpec(**{"data": "gaussian", "algorithm": "trm", **values})


def test_a_spec_goes_through_json_and_its_digest_counts_what_is_given():
    spec = TrainSpec("10c-digits", "trm", settings={"ridge": 1}, training={"record": ["irm"]}, bias=0.85)
    again = TrainSpec(**json.loads(dumps(spec)))
    assert again == spec
    assert (again.settings, again.training) == ({"ridge": 1.0}, {"record": ("irm",)})
    assert again.digest == spec.digest != replace(spec, seed=1).digest
    assert TrainSpec(**{k: v for k, v in as_json(spec).items() if v is not None}).digest == spec.digest


def test_resolving_writes_out_what_is_known_before_the_data_is_read():
    spec = TrainSpec("10c-digits", algorithm="irm", bias=0.85).resolve()
    assert spec.settings == {"penalty_weight": 1.0, "start_epoch": 1.0, "penalty": "scale"}
    assert (spec.training["lr"], spec.training["epochs"], spec.training["record"]) == (0.1, 10, ())
    assert (spec.shift, spec.first_bias, spec.bias, spec.biases) == ("label-correlated", 1.0, 0.85, None)
    assert (spec.backbone, spec.weights, spec.augment) == ("cnn", "none", False)
    assert spec.resolve() == spec
    three = TrainSpec("10c-digits", "trm", biases=(1.0, 0.9, 0.8)).resolve()
    assert (three.biases, three.bias) == ((1.0, 0.9, 0.8), None)
    plain = TrainSpec("10c-digits", "trm").resolve()
    assert (plain.shift, plain.bias) == (None, None)
    oracle = [TrainSpec("10c-digits", "trm", oracle=True, shift="combined", bias=bias).resolve() for bias in (0.5, 0.9)]
    assert oracle[0].digest == oracle[1].digest
    tuned = TrainSpec("10c-digits", algorithm="erm", finetune_samples=20).resolve()
    assert (tuned.training["lr"], tuned.training["batch_size"], tuned.training["epochs"]) == (
        pytest.approx(0.01),
        20,
        100,
    )


def test_files_count_by_their_content(tmp_path):
    path = tmp_path / "visits.csv"
    path.write_text("site,y,x\na,0,1\n")
    spec = TrainSpec(f"table:{path}", "trm", label="y", environment="site")
    first = spec.resolve()
    path.write_text("site,y,x\na,0,2\n")
    assert first.content != spec.resolve().content
    with pytest.raises(InputError, match=r"none\.csv"):
        TrainSpec(f"table:{tmp_path / 'none.csv'}", "trm").resolve()
    with pytest.raises(InputError, match=r"weights must be a file or one of .*, got 'nowhere'"):
        TrainSpec("gaussian", "trm", weights="nowhere").resolve()


def test_what_is_asked_for_takes_the_place_of_the_protocol():
    spec = TrainSpec("gaussian", "irm", seed=2, training={"epochs": 3, "lr": 0.5, "evaluations": 1}, backbone="linear")
    run, trained = looked_at(spec)
    assert (run.config.epochs, run.config.lr, run.config.batch_size) == (3, 0.5, 128)
    about = run.description["spec"]
    assert (about["data"], about["backbone"], about["settings"]["penalty_weight"]) == ("gaussian", "linear", 1.0)
    assert (about["seed"], about["precision"], about["training"]["momentum"]) == (2, "fp32", 0.9)
    assert run.description["samples"]["train"] == 4800
    assert steps_of(trained.history) == [36]
    with pytest.raises(InputError, match=r"augment must be False .*vectors"):
        run_spec(TrainSpec("gaussian", "trm", augment=True))


@pytest.fixture
def four_sites(tmp_path):
    rng = np.random.default_rng(0)
    sites = np.repeat(["a", "b", "c", "d"], 40)
    np.savez(tmp_path / "e.npz", features=rng.normal(size=(160, 3)), labels=np.tile([0, 1], 80), environments=sites)
    return f"npz:{tmp_path / 'e.npz'}"


def test_a_held_out_environment_takes_the_place_of_the_test(four_sites):
    spec = TrainSpec(four_sites, "erm", test_env="d", hold_out="b", training={"batch_size": 8, **SHORT})
    run, trained = looked_at(spec)
    assert run.data.environment_names == ("a", "c")
    step = trained.state.step
    assert set(at(trained.history, step, "test")) == {"b"}
    assert run.description["spec"]["hold_out"] == "b"


def test_what_cannot_be_held_out(four_sites):
    for test, held in (("d", "d"), ("d", "x"), ("x", "a")):
        with pytest.raises(InputError, match=rf"two of a, b, c, d, got {test} and {held}"):
            run_spec(TrainSpec(four_sites, "trm", test_env=test, hold_out=held))
    with pytest.raises(InputError, match=r"--hold-out needs --test-env.* got a"):
        run_spec(TrainSpec(four_sites, "trm", hold_out="a"))
    with pytest.raises(InputError, match=r"--hold-out must .* got far"):
        run_spec(TrainSpec("gaussian", "trm", hold_out="far"))


# ---- weights to begin with, and fine-tuning


def uneven(counts=(20, 5, 2)):
    labels = torch.repeat_interleave(torch.arange(3), torch.tensor(counts))
    return EnvironmentSet(torch.randn(len(labels), 4), labels, torch.zeros_like(labels), ("east",), ("a", "b", "c"))


@pytest.mark.parametrize(("count", "expected"), [(6, [2, 2, 2]), (12, [5, 5, 2]), (25, [18, 5, 2])])
def test_classes_are_balanced_as_far_as_they_last(count, expected):
    data = uneven()
    drawn = balanced_draw(data, count, seed=0)
    assert len(drawn.unique()) == count
    assert data.labels[drawn].bincount(minlength=3).tolist() == expected
    assert torch.equal(drawn, balanced_draw(data, count, seed=0))
    assert not torch.equal(drawn, balanced_draw(data, count, seed=1))


def test_nothing_that_is_trained_on_is_tested_on():
    test = replace(sets()["test"], sources=torch.arange(60) // 4)
    drawn, rest = few_samples(test, 6, seed=0)
    assert len(drawn) == 6
    seen = set(drawn.sources.tolist())
    assert not seen & set(rest.sources.tolist())
    assert len(rest) == 60 - 4 * len(seen)
    assert drawn.environment_names == ("east",)


@pytest.mark.parametrize("count", [1, 27, 100])
def test_too_few_or_too_many(count):
    with pytest.raises(InputError, match=f"2 to 26, .*got {count}"):
        few_samples(uneven(), count, 0)
    with pytest.raises(InputError, match=r"finetune_samples must .* got 6 of 60"):
        few_samples(replace(sets()["test"], sources=torch.zeros(60, dtype=torch.long)), 6, 0)


def test_the_rate_is_that_at_which_training_ended():
    config = finetuning(TrainConfig(lr=0.1, decay_at=0.4, batch_size=128), 20)
    assert (config.lr, config.rate(99, 100), config.batch_size) == (pytest.approx(0.01), pytest.approx(0.01), 20)
    assert finetuning(TrainConfig(lr=1e-4, decay_at=1.0), 500).lr == 1e-4


@pytest.mark.parametrize(
    ("batch_size", "count", "given", "epochs"),
    [
        (128, 10, {}, 100), (128, 500, {}, 34), (8, 500, {}, 10), (None, 20, {}, 100),
        (128, 500, {"batch_size": 500}, 100), (128, 500, {"batch_size": 10}, 10), (128, 5, {"batch_size": 10}, 100),
        (128, 10, {"epochs": 3}, 3),
    ],
)  # fmt: skip
def test_a_few_samples_are_seen_often_enough(batch_size, count, given, epochs):
    config = finetuning(TrainConfig(epochs=10, batch_size=batch_size), count, given)
    assert config.epochs == epochs
    assert {name: getattr(config, name) for name in given} == given


@pytest.fixture
def first(tmp_path):
    spec = TrainSpec("gaussian", "erm", backbone="mlp:5", training=SHORT)
    run_spec(spec, device="cpu", watch=[RunFolder(tmp_path / "first", say=print)])
    return str(tmp_path / "first")


def test_a_saved_model_is_what_was_trained(first):
    saved = load_model_folder(first)
    assert (saved.backbone, saved.input_shape, saved.classes) == ("mlp:5", (15,), ("-1", "+1"))
    assert saved.about["spec"]["algorithm"] == "erm"
    assert saved.about["step"] == 12
    assert not saved.network.training


def test_fine_tuning_begins_with_the_weights_of_the_model_and_nothing_else(first):
    spec = TrainSpec("gaussian", "erm", seed=3, init=first, finetune_samples=10, training={"lr": 0.0, **SHORT})
    run, trained = looked_at(spec)
    assert run.description["spec"]["backbone"] == "mlp:5"
    assert run.description["spec"]["init"] == "first"
    assert len(run.data) == 10
    assert run.data.labels.bincount().tolist() == [5, 5]
    assert {record["part"] for record in trained.history} == {"train", "test_domain", "test", "batch"}
    saved = load_model_folder(first).network.state_dict()
    for name, value in trained.model.state_dict().items():
        assert torch.equal(value, saved[name]), name


def test_it_learns_the_new_environment(first):
    """What helped in training misleads in `far`; a few of its samples mend that."""

    def tested(**values):
        spec = TrainSpec("gaussian", "erm", finetune_samples=60, **values)
        history = run_spec(spec, device="cpu").history
        return at(history, history[-1]["step"], "test")["far"]["accuracy"]

    tuned = tested(init=first, training={"epochs": 60, "lr": 0.05, "evaluations": 2})
    assert tuned > 0.8
    assert tested(backbone="mlp:5", training={"epochs": 1, "lr": 0.0}) < tuned


def test_what_cannot_be_fine_tuned(first):
    with pytest.raises(InputError, match=r"record must .* got 'transfer'"):
        run_spec(TrainSpec("gaussian", "erm", init=first, finetune_samples=10, training={"record": ("transfer",)}))
    with pytest.raises(InputError, match=r"does not fit this model .*mlp:5"):
        run_spec(TrainSpec("gaussian", "erm", init=first, backbone="mlp:6"), device="cpu")
    with pytest.raises(InputError, match="nowhere does not exist"):
        run_spec(TrainSpec("gaussian", "erm", init="nowhere"))


@pytest.mark.parametrize("change", [{"backbone": [[]]}, {"classes": "ab"}, {"input_shape": ["3"]}, {"about": []}])
def test_a_forged_description_of_init_is_refused(first, tmp_path, change):
    tensors, header = read_tensors(tmp_path / "first" / "model.safetensors")
    (tmp_path / "first" / "model.safetensors").write_bytes(encode_tensors(tensors, header | change))
    with pytest.raises(InputError, match=next(iter(change))):
        run_spec(TrainSpec("gaussian", "erm", init=first), device="cpu")


def test_a_model_that_another_program_trained_can_be_init(first, tmp_path):
    tensors, header = read_tensors(tmp_path / "first" / "model.safetensors")
    for name in ("model.safetensors", "model.json"):
        (tmp_path / "first" / name).unlink()
    header["about"]["spec"] = [1]
    (tmp_path / "first" / "model.safetensors").write_bytes(encode_tensors(tensors, header))
    assert run_spec(TrainSpec("gaussian", "erm", init=first, training=SHORT), device="cpu").history


def test_weights_that_have_changed_are_refused(first, tmp_path):
    spec = TrainSpec("gaussian", "erm", backbone="mlp:5", training=SHORT)

    def trained(folder, spec, **options):
        return run_spec(spec, device="cpu", watch=[RunFolder(tmp_path / folder, say=print, **options)])

    trained("other", replace(spec, seed=1))
    trained("second", replace(spec, init=first))
    model = tmp_path / "first" / "model.safetensors"
    for name in ("model.safetensors", "model.json"):
        (tmp_path / "first" / name).write_bytes((tmp_path / "other" / name).read_bytes())
    with pytest.raises(InputError, match="weights_content"):
        trained("second", replace(spec, init=first), resume=True)

    weights = tmp_path / "weights.safetensors"
    prefix = "featuriser.network."
    own, _ = read_tensors(model)
    state = {key.removeprefix(prefix): value + 1 for key, value in own.items() if key.startswith(prefix)}
    save_file(state, weights)
    trained("third", replace(spec, weights=str(weights)))
    save_file({key: value + 1 for key, value in state.items()}, weights)
    with pytest.raises(InputError, match="weights_content"):
        trained("third", replace(spec, weights=str(weights)), resume=True)


# ---- digests


def test_a_digest_is_of_the_content_however_it_is_kept():
    data = sets()["train"]
    backwards = data.select(torch.arange(59, -1, -1))
    assert content_digests(backwards.select(torch.arange(59, -1, -1))) == content_digests(data)
    assert content_digests(backwards) != content_digests(data)


class Counted:
    """Inputs that say which of them were looked at."""

    def __init__(self, stored):
        self.stored, self.seen = stored, set()

    def __len__(self):
        return len(self.stored)

    def __getitem__(self, index):
        self.seen |= set(torch.arange(len(self))[index].tolist())
        return self.stored[index]


def test_a_large_set_is_sampled_from_end_to_end():
    n, size = 60_000, 3 * 28 * 28
    inputs = Counted(torch.zeros(1, size, dtype=torch.uint8).expand(n, -1))
    where = torch.arange(n) % 2
    content_digests(EnvironmentSet(inputs, where, where, ("a", "b"), ("x", "y")))
    seen = sorted(inputs.seen)
    assert (seen[0], seen[-1]) == (0, n - 1)
    assert SAMPLED // size - 1 <= len(seen) <= SAMPLED // size + 1
    gaps = [b - a for a, b in pairwise(seen)]
    assert max(gaps) - min(gaps) <= 1


def test_images_that_are_not_decoded_count_by_their_files(tmp_path):
    def write(root, shade):
        for number, site in enumerate(("a", "b", "c")):
            for kind in ("cat", "dog"):
                (root / site / kind).mkdir(parents=True, exist_ok=True)
                for i in range(4):
                    Image.new("RGB", (8, 8), (40 * i, 60 * number, shade)).save(root / site / kind / f"{i}.bmp")

    def digests(root):
        return content_digests(load_data(f"folder:{root}", Options(lazy=True, size=8)))

    for name in ("one", "moved"):
        write(tmp_path / name, 10)
    assert digests(tmp_path / "one") == digests(tmp_path / "moved")
    before = digests(tmp_path / "one")
    write(tmp_path / "one", 11)  # files of the same sizes
    after = digests(tmp_path / "one")
    assert [key for key in before if before[key] != after[key]] == ["inputs"]
