"""A weighted average of classifiers as a network, so that it can be saved, exported and calibrated as one of them.

inputs   (n, k): member m takes the columns start_m to start_m + width_m
logits   (n, C): log sum_m w_m p_m(x), with w on the simplex and p_m the member's softmax
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Literal

import torch
from torch import Tensor, nn

from ..errors import InputError
from ..settings import Bound, Count, Positive, Settings
from .classifier import Classifier, OnFrozen
from .trees import Sizes

BLEND = "blend"  # the name on top of the backbone in a saved model
EXACT = 1e-6  # by which the sum of weights may differ from 1


@dataclass(frozen=True)
class Member(Settings):
    """A member of an average, in the description of a saved model.

    name           name of the candidate, as in `trm fit`
    weight         weight in the average
    start, width   first column of its inputs, and their number
    on_top, dtype  its network, as in the description of a saved model
    sizes          sizes of its trees; None: it has no trees
    """

    name: str
    weight: Positive
    width: Count
    start: Annotated[int, Bound(least=0)] = 0
    on_top: str = ""
    dtype: Literal["float32", "float64"] = "float32"
    sizes: Sizes | None = None


def check_members(members: Sequence[Member], columns: int) -> None:
    """Refuse weights that are not on the simplex, and members with columns that the inputs do not have."""
    if abs(sum(member.weight for member in members) - 1) > EXACT:
        raise InputError(f"the weights of members must sum to 1, got {[member.weight for member in members]}")
    for member in members:
        if member.start + member.width > columns:
            raise InputError(
                f"member {member.name!r} must take columns among {columns}, got {member.width} from {member.start} on"
            )


class Blend(nn.Module):
    """Network from inputs (n, k) to the logarithms of the averaged probabilities, (n, C), in float64."""

    weights: Tensor

    def __init__(self, members: Sequence[Member], networks: Sequence[Classifier]) -> None:
        super().__init__()
        self.spans = [(member.start, member.start + member.width) for member in members]
        self.members = nn.ModuleList(networks)
        weights = torch.tensor([member.weight for member in members], dtype=torch.float64)
        self.register_buffer("weights", weights, persistent=False)  # the description keeps them

    def forward(self, inputs: Tensor) -> Tensor:
        pairs = zip(self.members, self.spans, strict=True)
        logs = [member(inputs[:, start:end]).double().log_softmax(1) for member, (start, end) in pairs]
        return torch.logsumexp(torch.stack(logs) + self.weights.log()[:, None, None], 0)


def blend_on(backbone: Classifier, members: Sequence[Member], networks: Sequence[Classifier]) -> Classifier:
    """Return the average of networks on the features of a backbone, with a head that does not change its logits."""
    classes = networks[0].head.out_features
    top = Classifier(Blend(members, networks), classes, classes).requires_grad_(False)
    top.head.double()
    top.head.weight.copy_(torch.eye(classes))
    top.head.bias.zero_()
    return OnFrozen(backbone, top, nn.Identity()).eval()
