"""sine[:WIDTH]: one hidden layer, sin(A x + b)."""

from __future__ import annotations

from torch import Tensor, nn

from transferrisk.errors import InputError


class Sine(nn.Module):
    """(n, d) to (n, width)."""

    def __init__(self, in_features: int, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(in_features, width)

    def forward(self, vectors: Tensor) -> Tensor:
        features: Tensor = self.linear(vectors).sin()
        return features


def sine(shape: tuple[int, ...], argument: str) -> nn.Module:
    """A network for inputs of this shape; `argument` is the text after the colon of the name."""
    if len(shape) != 1:
        raise InputError(f"inputs of backbone 'sine' must be vectors, got shape {shape}: use another backbone")
    if argument and not (argument.isdecimal() and int(argument) > 0):
        raise InputError(f"the width of 'sine' must be an integer >= 1, got {argument!r}: write sine:64")
    return Sine(shape[0], int(argument or 64))
