"""Suite-wide settings: reproducible property tests, no threads fighting over two cores."""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from hypothesis import HealthCheck, settings

sys.path.insert(0, str(Path(__file__).parent))  # tests/problems.py is importable from every test

settings.register_profile(
    "suite", deadline=None, derandomize=True, max_examples=25, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("suite")
torch.set_num_threads(1)
