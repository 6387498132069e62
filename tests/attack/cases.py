"""Bad input for every command: good files, one of them spoilt, and good options, some of them spoilt as well."""

from __future__ import annotations

import gzip
import io
import json
import os
import random
import shutil
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import torch
import typer
from PIL import Image

from transferrisk.cli.app import app
from transferrisk.models.saved import encode_tensors, read_tensors

DIGITS = "9" * 5000
ESCAPE = "\x1b[31mred\x1b]0;title\x07"
WORDS = [
    "", " ", "-1", "0", "1", "2", "1.5", "1e308", "-1e308", "nan", "inf", "9" * 20, "-" + "9" * 20, DIGITS, ESCAPE,
    "\udcff", "a" * 5000, "../..", ".", "/", "/dev/null", "/dev/full", "/proc/self/mem", "/missing/x", "none", "=1+1",
    "--help", "-", "--", "{}", "[]", "null", "true", "%s", "{x}", "[red]", "\n", "\t", "🙂" * 100, "y", "site", "x0", "y,y",
    "x0,nowhere", "ridge=1e308", "ridge=-1", f"ridge={DIGITS}", "ridge=", "=", "trm.ridge=1", "erm", "trm,erm", "mlp:0",
    "mlp:" + "9" * 20, "mlp:-1", "linear:", "cnn", "no_such", "resnet18", "cpu", "cuda:99", "auto", "table.csv", "own",
    "model", "run", "weights.pth", "weights.safetensors", "schema.json", "list.jsonl", "rows.npz", "s3://x", "file://",
    "http://127.0.0.1:1/x", "~nobody/x", "~", "*.csv", "con", "\ufeff", "a\u202eb", "0x10", "1_0", "١", "1,1", "1.0,0.9",
]  # fmt: skip
COUNTS = (
    "--workers",
    "--devices",
    "--loaders",
    "--threads",
    "--executor",
    "--address",
    "--epochs",
    "--seeds",
    "--repeats",
)
"""Options that more processes or longer work follow from, for which only what is refused is tried."""
VALUES: list[Any] = [
    None, True, False, 0, -1, 1, 10**30, 1e308, -0.0, float("nan"), "", "x", ESCAPE, "\ud800", DIGITS, [], {}, [[]], [None],
    {"x": []}, [1] * 3, "../x", "=1", 2**63, 1e-320, ["x", "x"], "nan", "a" * 3000,
]  # fmt: skip


@dataclass(frozen=True)
class Case:
    name: str
    arguments: tuple[str, ...]
    input_mib: float


def options_of(command: str) -> list[str]:
    """The options of a command, such as --label."""
    found: Any = typer.main.get_command(app)
    for word in command.split():
        found = found.commands[word]
    return [
        option
        for parameter in found.params
        for option in (*parameter.opts, *parameter.secondary_opts)
        if "--" in option
    ]


def write_good_files(folder: Path, trm: Callable[[Sequence[str], Path], None]) -> None:
    """Everything that commands take, whole: `trm` runs a command that has to succeed."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(60, 3))
    frame = pd.DataFrame(x, columns=["x0", "x1", "x2"]).assign(
        kind=np.array(["red", "green", "blue"])[np.arange(60) % 3], site=np.array(["a", "b", "c"])[np.arange(60) % 3],
        y=np.where(x[:, 0] + rng.normal(size=60) > 0, "yes", "no"),
    )  # fmt: skip
    frame.to_csv(folder / "table.csv", index=False)
    frame.to_parquet(folder / "table.parquet")
    np.savez(folder / "rows.npz", features=x, labels=frame["y"].to_numpy(str), environments=frame["site"].to_numpy(str))
    records = []
    for site in "ab":
        for kind in ("cat", "dog"):
            (folder / "own" / site / kind).mkdir(parents=True)
            for i in range(3):
                path = Path("own", site, kind, f"{i}.png")
                Image.fromarray(rng.integers(0, 255, (8, 8, 3), dtype=np.uint8)).save(folder / path)
                records.append(json.dumps({"path": str(path), "label": kind, "environment": site}))
    (folder / "list.jsonl").write_text("\n".join(records))
    with tarfile.open(folder / "own.tar", "w") as archive:
        archive.add(folder / "own", "own")
    shutil.make_archive(str(folder / "own"), "zip", folder / "own")
    network = torch.nn.Sequential(torch.nn.Linear(3, 8), torch.nn.ReLU())
    torch.save(network.state_dict(), folder / "weights.pth")
    (folder / "weights.safetensors").write_bytes(encode_tensors(network.state_dict(), {}))
    (folder / "recipe.toml").write_text(
        'title = "small"\nseeds = 1\n[settings]\ndata = "gaussian"\ntraining = { epochs = 1, evaluations = 1 }\n'
        '[methods]\nERM = { algorithm = "erm" }\nTRM = { algorithm = "trm" }\n'
    )
    table = ["--label", "y", "--environment", "site"]
    trm(["fit", "table.csv", *table, "--output", "model", "--algorithms", "linear,erm", "--epochs", "1"], folder)
    trm(["train", "--data", "npz:rows.npz", "--test-env", "c", "--output", "run", "--epochs", "1", "--quiet"], folder)
    trm(["experiment", "recipe.toml", "--output", "results", "--workers", "1", "--quiet"], folder)
    shutil.copy(folder / "model" / "schema.json", folder / "schema.json")


TABLE = ("--label", "y", "--environment", "site")
OWN = ("--size", "8", "--backbone", "cnn:4", "--no-compare", "--algorithm", "erm", "--epochs", "1")
QUICK = ("--no-compare", "--algorithm", "linear", "--epochs", "1")
COMMANDS: list[tuple[str, tuple[str, ...], tuple[str, ...]]] = [
    ("fit", ("table.csv", *TABLE, *QUICK, "--output", "new"), ("table.csv",)),
    ("fit", ("table.csv", *TABLE, *QUICK, "--schema", "schema.json", "--output", "new"), ("schema.json", "table.csv")),
    ("fit", ("table.parquet", *TABLE, *QUICK, "--output", "model", "--force"), ("table.parquet",)),
    ("fit", ("rows.npz", *QUICK, "--output", "new"), ("rows.npz",)),
    ("fit", ("folder:own", *OWN, "--output", "new"), ("own",)),
    ("fit", ("manifest:list.jsonl", *OWN, "--output", "new"), ("list.jsonl", "own")),
    ("predict", ("model", "table.csv", "--output", "p.csv"), ("table.csv", "model")),
    ("predict", ("model", "table.parquet", "--output", "-"), ("model/model.safetensors", "table.parquet")),
    ("predict", ("model", "table.csv", "--output", "p.parquet", "--id", "kind"), ("model/model.json", "table.csv")),
    ("export", ("model", "--output", "model.onnx"), ("model/model.safetensors",)),
    ("audit", ("table.csv", *TABLE, "--folds", "2", "--bootstrap", "5", "--output", "a.html"), ("table.csv",)),
    ("audit", ("rows.npz", "--folds", "2", "--bootstrap", "5", "--output", "a.html"), ("rows.npz",)),
    ("audit", ("table.csv", *TABLE, "--model", "model", "--folds", "2", "--bootstrap", "5"), ("model", "table.csv")),
    ("train", ("--data", "npz:rows.npz", "--test-env", "c", "--epochs", "1", "--output", "new"), ("rows.npz",)),
    ("train", ("--data", "npz:rows.npz", "--test-env", "c", "--epochs", "1", "--output", "run", "--resume"), ("run",)),
    ("train", ("--data", "npz:rows.npz", "--test-env", "c", "--epochs", "1", "--backbone", "mlp:8", "--output", "new",
               "--weights", "weights.pth"), ("weights.pth",)),
    ("train", ("--data", "npz:rows.npz", "--test-env", "c", "--epochs", "1", "--backbone", "mlp:8", "--output", "new",
               "--weights", "weights.safetensors"), ("weights.safetensors",)),
    ("train", ("--data", "npz:rows.npz", "--test-env", "c", "--epochs", "1", "--output", "new", "--init", "run"), ("run",)),
    ("report", ("results", "--output", "page"), ("results",)),
    ("experiment", ("recipe.toml", "--dry-run", "--output", "results"), ("recipe.toml",)),
    ("experiment", ("recipe.toml", "--workers", "1", "--output", "results"), ("results",)),
    ("data list", (), ()),
    ("data check", ("folder:own", "--size", "8"), ("own",)),
    ("data check", ("folder:own.tar", "--size", "8"), ("own.tar",)),
    ("data check", ("folder:own.zip", "--size", "8"), ("own.zip",)),
    ("data check", ("manifest:list.jsonl", "--size", "8"), ("list.jsonl",)),
    ("data check", ("npz:rows.npz",), ("rows.npz",)),
    ("data show", ("table:table.csv", *TABLE, "--output", "a.png"), ("table.csv",)),
    ("data fetch", ("pacs", "--from", "own.tar", "--data-root", "root"), ("own.tar",)),
    ("data fetch", ("mnist", "--from", "own.zip", "--data-root", "root"), ("own.zip",)),
    ("bench", ("--setting", "no_such", "--algorithms", "no_such"), ()),
    ("demo", ("--seeds", "0", "--epochs", "0"), ()),
]  # fmt: skip
"""Command, its arguments, and which of the files and folders it reads may be spoilt"""
LONG = ("experiment", "report", "bench", "demo")


def draw_case(seed: int, good: Path, folder: Path) -> Case:
    """Copy the good files into the folder, and spoil a file, or the arguments, or both."""
    draw = random.Random(seed)
    command, arguments, read = draw.choices(COMMANDS, [1 if one[0] in LONG else 4 for one in COMMANDS])[0]
    needed = {Path(word.partition(":")[2] or word).parts[0] for word in arguments if word} & set(os.listdir(good))
    if "list.jsonl" in needed:
        needed.add("own")
    for name in needed:
        (shutil.copytree if (good / name).is_dir() else shutil.copy)(good / name, folder / name)
    what = draw.choice(["file", "file", "arguments", "arguments", "both"]) if read else "arguments"
    told = [command]
    if what != "arguments":
        told.append(spoil(folder / draw.choice(read), draw))
    words = list(arguments)
    if what != "file":
        for _ in range(draw.choice([1, 1, 2, 3])):
            spoil_words(words, command, draw)
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return Case(" / ".join(told), (*command.split(), *words), size / 2**20)


def spoil_words(words: list[str], command: str, draw: random.Random) -> None:
    word = draw.choice(WORDS)
    how = draw.choice(["replace", "option", "option", "option", "remove", "insert", "word"])
    if how == "option":
        option = draw.choice(options_of(command))
        if option in COUNTS:
            word = draw.choice(["0", "-1", "1.5", "x", DIGITS, "nan"])
        words += draw.choice([[option, word], [f"{option}={word}"], [option]])
    elif how == "word":
        words.append(word)
    elif words:
        place = draw.randrange(len(words))
        if how == "remove":
            del words[place]
        elif words[place - 1] in COUNTS:
            words[place] = "0"
        elif how == "replace":
            words[place] = draw.choice([word, words[place] + word, word + words[place]])
        else:
            words.insert(place, word)


def spoil(path: Path, draw: random.Random) -> str:
    """Spoil a file, or one of those in a folder; returns what was done."""
    if path.is_dir():
        files = sorted(file for file in path.rglob("*") if file.is_file())
        how = draw.choice(["a file", "a file", "a file", "link", "pipe", "name", "empty", "mode"])
        if how == "a file" and files:
            return spoil(draw.choice(files), draw)
        inside = draw.choice([path, *(folder for folder in path.rglob("*") if folder.is_dir())])
        if how == "link":
            for name in "lmn":
                (inside / name).symlink_to(
                    draw.choice([path, path.parent, "nowhere", inside / name, Path("/proc/self/fd")])
                )
        elif how == "pipe":
            os.mkfifo(inside / "pipe.png")
        elif how == "name" and files:
            file = draw.choice(files)
            file.rename(
                file.with_name(draw.choice([f"{ESCAPE[:8]}.png", "\udcff.png", "=1.png", "a" * 240 + ".png", ".x"]))
            )
        elif how == "empty":
            shutil.rmtree(inside)
            inside.mkdir()
        else:
            inside.chmod(draw.choice([0o000, 0o500]))
        return f"{path.name}: {how}"
    kinds: dict[str, list[Callable[[Path, random.Random], str]]] = {
        ".csv": [spoil_cells], ".json": [spoil_json], ".jsonl": [spoil_lines], ".safetensors": [forge, forge],
        ".toml": [spoil_toml, spoil_toml], ".npz": [spoil_arrays, spoil_arrays], ".png": [spoil_picture], ".tar": [spoil_tar],
        ".zip": [spoil_zip], ".pth": [spoil_pickle],
    }  # fmt: skip
    act = draw.choice([*kinds.get(path.suffix, []), spoil_bytes])
    return f"{path.name}: {act(path, draw)}"


def spoil_bytes(path: Path, draw: random.Random) -> str:
    content = path.read_bytes()
    place = draw.randrange(len(content) + 1)
    how = draw.choice(["cut", "flip", "junk", "zeros", "empty", "twice", "digits", "words"])
    path.write_bytes(
        {
            "cut": content[:place],
            "flip": content[:place] + bytes(255 - byte for byte in content[place : place + 1]) + content[place + 1 :],
            "junk": content[:place] + draw.randbytes(20) + content[place:],
            "zeros": content[:place] + bytes(64) + content[place + 64 :],
            "empty": b"",
            "twice": content * 2,
            "digits": content[:place] + DIGITS.encode() + content[place:],
            "words": b"{",
        }[how]
    )
    return how


def spoil_cells(path: Path, draw: random.Random) -> str:
    lines = [line.split(",") for line in path.read_text().splitlines()]
    for _ in range(draw.choice([1, 1, 5, 100])):
        row = draw.choice(lines if draw.random() < 0.2 else lines[1:])
        row[draw.randrange(len(row))] = draw.choice([*WORDS, '"', '"a,b"', "1e400", "2024-02-30", "\0"])
    column = draw.randrange(len(lines[0]))
    if draw.random() < 0.2:
        value = draw.choice(WORDS)
        for row in lines[1:]:
            row[column] = value
    path.write_bytes(
        "\n".join(map(",".join, lines)).encode(draw.choice(["utf-8", "utf-8", "utf-16", "cp1252"]), "replace")
    )
    return "cells"


def spoil_value(value: Any, draw: random.Random) -> Any:
    """The value with another somewhere in it."""
    if isinstance(value, dict) and value and draw.random() < 0.9:
        key = draw.choice(list(value))
        if draw.random() < 0.15:
            return {name: item for name, item in value.items() if name != key}
        if draw.random() < 0.1:
            return value | {draw.choice(["x", "", ESCAPE]): draw.choice(VALUES)}
        return value | {key: spoil_value(value[key], draw)}
    if isinstance(value, list) and value and draw.random() < 0.8:
        place = draw.randrange(len(value))
        return draw.choice(
            [[*value[:place], spoil_value(value[place], draw), *value[place + 1 :]], value[:place], value * 2]
        )
    return draw.choice(VALUES)


def as_text(value: Any) -> str:
    return json.dumps(value).replace(json.dumps(DIGITS), DIGITS)


def spoil_json(path: Path, draw: random.Random) -> str:
    path.write_text(as_text(spoil_value(json.loads(path.read_text()), draw)))
    return "values"


def spoil_lines(path: Path, draw: random.Random) -> str:
    lines = path.read_text().splitlines()
    place = draw.randrange(len(lines))
    lines[place] = draw.choice(
        [as_text(spoil_value(json.loads(lines[place]), draw)), "[" * 50_000, "{", "3", lines[place] * 2]
    )
    path.write_text("\n".join(lines))
    return "a line"


def forge(path: Path, draw: random.Random) -> str:
    """A header or tensors that are not what was written, under a checksum that is right."""
    try:
        tensors, header = read_tensors(path)
    except ValueError:
        return spoil_bytes(path, draw)
    if draw.random() < 0.2:
        name = draw.choice(sorted(tensors))
        change = draw.choice(
            [lambda t: t.flatten()[:0], lambda t: t.double(), lambda t: t * float("nan"), lambda t: t.long(), None]
        )
        if change is None:
            del tensors[name]
        else:
            tensors[name] = change(tensors[name])
    else:
        header = spoil_value(header, draw)
    path.write_bytes(encode_tensors(tensors, header if isinstance(header, dict) else {"backbone": header}))
    return "forged"


def spoil_toml(path: Path, draw: random.Random) -> str:
    lines = path.read_text().splitlines()
    place = draw.randrange(len(lines))
    name = lines[place].partition("=")[0]
    values = ["1", "-1", "100000", "1e308", DIGITS, "nan", "[]", "{}", '""', '"x"', "true", "[1]", "[" * 2000, "{ points = 1e9 }",
              "{ from = 0, to = 1e9, points = 1000000000 }", f'"{chr(0x202E)}"', '"trm"', "[[[]]]"]  # fmt: skip
    lines[place] = draw.choice([f"{name}= {draw.choice(values)}", lines[place] * 2, "", "[", f"x{lines[place]}"])
    path.write_text("\n".join(lines))
    return "a line"


def spoil_arrays(path: Path, draw: random.Random) -> str:
    with np.load(path) as archive:
        arrays = dict(archive)
    name = draw.choice(sorted(arrays))
    array = arrays[name]
    changes: list[Callable[[], Any]] = [
        lambda: np.full(len(array), "\ud800"), lambda: np.full(len(array), ESCAPE), lambda: array.astype(object),
        lambda: array[:-1], lambda: array[..., None], lambda: np.zeros(array.shape, "M8[s]"), lambda: array[0], lambda: array[:0],
        lambda: np.zeros((len(array), 0)), lambda: np.full(array.shape, 1e308), lambda: np.zeros(array.shape, "c16"),
        lambda: np.arange(len(array)), lambda: np.zeros(array.shape, [("a", "i4")]), lambda: np.full(len(array), DIGITS),
        lambda: np.full(len(array), np.nan), lambda: np.zeros(60, ">i8"), lambda: np.full(60, b"\xff\xfe"),
    ]  # fmt: skip
    if draw.random() < 0.6:
        np.savez(path, **arrays | {name: draw.choice(changes)()})
        return f"{name} of another kind"
    headers = [b"{", b"(", b"{'descr': '<f8'}", b"", b"{'descr': '<f8', 'fortran_order': False, 'shape': (99999999999,)}",
               b"{'descr': 'O', 'fortran_order': False, 'shape': (3,)}", b"[" * 3000,
               b"{'descr': '<U999999999', 'fortran_order': False, 'shape': (60,)}",
               b"{'descr': '<f8', 'fortran_order': 1, 'shape': (-60,)}", f"{{'shape': ({DIGITS},)}}".encode()]  # fmt: skip
    header = draw.choice(headers)
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        for key, value in arrays.items():
            buffer = io.BytesIO()
            np.save(buffer, value)
            half = b"\x93NUMPY\1\0" + struct.pack("<H", len(header)) + header + bytes(100)
            archive.writestr(f"{key}.npy", half if key == name else buffer.getvalue())
        if draw.random() < 0.2:
            archive.writestr("features.npy", bytes(1 << 20))
    return f"header of {name}"


@cache
def png(width: int, height: int, bits: int = 8, kind: int = 2) -> bytes:
    """A picture of zeros that says it has this size; its pixels are few if it is too large to hold."""
    row = bytes(1 + (width * bits * {0: 1, 2: 3, 6: 4}[kind] + 7) // 8) if width < 20_000 else bytes(100)
    packer, packed = zlib.compressobj(1), b""
    for _ in range(min(height, 20_000)):
        packed += packer.compress(row)
    chunks = [
        (b"IHDR", struct.pack(">IIBBBBB", width, height, bits, kind, 0, 0, 0)),
        (b"IDAT", packed + packer.flush()),
    ]
    found = b"\x89PNG\r\n\x1a\n"
    for name, content in [*chunks, (b"IEND", b"")]:
        found += struct.pack(">I", len(content)) + name + content + struct.pack(">I", zlib.crc32(name + content))
    return found


def spoil_picture(path: Path, draw: random.Random) -> str:
    width, height, bits, kind = draw.choice(
        [(9990, 9990, 16, 0), (9990, 9990, 8, 2), (6000, 6000, 16, 6), (10**6, 10**6, 8, 2), (2**31 - 1, 1, 8, 0), (0, 0, 8, 0),
         (3, 4, 16, 6), (3, 4, 8, 0), (1, 50_000, 8, 2)]
    )  # fmt: skip
    path.write_bytes(png(width, height, bits, kind))
    return f"{width} x {height}, {bits} bits"


def spoil_tar(path: Path, draw: random.Random) -> str:
    how = draw.choice(["chain", "outside", "twice", "sizes", "long name", "packed", "circle", "device"])
    plain = path.read_bytes()
    with tarfile.open(path, "w") as archive:
        if how in ("chain", "circle"):
            for i in range(3000):
                info = tarfile.TarInfo(f"a/cat/{i}.png")
                info.type, info.linkname = tarfile.SYMTYPE, f"{(i + 1) % 3000 if how == 'circle' else i + 1}.png"
                archive.addfile(info)
        elif how == "device":
            info = tarfile.TarInfo("a/cat/0.png")
            info.type = draw.choice([tarfile.CHRTYPE, tarfile.FIFOTYPE, b"?"])
            archive.addfile(info)
        else:
            name = {
                "outside": draw.choice(["/etc/x.png", "../x.png"]),
                "long name": "a/cat/" + "x" * 5000 + ".png",
            }.get(how, "a/x.png")
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
            archive.addfile(info, io.BytesIO(b"abc"))
    if how == "sizes":
        content = bytearray(path.read_bytes())
        content[124:136] = draw.choice([b"\x80" + b"\xff" * 11, b"77777777777\0", b"\xff" * 12])
        path.write_bytes(bytes(content))
    if how == "packed":
        path.write_bytes(gzip.compress(plain)[: draw.choice([None, -20, 50])])
    return how


def spoil_zip(path: Path, draw: random.Random) -> str:
    how = draw.choice(["bomb", "liar", "outside", "twice", "locked", "method"])
    name = {"outside": draw.choice(["/etc/x.png", "../x.png", "C:\\x.png"])}.get(how, "a/cat/9.png")
    kinds = [zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA]
    with zipfile.ZipFile(path, "a", kinds[0] if how == "bomb" else draw.choice(kinds)) as archive:
        if how == "bomb":
            with archive.open(name, "w", force_zip64=True) as file:
                for _ in range(700):
                    file.write(bytes(1 << 20))
        else:
            archive.writestr(name, bytes(100_000))
        info = archive.infolist()[-1]
        if how == "liar":
            info.file_size = draw.choice([1, 6 << 30, 2**63])
        elif how == "locked":
            info.flag_bits |= 1
        elif how == "method":
            info.compress_type = 99
        elif how == "twice":
            archive.infolist().append(info)
    return how


class Code:
    """What a pickle may run; it leaves a file that is looked for."""

    def __reduce__(self) -> tuple[Any, ...]:
        return os.system, ("touch unpickled",)


def spoil_pickle(path: Path, draw: random.Random) -> str:
    content = torch.load(path, weights_only=True)
    name = draw.choice(sorted(content))
    values: list[Any] = [Code(), {name: Code()}, {}, [], 3, content | {name: content[name][:0]}, {"model": {}}, {"x": content},
                         content | {name: content[name].to_sparse()}, content | {name: "x"}, {3: content[name]}]  # fmt: skip
    torch.save(draw.choice(values), path)
    return "another content"
