"""Recipes as files."""

from __future__ import annotations

SMALL = """
title = "small"
seeds = 2
[settings]
data = "gaussian"
training = { epochs = 1, evaluations = 1 }
[vary]
size = [8, 16]
[methods]
ERM = { algorithm = "erm" }
GroupDRO = { algorithm = "groupdro", grid = "paper" }
"""


def write(folder, name, text):
    path = folder / f"{name}.toml"
    path.write_text(text)
    return path
