"""Data or weights that have changed under a run are noticed, and which of them is told."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
import torch
from PIL import Image
from safetensors.torch import save_file
from small import small_run, splits

from transferrisk.data import EnvironmentSet, Options, load_data
from transferrisk.errors import InputError
from transferrisk.training import Output, Request, train
from transferrisk.training.digests import SAMPLED, of_splits


def changed(part, **fields):
    """The small splits with something else in one part; a function is of what was there."""
    whole = splits()
    data = getattr(whole, part)
    new = {name: value(getattr(data, name)) for name, value in fields.items()}
    return replace(whole, **{part: replace(data, **new)})


def other(tensor):
    """With one number changed, the last."""
    tensor = tensor.clone()
    tensor.view(-1)[-1] = 1 - tensor.view(-1)[-1].clamp(0, 1)
    return tensor


CHANGES = [
    ("train", "inputs", {"inputs": other}),
    ("train", "labels", {"labels": other}),
    ("train", "environments", {"environments": other}),
    ("train", "environments", {"sources": lambda _: torch.arange(60) // 2}),
    ("training_domain", "names", {"class_names": lambda names: names[::-1]}),
    ("test_domain", "names", {"environment_names": lambda _: ("west",)}),
    ("test", "inputs", {"inputs": lambda inputs: inputs.double()}),
]


@pytest.mark.parametrize(("part", "what", "fields"), CHANGES, ids=lambda v: v if isinstance(v, str) else "")
def test_resuming_with_other_data_is_refused(tmp_path, part, what, fields):
    run = small_run("erm", evaluations=1)
    train(run, output=Output(tmp_path, say=print))
    train(replace(run, splits=splits()), output=Output(tmp_path, resume=True, say=print))
    with pytest.raises(InputError, match=rf"started otherwise \({part}\.{what}: changed since\): use the same"):
        train(replace(run, splits=changed(part, **fields)), output=Output(tmp_path, resume=True, say=print))


def test_a_digest_is_of_the_content_however_it_is_kept():
    whole = splits()
    backwards = whole.train.select(torch.arange(59, -1, -1))
    again = replace(whole, train=backwards.select(torch.arange(59, -1, -1)))
    assert of_splits(again) == of_splits(whole)
    assert of_splits(replace(whole, train=backwards)) != of_splits(whole)


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
    of_splits(replace(splits(), train=EnvironmentSet(inputs, where, where, ("a", "b"), ("x", "y"))))
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
        data = load_data(f"folder:{root}", Options(lazy=True, size=8))
        return of_splits(replace(splits(), train=data))

    for name in ("one", "moved"):
        write(tmp_path / name, 10)
    assert digests(tmp_path / "one") == digests(tmp_path / "moved")
    before = digests(tmp_path / "one")
    write(tmp_path / "one", 11)  # files of the same sizes
    after = digests(tmp_path / "one")
    assert [key for key in before if before[key] != after[key]] == ["digest.train.inputs"]


def test_weights_that_have_changed_are_refused(tmp_path):
    def request(**more):
        training = {"epochs": 1, "evaluations": 1}
        return Request(
            "gaussian", Options(), algorithm="erm", backbone="mlp:2", training=training, device="cpu", **more
        )

    def trained(folder, request, **options):
        return train(request.run(), output=Output(tmp_path / folder, say=print, **options))

    trained("first", request())
    trained("other", replace(request(), options=Options(seed=1)))
    init = tmp_path / "first" / "last.safetensors"
    trained("second", request(init=init))
    init.write_bytes((tmp_path / "other" / "last.safetensors").read_bytes())
    with pytest.raises(InputError, match=r"\(init: changed since\)"):
        trained("second", request(init=init), resume=True)

    weights = tmp_path / "weights.safetensors"
    state = {key: value + 1 for key, value in request().run().build_model().featuriser.network.state_dict().items()}
    save_file(state, weights)
    trained("third", request(weights=str(weights)))
    save_file({key: value + 1 for key, value in state.items()}, weights)
    with pytest.raises(InputError, match=r"\(weights: changed since\)"):
        trained("third", request(weights=str(weights)), resume=True)
