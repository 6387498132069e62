"""Shapes, the decomposition into features and head, and WRN-16-2 against its published figures."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from transferrisk.errors import InputError
from transferrisk.models import Classifier, SmallCNN, WideResNet, build_model, features_of
from transferrisk.models.classifier import CHUNK


def test_papers_cnn_has_128_features():
    cnn = SmallCNN()
    assert cnn.num_features == 128
    assert cnn(torch.zeros(2, 3, 28, 28)).shape == (2, 128)
    assert [tuple(p.shape[:2]) for p in cnn.parameters() if p.dim() == 4] == [(64, 3), (128, 64), (128, 128)]


def test_logits_are_the_predictor_on_the_features():
    cnn = SmallCNN(width=4)
    model = Classifier(cnn, cnn.num_features, 3).eval()
    images = torch.rand(5, 3, 10, 10)
    features = model.featurise(images)
    rows = torch.cat([features, torch.ones(5, 1)], 1)
    torch.testing.assert_close(rows @ model.predictor.T, model(images))
    assert not model.predictor.requires_grad


def parameters(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())


@pytest.mark.parametrize(("classes", "published"), [(10, 691_674), (100, 703_284)])  # CIFAR-10 and CIFAR-100: "0.7M"
def test_as_many_parameters_as_published(classes, published):
    assert parameters(build_model("wrn-16-2", classes, (3, 32, 32))) == published


def test_depth_and_width_of_the_best_known_one():
    assert round(parameters(WideResNet(28, 10)) / 1e6, 1) == 36.5


@pytest.mark.parametrize(("size", "maps"), [(64, 16), (32, 8), (30, 8)])
def test_strides_are_1_2_2(size, maps):
    network = WideResNet().eval()
    images = torch.rand(2, 3, size, size)
    assert network.blocks(network.conv(images)).shape == (2, 128, maps, maps)
    assert network(images).shape == (2, 128)


def test_sixteen_layers_are_convolutions_and_the_head():
    convolutions = [m for m in WideResNet().modules() if isinstance(m, nn.Conv2d)]
    assert len([m for m in convolutions if m.kernel_size == (3, 3)]) == 16 - 4 + 1  # three more are shortcuts
    assert [(m.in_channels, m.out_channels, m.stride[0]) for m in convolutions if m.kernel_size == (1, 1)] == [
        (16, 32, 1),
        (32, 64, 2),
        (64, 128, 2),
    ]


def test_a_block_that_adds_nothing_is_the_identity():
    network = WideResNet()
    block = network.blocks[1]
    nn.init.zeros_(block.conv2.weight)
    maps = torch.randn(2, 32, 6, 6)
    assert torch.equal(block(maps), maps)


def test_convolutions_start_at_fan_out():
    torch.manual_seed(0)
    weight = WideResNet().blocks[-1].conv2.weight  # 128 x 128 x 3 x 3
    assert float(weight.detach().std()) == pytest.approx((2 / (128 * 9)) ** 0.5, rel=0.01)


def test_depths_that_do_not_exist():
    with pytest.raises(InputError, match=r"depth .* must be one of 10, 16, .*, got 18"):
        WideResNet(18)


def test_features_of_a_network_for_one_number_of_inputs_are_the_same(monkeypatch):
    """As a compiled one is: the last inputs come with some of those before them."""
    monkeypatch.setitem(CHUNK, "cpu", 4)
    model, inputs, sizes = Classifier(nn.Linear(3, 5), 5, 2), torch.randn(10, 3), []

    def apply(network, some):
        sizes.append(len(some))
        return network(some)

    expected = features_of(model, inputs.__getitem__, 10)
    model.apply_featuriser = apply
    torch.testing.assert_close(features_of(model, inputs.__getitem__, 10), expected)
    assert sizes == [4, 4, 4]
    assert len(features_of(model, inputs.__getitem__, 3)) == 3
