"""Refresh the outputs that README and the documentation show: `python docs/tools/outputs.py [--check] [PAGE ...]`.

A comment between the commands and their output marks the output. It may hold a filter for the shell:

    ```bash
    trm audit known.csv --label wage --environment region --output audit.html
    ```
    <!-- output: sed -n '/^Trained on/,/^most frequent/p' -->
    ```text
    what the filter lets through
    ```

`<!-- output, varies -->` marks an output that has times in it: `--check` does not compare it. The text between
`<!-- made -->` and `<!-- /made -->` becomes the commit, the machine and the date when the outputs of a page change.
All commands run in one temporary folder with the tables of examples/wages.py, and each command runs once.
"""

from __future__ import annotations

import argparse
import datetime
import os
import re
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

ROOT = Path(__file__).parents[2]
PAGES = (ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md")))
SHOWN = re.compile(
    r"```bash\n(?P<commands>[^`]*)```\n+"
    r"<!-- output(?P<varies>, varies)?(?:: (?P<filter>[^\n]*?))? -->\n"
    r"```text\n(?P<text>.*?)```",
    re.DOTALL,
)
MADE = re.compile(r"(<!-- made -->).*?(<!-- /made -->)", re.DOTALL)


class Shell:
    """Run commands in one folder, each of them once."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.outputs: dict[str, str] = {}

    def run(self, command: str, given: str | None = None) -> str:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path, "COLUMNS": "80", "TRANSFERRISK_DATA": str(self.folder / "data")}
        done = subprocess.run(
            command, shell=True, cwd=self.folder, env=environment, input=given, capture_output=True, text=True
        )
        if done.returncode:
            raise SystemExit(f"{command} ended with exit code {done.returncode}: {done.stderr[-2000:]}")
        return done.stdout

    def output(self, commands: str) -> str:
        """What the commands of a block print, with an empty line between them."""
        lines = [line for line in commands.replace("\\\n", " ").splitlines() if line.strip()]
        for line in lines:
            if line not in self.outputs:
                print("==>", line, file=sys.stderr, flush=True)
                self.outputs[line] = self.run(line)
        return "\n\n".join(self.outputs[line].strip("\n") for line in lines)


def refreshed(page: str, shell: Shell, check: bool = False) -> str:
    """The page with the outputs of today. A check leaves those that vary as they are."""

    def replace(shown: re.Match[str]) -> str:
        if check and shown["varies"]:
            return shown[0]
        text = shell.output(shown["commands"])
        if shown["filter"]:
            text = shell.run(shown["filter"], given=text)
        text = "\n".join(line.rstrip() for line in text.strip("\n").splitlines())
        if not text:
            raise SystemExit(f"nothing is left of the output by the filter {shown['filter']}:\n{shown['commands']}")
        start, end = (place - shown.start() for place in shown.span("text"))
        return f"{shown[0][:start]}{text}\n{shown[0][end:]}"

    return SHOWN.sub(replace, page)


def machine() -> str:
    """Commit, machine and date, as pages state them."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    processor = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    name = f" ({processor[1].strip()})" if processor else ""
    return f"commit {commit}, {os.cpu_count()} CPU cores{name}, {datetime.date.today()}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("pages", nargs="*", type=Path, default=PAGES, help="default: README.md and docs/*.md")
    parser.add_argument("--check", action="store_true", help="change nothing; exit code 1 if an output is not current")
    asked = parser.parse_args()
    sys.path.insert(0, str(ROOT / "examples"))
    from wages import write_tables

    stale = {}
    with TemporaryDirectory() as name:
        write_tables(Path(name))
        shell = Shell(Path(name))
        for page in asked.pages:
            old = page.read_text(encoding="utf-8")
            new = refreshed(old, shell, asked.check)
            if new != old:
                stale[page] = MADE.sub(rf"\g<1>{machine()}\g<2>", new)
    for page, content in stale.items():  # after all commands, some of which print whether the tree is changed
        if not asked.check:
            page.write_text(content, encoding="utf-8")
    print("not current:" if asked.check else "refreshed:", ", ".join(os.path.relpath(p, ROOT) for p in stale) or "none")
    sys.exit(bool(stale) and asked.check)


if __name__ == "__main__":
    main()
