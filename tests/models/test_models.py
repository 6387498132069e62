"""Shapes and the decomposition into features and head."""

from __future__ import annotations

import torch

from transferrisk.models import Classifier, SmallCNN


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
