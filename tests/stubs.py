"""Docstrings of the compiled module in its stubs, where editors look for them.

`python tests/stubs.py` copies them from the compiled module (doc comments of the Rust code);
`test_stubs.py` fails if the stubs differ.
"""

import ast
import inspect
import textwrap
from pathlib import Path

from hlofast import _core

PACKAGE = Path(__file__).parents[1] / "python" / "hlofast"
STUBS = sorted(PACKAGE.glob("*.pyi"))
WIDTH = 100
"""Of a line, as for ruff."""


def is_special(name: str) -> bool:
    """Whether the language or notebooks fix what a method of this name means."""
    return name.startswith(("__", "_repr_")) and name.endswith("_")


def documentation(thing: object, indent: int) -> str | None:
    """The docstring of a compiled class, function or property as source, if it has one."""
    text = getattr(thing, "__doc__", None)
    if not text:
        return None
    assert '"""' not in text
    assert "\\" not in text
    assert not text.endswith('"')
    paragraphs = inspect.cleandoc(text).split("\n\n")
    room = WIDTH - indent
    for number, paragraph in enumerate(paragraphs):
        # The quotes stand in front of the first line, and behind it if it is the only one.
        lead = " " * (0 if number else 3)
        is_only = len(paragraphs) == 1 and "\n" not in paragraph
        most = room - 3 if is_only else room
        if max(map(len, f"{lead}{paragraph}".splitlines())) > most:
            filled = textwrap.fill(paragraph, most, initial_indent=lead, break_long_words=False)
            paragraphs[number] = filled.removeprefix(lead)
    whole = "\n\n".join(paragraphs)
    whole += '\n"""' if "\n" in whole else '"""'
    return textwrap.indent(f'"""{whole}', " " * indent).strip()


class Documented(ast.NodeVisitor):
    """A stub with the docstrings of what it declares."""

    def __init__(self, text: str) -> None:
        self.lines = text.splitlines()
        self.places: list[tuple[int, int, int, str]] = []
        self.missing: list[str] = []
        self.owners: list[object] = [_core]
        self.visit(ast.parse(text))

    def text(self) -> str:
        """The stub."""
        lines = list(self.lines)
        for first, column, last, text in sorted(self.places, reverse=True):
            lines[first : last + 1] = [*self._head(first, column, last), text]
        return "\n".join(lines) + "\n"

    def _head(self, first: int, column: int, last: int) -> list[str]:
        """What stays in front of a docstring, with the comment behind the `...` it replaces."""
        # An attribute may be the last line of the stub.
        head = self.lines[first][:column].rstrip() if first < len(self.lines) else ""
        if not head:
            return []
        comment = self.lines[last].partition("  #")[2]
        return [f"{head}  #{comment}" if comment else head]

    def _object(self, name: str) -> object | None:
        value = vars(self.owners[-1]).get(name)
        return value.__func__ if isinstance(value, staticmethod) else value

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        documented = self._object(node.name)
        first = node.body[0]
        own = documentation(documented, first.col_offset)
        if own is None:
            self.missing.append(node.name)
        elif ast.get_docstring(node) is not None:
            self._replace(first, own)
        else:
            line = first.lineno - 1
            if isinstance(first, ast.FunctionDef) and first.decorator_list:
                line = first.decorator_list[0].lineno - 1
            self.places.append((line, 0, line - 1, f"{' ' * first.col_offset}{own}\n"))
        self.owners.append(documented)
        for index, child in enumerate(node.body):
            if isinstance(child, ast.AnnAssign) and isinstance(child.target, ast.Name):
                self._attribute(node, index, child.target.id)
            else:
                self.visit(child)
        self.owners.pop()

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        if is_special(node.name):
            return
        text = documentation(self._object(node.name), node.col_offset + 4)
        if text is None:
            self.missing.append(self._name(node.name))
        else:
            body = node.body[0]
            text = f"{' ' * (node.col_offset + 4)}{text}"
            self.places.append((body.lineno - 1, body.col_offset, (body.end_lineno or 0) - 1, text))

    def _attribute(self, node: ast.ClassDef, index: int, name: str) -> None:
        if is_special(name):
            return
        child = node.body[index]
        text = documentation(self._object(name), child.col_offset)
        if text is None:
            self.missing.append(self._name(name))
            return
        text = f"{' ' * child.col_offset}{text}"
        after = node.body[index + 1] if index + 1 < len(node.body) else None
        if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
            self._replace(after, text.strip())
        else:
            end = child.end_lineno or 0
            self.places.append((end, 0, end - 1, text))

    def _replace(self, node: ast.stmt, text: str) -> None:
        indented = f"{' ' * node.col_offset}{text}"
        self.places.append((node.lineno - 1, node.col_offset, (node.end_lineno or 0) - 1, indented))

    def _name(self, name: str) -> str:
        owner = self.owners[-1]
        return f"{owner.__name__}.{name}" if isinstance(owner, type) else name


def main() -> None:
    """Write the stubs."""
    for path in STUBS:
        documented = Documented(path.read_text())
        path.write_text(documented.text())
        for name in documented.missing:
            print(f"{path.name}: {name} says nothing of itself")


if __name__ == "__main__":
    main()
