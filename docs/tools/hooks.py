"""What the site needs beyond Markdown: links into the repository, equations as MathML, gallery and reference pages."""

from __future__ import annotations

import ast
import html
import inspect
import re
import textwrap
from importlib import import_module
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File

from transferrisk.algorithms import Algorithm

ROOT = Path(__file__).parents[2]
GALLERY = ("loop", "audit", "hospitals", "search", "lightning", "photographs", "algorithm", "results")
"""Programs in examples/, in the order of the gallery."""
MODULES = (
    "functional", "sklearn", "auditing", "fitting", "algorithms", "training", "models", "data", "results", "solvers",
    "errors",
)  # fmt: skip
"""Modules whose page lists all their public classes and functions."""
UNIT = re.compile(r"(?<=\d)\s(?=(?:%|[±\xd7]\s\d)|(?:\d{3}|ms|s|min|h|[KMG]i?B)\b)|(?<=[±\xd7])\s(?=\d)")
"""The space between a figure and its unit, between the digits of a large number, and around ± and the times sign."""
WHOLE = re.compile(r"(?<=[>\s\[])--[\w-]+|\b\d{4}-\d\d-\d\d\b")
"""Options and dates, which would otherwise be divided at their hyphens."""


def is_algorithm(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Algorithm) and value is not Algorithm


def is_error(value: Any) -> bool:
    return inspect.isclass(value) and issubclass(value, Exception)


def algorithm(public: type) -> str:
    """The documentation of an algorithm. The class itself adds the settings of its config to its docstring."""
    text = (inspect.getdoc(public) or "").replace(
        "\n\nIt has no settings.", "\nSettings\n--------\nIt has no settings."
    )
    text, _, examples = text.partition("\n\nExamples\n--------\n")
    text, _, settings = text.partition("\nSettings\n--------\n")
    summary, _, equation = text.partition("\n\n")
    equation = textwrap.fill(equation.strip(), 80)
    described = re.sub(r"(?m)^(\w+) : (.*)\n    ", r"- **\1** (\2): ", settings)
    page = f"## {public.__name__}\n\n{summary}\n\n```text\n{equation}\n```\n\n{described}\n\n"
    return f"{page}**Examples:**\n\n```pycon\n{examples}\n```\n\n"


def documented(module: Any) -> list[Any]:
    """Return the public classes and functions of a module by name, algorithms first. Errors have no `__all__`."""
    names = getattr(module, "__all__", [name for name, value in vars(module).items() if is_error(value)])
    public = [value for value in map(vars(module).get, names) if inspect.isclass(value) or inspect.isfunction(value)]
    return sorted(public, key=lambda value: (not is_algorithm(value), value.__name__.lower()))


def on_files(files: Any, config: Any) -> Any:
    """Add a page for each program of the gallery (docstring, picture, source, output) and for each public module."""
    for name in MODULES:
        module = import_module(f"transferrisk.{name}")
        page = f"# transferrisk.{name}\n\n{inspect.getdoc(module).partition(chr(10))[0]}\n\n"
        for public in documented(module):
            home = public.__module__
            if home.partition(".auditing")[1] and public.__name__ in ("Audit", "audit"):
                continue  # on the page of the package itself
            page += algorithm(public) if is_algorithm(public) else f"::: {home}.{public.__name__}\n"
        files.append(File.generated(config, f"reference/{name}.md", content=page))
    rows = []
    for name in GALLERY:
        source = (ROOT / "examples" / f"{name}.py").read_text(encoding="utf-8")
        title, _, text = (ast.get_docstring(ast.parse(source)) or "").partition("\n")
        code = source.split('"""', 2)[2].strip()
        output = (ROOT / "docs" / "gallery" / f"{name}.txt").read_text(encoding="utf-8").rstrip()
        page = f"# {title.rstrip('.')}\n\n{text.strip()}\n\n![]({name}.svg)\n\n"
        page += f'```python title="examples/{name}.py"\n{code}\n```\n\nIt prints:\n\n```text\n{output}\n```\n'
        files.append(File.generated(config, f"gallery/{name}.md", content=page))
        rows.append(f'<a class="card" href="{name}/"><img src="{name}.svg" alt=""><b>{title.rstrip(".")}</b></a>')
    config.extra["cards"] = f'<div class="cards">{"".join(rows)}</div>'
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Lead links that leave docs/ to the repository, where what they name must be, and put the gallery's cards in."""

    def repository(match: re.Match[str]) -> str:
        target, _, anchor = match[1].partition("#")
        path = (ROOT / "docs" / Path(page.file.src_path).parent / target).resolve()
        if ROOT / "docs" in path.parents or ROOT not in path.parents:
            return match[0]
        if not path.exists():
            raise PluginError(f"{page.file.src_path} links to {match[1]}, which does not exist")
        kind = "tree" if path.is_dir() else "blob"
        return f"]({config.repo_url.rstrip('/')}/{kind}/main/{path.relative_to(ROOT)}{anchor and '#' + anchor})"

    markdown = markdown.replace("<!-- cards -->", config.extra["cards"])
    return re.sub(r"\]\(((?:\.\./)[^)\s]+)\)", repository, markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Turn equations into MathML, which browsers draw by themselves, and choose where lines may break."""

    def mathml(match: re.Match[str]) -> str:
        text = html.unescape(match[3])
        return convert(text, display="block" if match[1] == "div" else "inline")

    def unbroken(piece: str) -> str:
        if piece.startswith("<") and not piece.startswith("<code"):
            return piece  # a tag, or a block of code
        spaced = piece if piece.startswith("<code") else UNIT.sub("\N{NO-BREAK SPACE}", piece)
        return WHOLE.sub(r'<span class="whole">\g<0></span>', spaced)

    pattern = r'<(div|span) class="arithmatex">\\(\[|\()(.*?)\\[\])]</\1>'
    content = re.sub(pattern, mathml, content, flags=re.DOTALL)
    content = re.sub(r"(<h1[^>]*>transferrisk\.)", r"\1<wbr>", content)
    pieces = re.split(r"(<pre.*?</pre>|<code.*?</code>|<[^>]*>)", content, flags=re.DOTALL)
    return "".join(map(unbroken, pieces))
