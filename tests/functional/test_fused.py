"""The fused kernels on a CPU, by Triton's interpreter, against the exact answer; on a GPU see test_cuda_fused.py."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from transferrisk.functional.fused import fits, power_of_two, side

TESTS = Path(__file__).parents[1]

TENSOR_CORES = """
import numpy as np
from triton.runtime import interpreter

def cut(x):
    return (np.ascontiguousarray(x, np.float32).view(np.uint32) & np.uint32(0xFFFFE000)).view(np.float32)

def create_dot(self, a, b, d, precision, most, plain=interpreter.InterpreterBuilder.create_dot):
    # The interpreter multiplies float32 as it is; a GPU drops the last thirteen bits of what it multiplies as tf32.
    name = str(precision).rpartition(".")[2]
    if a.data.dtype != np.float32 or name not in ("TF32", "TF32x3"):
        return plain(self, a, b, d, precision, most)
    high, other = cut(a.data), cut(b.data)
    product = high @ other
    if name == "TF32x3":
        product = cut(a.data - high) @ other + high @ cut(b.data - other) + product
    return interpreter.TensorHandle(product.astype(d.data.dtype) + d.data, d.dtype.scalar)

interpreter.InterpreterBuilder.create_dot = create_dot
"""

CODE = """
import sys, torch
sys.path.insert(0, sys.argv[1])
from problems import random_batch, relative
from transferrisk.functional.fused import fused_transfer_risk, group_fused, side
from transferrisk.functional.transfer import group, transfer_risk
from transferrisk.functional.weights import exponentiated_gradient, given_weights, uniform_weights, worst_weights

def compare(sizes, classes, width, scale=1.0, rule="given", queries=None, **options):
    batch, E = random_batch(0, sizes, classes, width), len(sizes)
    asked = torch.arange(E) if queries is None else queries
    alpha = batch.alpha[asked]
    rules = {"given": given_weights(alpha), "worst": worst_weights, "uniform": uniform_weights}
    exact, single = ((scale * batch.features).to(t).requires_grad_() for t in (torch.float64, torch.float32))
    expected = transfer_risk(
        exact, batch.labels, batch.index, E, classes, 1e-3, weights=rules[rule], queries=queries, **options
    )
    expected.risk.backward()
    grouped = group(single.detach(), batch.labels, batch.index, E, classes, side(max(sizes)))
    found = fused_transfer_risk(single, grouped, asked, alpha.float(), rule, 1e-3, **options)
    found.risk.backward()
    torch.testing.assert_close(found.risk.double(), expected.risk, rtol=1e-3, atol=1e-6)
    assert relative(single.grad.double(), exact.grad) < 1e-3, (sizes, relative(single.grad.double(), exact.grad))
    assert found.solution.converged.all()

compare([16, 16], 3, 5)
compare([20, 30, 9], 4, 12, rule="worst")
compare([20, 30], 4, 12, rule="uniform", bound=0.5)
compare([20, 30], 4, 12, gradient_matching=0.0)
compare([16, 20, 10], 3, 6, queries=torch.tensor([1]))
compare([32, 32], 7, 300, scale=3.0)

batch = random_batch(3, [20, 20, 20], 4, 7)
order = torch.argsort(batch.index, stable=True)
features, labels, index = batch.features[order].float(), batch.labels[order], batch.index[order]
ids = torch.tensor([5, 15, 25])
packed, plain = group_fused(features, labels, ids[index], ids, 4, 20), group(features, labels, index, 3, 4, 32)
for name in ("rows", "labels", "weights"):
    torch.testing.assert_close(getattr(packed, name), getattr(plain, name))
result = fused_transfer_risk(features, packed, torch.arange(3), batch.alpha.float(), "given", 1e-3, rate=0.5)
others = ~torch.eye(3, dtype=torch.bool)
torch.testing.assert_close(result.moved, exponentiated_gradient(batch.alpha.float(), result.matrix, 0.5, others))
wrong = ids[index].clone()
wrong[0] = 25
packed = group_fused(features, labels, wrong, ids, 4, 20)
assert fused_transfer_risk(features, packed, torch.arange(3), batch.alpha.float(), "given", 1e-3).risk.isnan()
print("all agree")
"""


HARD = """
import sys, numpy as np, torch
sys.path.insert(0, sys.argv[1])
from problems import relative
from transferrisk.functional.fused import fused_transfer_risk
from transferrisk.functional.transfer import group, transfer_risk
from transferrisk.functional.weights import uniform_weights

kept = np.load(f"{sys.argv[1]}/functional/hard_batch.npz")  # see test_cuda_fused.py
features, labels, index = (torch.from_numpy(kept[key]) for key in ("features", "labels", "environments"))
labels, index = labels.long(), index.long()
single, exact = features.clone().requires_grad_(), features.double().requires_grad_()
grouped = group(features, labels, index, 2, 10, 128)
found = fused_transfer_risk(single, grouped, torch.arange(2), 1 - torch.eye(2), "given", 1e-4)
expected = transfer_risk(exact, labels, index, 2, 10, 1e-4, weights=uniform_weights)
found.risk.backward()
expected.risk.backward()
torch.testing.assert_close(found.risk.double(), expected.risk, rtol=1e-3, atol=0)
assert relative(single.grad.double(), exact.grad) < 2e-2
assert found.solution.converged.all()
print("all agree")
"""


@pytest.mark.skipif(find_spec("triton") is None, reason="Triton is not installed")
@pytest.mark.parametrize("code", [CODE, TENSOR_CORES + HARD], ids=["as float32", "a hard batch as tf32"])
def test_interpreted_kernels_agree_with_the_exact_answer(code):
    environment = os.environ | {"TRITON_INTERPRET": "1"}
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", code, str(TESTS)],
        capture_output=True, text=True, env=environment, check=False,
    )  # fmt: skip
    assert done.stdout.strip() == "all agree", done.stderr[-2000:]


def test_sizes():
    assert [power_of_two(n) for n in (1, 2, 3, 16, 17, 128)] == [1, 2, 4, 16, 32, 128]
    assert [side(n) for n in (1, 16, 17, 100)] == [16, 16, 32, 128]
    assert fits(128, 10)
    assert fits(32, 65)
    assert not fits(129, 2)
    assert not fits(128, 65)
