"""What a criterion learns of the data and keeps: the environments, the classes and the weights alpha."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from ..errors import InputError


class Memory(nn.Module):
    """E environments and C classes, none of either before they are given or the first batch has shown them."""

    alpha: Tensor  # (E, E) weight of P (column), given Q (row); zero on the diagonal
    environment_ids: Tensor  # (E,) sorted
    class_count: Tensor  # () C, 0 while it is not known

    def __init__(self, num_classes: int | None) -> None:
        super().__init__()
        self.register_buffer("alpha", torch.empty(0, 0))
        self.register_buffer("environment_ids", torch.empty(0, dtype=torch.int64))
        self.register_buffer("class_count", torch.tensor(num_classes or 0))
        self.num_classes = num_classes

    @property
    def num_environments(self) -> int:
        return len(self.environment_ids)

    def _set_environments(self, ids: Tensor) -> None:
        ids = ids.unique()
        E = len(ids)
        if E < 2:
            raise InputError(f"{E} environment{'s' * (E != 1)} given: transfer needs at least two")
        with torch.inference_mode(False):  # a first batch may be one of evaluation; training goes on with these
            self.environment_ids = ids.to(torch.int64, copy=True)
            # Zero on the diagonal: Q is not transferred to itself.
            self.alpha = (1 - torch.eye(E, device=ids.device)) / (E - 1)

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *args: Any) -> None:
        """A state that knows its environments or classes must agree with a module that does.

        Buffers take the shape of what is loaded, so a module that has seen no batch can be restored; and the state of
        such a module leaves one that was told its environments as it is.
        """
        state = dict(state_dict)
        key = {name: prefix + name for name in ("environment_ids", "alpha", "class_count")}
        if all(name in state for name in key.values()):  # otherwise torch names what is missing
            ids, mine = state[key["environment_ids"]], self.environment_ids
            count, classes = int(state[key["class_count"]]), self.num_classes
            if len(mine) and len(ids) and not torch.equal(ids.cpu(), mine.cpu()):
                raise InputError(
                    f"the saved criterion has environments {ids.tolist()}, this one {mine.tolist()}: "
                    "build it with the same environments="
                )
            if classes and count and count != classes:
                raise InputError(
                    f"the saved criterion has {count} classes, this one {classes}: build it with the same num_classes="
                )
            if len(mine) and not len(ids):
                state |= {key["environment_ids"]: mine, key["alpha"]: self.alpha}
            elif len(ids) and not len(mine):
                self.environment_ids = torch.empty_like(ids, device=mine.device)
                self.alpha = torch.empty_like(state[key["alpha"]], device=mine.device)
            if classes and not count:
                state[key["class_count"]] = self.class_count
        super()._load_from_state_dict(state, prefix, *args)
        self.num_classes = int(self.class_count) or None
