"""Attack the command line: bad input, kills at random moments, sockets. Prints a table of counts; fails on any finding.

    ATTACK_CASES=5000 ATTACK_SEED=0 python tests/attack/attack.py

Case i of a seed is always the same: ATTACK_SEED=0 ATTACK_ONLY=17 runs that one alone, and keeps its folder.
"""

from __future__ import annotations

import os
import platform
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

import cases
import forked
from sockets import listening, processes_of

SECONDS = 60.0  # of the processor that a case may take
PATIENCE = 300.0  # seconds of the clock, on a machine that others use too
MIB = 1024.0  # that it may take beyond twice its input
REAL = 25  # each so many-th case is a process that is started as a user starts it
HIDDEN = re.compile(r"\.part$|^\..+\.lock$|^\..+\.[0-9a-f]{8}-\d+-\d*\.[0-9a-f]{8}$")


@dataclass
class Tally:
    """Counts of what happened, and what is to be mended."""

    codes: Counter[str] = field(default_factory=Counter)
    commands: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)
    kinds: Counter[str] = field(default_factory=Counter)
    mib: float = 0.0
    seconds: float = 0.0

    def find(self, kind: str, what: str) -> None:
        self.kinds[kind] += 1
        self.findings.append(f"{kind}: {what}")
        print(f"FOUND {kind}: {what}", flush=True)


def main() -> int:
    count, seed = int(os.environ.get("ATTACK_CASES", "5000")), int(os.environ.get("ATTACK_SEED", "0"))
    kills, only = int(os.environ.get("ATTACK_KILLS", "100")), os.environ.get("ATTACK_ONLY")
    tally, began = Tally(), time.monotonic()
    with tempfile.TemporaryDirectory(prefix="attack-") as scratch:
        place = Path(scratch)
        os.environ["TRANSFERRISK_CACHE"] = str(place / "cache")
        os.environ.update(HF_HUB_OFFLINE="1", COLUMNS="120", RAY_USAGE_STATS_ENABLED="0")
        good = place / "good"
        good.mkdir()
        cases.write_good_files(good, lambda arguments, folder: succeed(arguments, folder, place))
        if only is not None:
            attack(seed, int(only), good, place, tally, keep=True)
        else:
            for i in range(count):
                attack(seed, i, good, place, tally)
                if i % 250 == 249:
                    print(
                        f"{i + 1} cases, {len(tally.findings)} findings, {time.monotonic() - began:.0f} s", flush=True
                    )
            if kills:
                kill_all(seed, kills, good, place, tally)
            if os.environ.get("ATTACK_SOCKETS", "1") != "0":
                look_at_sockets(good, tally)
    print_table(tally, count, kills, seed, time.monotonic() - began)
    return int(bool(tally.findings))


def succeed(arguments: Sequence[str], folder: Path, place: Path) -> None:
    """Run a command that has to succeed, forked, as all others will be; this reads what they need."""
    ended = forked.run(arguments, folder, 600)
    assert ended.code == 0, (arguments, ended)


def attack(seed: int, number: int, good: Path, place: Path, tally: Tally, keep: bool = False) -> None:
    """One case, and what is wrong with how it ends."""
    folder = place / "case"
    folder.mkdir()
    case = cases.draw_case(seed * 1_000_003 + number, good, folder)
    ended = forked.run(case.arguments, folder, PATIENCE, real=number % REAL == REAL - 1)
    about = f"case {number}: {case.name}: trm {' '.join(map(ascii, case.arguments))[:400]}"
    tally.codes[str(ended.code)] += 1
    tally.commands[case.arguments[0]] += 1
    tally.mib, tally.seconds = max(tally.mib, ended.mib - 2 * case.input_mib), max(tally.seconds, ended.seconds)
    for kind, what in faults(case, ended, folder):
        tally.find(kind, f"{about}: {what}")
    if keep:
        print(about, ended, sep="\n")
        shutil.copytree(folder, f"attack-{seed}-{number}", symlinks=True, dirs_exist_ok=True)
    remove(folder)


def faults(case: cases.Case, ended: forked.Ended, folder: Path) -> list[tuple[str, str]]:
    """What is wrong with how a command ended."""
    found = []
    if ended.code is None or ended.seconds > SECONDS:
        found.append(("hang", f"{ended.seconds:.0f} s of the processor"))
    elif "Traceback" in ended.err or "Exception ignored" in ended.err:
        found.append(("traceback", ended.err.strip().splitlines()[-1][:300]))
    elif ended.code not in (0, 2) and not (ended.code == 1 and case.arguments[0] == "experiment"):
        found.append(("exit code", f"{ended.code} {ended.err[-300:]!r}"))
    elif ended.code == 2:
        lines = [line for line in ended.err.splitlines() if line.startswith("trm: ")]
        errors = [line for line in lines if not line.startswith("trm: warning: ")]
        if len(errors) != 1 or len(errors[0]) > 300:
            found.append(("message", f"{len(errors)} lines, {ended.err[-400:]!r}"))
    allowed = 2 * case.input_mib + MIB
    if ended.mib > allowed:
        found.append(("memory", f"{ended.mib:.0f} MiB of {allowed:.0f}"))
    if "\x1b" in ended.err + ended.out or "\x07" in ended.err + ended.out:
        found.append(("escape", repr(ended.err + ended.out)[:300]))
    if (folder / "unpickled").exists():
        found.append(("unpickled", "code ran"))
    found += [("leftover", name) for name in leftovers(folder)]
    return found


def leftovers(folder: Path) -> list[str]:
    """Files and folders that a command left unfinished."""
    return [str(path.relative_to(folder)) for path in folder.rglob("*") if HIDDEN.search(path.name)]


def remove(folder: Path) -> None:
    for inside in [folder, *(path for path in folder.rglob("*") if path.is_dir() and not path.is_symlink())]:
        with suppress(OSError):
            inside.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


TABLE = ("--label", "y", "--environment", "site")
ROWS = ("--data", "npz:rows.npz", "--test-env", "c", "--epochs", "5")
KILLED: list[tuple[str, ...]] = [
    ("fit", "table.csv", *TABLE, "--no-compare", "--algorithm", "linear", "--output", "model", "--force"),
    ("fit", "rows.npz", "--algorithms", "linear,erm", "--epochs", "2", "--output", "new", "--force", "--workers", "1"),
    ("train", *ROWS, "--output", "new", "--resume", "--checkpoint-every", "1"),
    ("data", "fetch", "pacs", "--from", "pictures", "--data-root", "root"),
    ("experiment", "recipe.toml", "--output", "new", "--workers", "1"),
    ("audit", "table.csv", *TABLE, "--folds", "2", "--bootstrap", "5", "--output", "a.html"),
    ("predict", "model", "table.csv", "--output", "p.csv"),
    ("data", "check", "folder:own", "--size", "64"),
    ("report", "results"),
]


def kill_all(seed: int, kills: int, good: Path, place: Path, tally: Tally) -> None:
    """Kill commands at random moments. The same command then has to succeed, and nothing unfinished may be left."""
    draw, length = random.Random(seed), dict[tuple[str, ...], float]()
    for number in range(kills):
        arguments = KILLED[number % len(KILLED)]
        folder, cache = place / "killed", place / "cache"
        shutil.copytree(good, folder)
        shutil.rmtree(cache, ignore_errors=True)
        os.environ["TRANSFERRISK_CACHE"] = str(folder / "cache")
        if arguments[:2] == ("data", "fetch"):
            write_pictures(folder)
        if arguments not in length:
            whole = place / "whole"
            shutil.copytree(folder, whole)
            began = time.monotonic()
            forked.run(arguments, whole, PATIENCE)
            length[arguments] = time.monotonic() - began
            shutil.rmtree(whole)
        child = forked.start(arguments, folder, (place / "out", place / "err"))
        time.sleep(draw.uniform(0, 1.05 * length[arguments]))
        forked.kill(child)
        status = os.wait4(child, 0)[1]
        tally.codes["killed" if status else "ended before the kill"] += 1
        about = f"kill {number}: trm {' '.join(arguments)}"
        if arguments[0] == "fit" and "model" in arguments:
            ended = forked.run(("predict", "model", "table.csv", "--output", "p.csv"), folder, PATIENCE)
            if ended.code != 0:
                tally.find("lost", f"{about}: {ended.err[-300:]}")
        ended = forked.run(arguments, folder, PATIENCE)
        done = "there already" in ended.err or "is finished" in ended.err
        if ended.code != 0 and not done:
            tally.find("not resumed", f"{about}: {ended.code} {ended.err[-300:]}")
        for name in leftovers(folder):
            tally.find("leftover", f"{about}: {name}")
        shutil.rmtree(folder)


def write_pictures(folder: Path) -> None:
    """A set of the size and the names that `data fetch pacs --from` takes, in files of a few bytes."""
    counts = {"art_painting": 2048, "cartoon": 2344, "photo": 1670, "sketch": 3929}
    names = ("dog", "elephant", "giraffe", "guitar", "horse", "house", "person")
    for environment, count in counts.items():
        for name in names:
            (folder / "pictures" / environment / name).mkdir(parents=True)
        for i in range(count):
            (folder / "pictures" / environment / names[i % 7] / f"{i}.jpg").write_bytes(b"x")


def look_at_sockets(good: Path, tally: Tally) -> None:
    """Look at the sockets of an experiment on a Ray cluster of this machine, and of processes that share a training."""
    commands = [
        ("experiment", "recipe.toml", "--executor", "ray", "--output", "of-ray"),
        ("train", *ROWS, "--devices", "2", "--device", "cpu", "--batch-size", "8", "--output", "of-two"),
    ]
    for arguments in commands:
        process = subprocess.Popen([*forked.TRM, *arguments], cwd=good, start_new_session=True, stderr=subprocess.PIPE)
        seen = set()
        while process.poll() is None:
            for name, address in listening(processes_of("", [process.pid])):
                seen.add((name, str(address), address.is_loopback))
            time.sleep(0.1)
        assert process.stderr is not None
        if process.returncode:
            tally.find("exit code", f"{arguments}: {process.stderr.read().decode()[-300:]}")
        process.stderr.close()
        tally.codes["listening sockets"] += len(seen)
        for name, address, is_loopback in sorted(seen):
            if not is_loopback:
                tally.find("socket", f"{arguments}: {name} at {address}")


def print_table(tally: Tally, count: int, kills: int, seed: int, seconds: float) -> None:
    commit = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False).stdout
    rows = {"cases": count, "of them by command": dict(tally.commands), "ended with": dict(tally.codes), "kills": kills}
    kinds = (
        "traceback",
        "hang",
        "memory",
        "exit code",
        "message",
        "escape",
        "unpickled",
        "leftover",
        "lost",
        "not resumed",
    )
    rows |= {f"found: {kind}": tally.kinds[kind] for kind in (*kinds, "socket")}
    rows |= {"most memory beyond 2 x input, MiB": round(tally.mib), "longest case, s": round(tally.seconds, 1)}
    rows |= {
        "seed": seed,
        "commit": commit.strip(),
        "took, s": round(seconds),
        "on": f"{platform.platform()}, {os.cpu_count()} cores",
    }
    for name, value in rows.items():
        print(f"{name:36} {value}")
    for line in tally.findings:
        print(line)


if __name__ == "__main__":
    sys.exit(main())
