"""The words of docs/style.md: what is never right in a sentence that a person meets."""

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest

CHECKOUT = Path(__file__).parents[1]

NEVER = {
    r"matri(x|ces) products?|products? of matrices": "matmul",
    r"(compute|made?|make|calculate)[ds]? (it |them |that |values )?again": "recompute",
    r"(?<!there )(?<!there's )\b(is|are|was|were|be) no (?!longer|more\b|less\b|op\b)\w+": (
        "say what it is not: `is not a ...`"
    ),
    r"of this world|makes no sense|in words of one's own": "say what is allowed",
    r"\bthe same of \w+": "say what, with its noun",
    r"\b(is|are|was|were|be|being) alive\b|\balive at\b": "live",
    r"\bso (much|many) is enough\b|\bso that so (much|many)\b": "say what is planned",
}
"""Patterns of the glossary's third column and of rule 9, each with what to write instead."""


def prose_of_markdown(path: Path) -> Iterator[tuple[int, str]]:
    fenced = False
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if line.lstrip().startswith("```"):
            fenced = not fenced
        elif not fenced:
            yield number, re.sub(r"`[^`]*`", "``", line)


def prose_of_python(path: Path) -> Iterator[tuple[int, str]]:
    text = path.read_text("utf-8")
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and " " in node.value:
            yield node.lineno, node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


def prose_of_rust(path: Path) -> Iterator[tuple[int, str]]:
    block: list[str] = []
    start = 0
    for number, line in enumerate(path.read_text("utf-8").splitlines(), 1):
        if match := re.match(r"\s*//[/!]?(.*)", line):
            start = start if block else number
            block.append(match[1].strip())
            continue
        if block:
            yield start, " ".join(block)
            block = []
        for literal in re.findall(r'"((?:[^"\\]|\\.)* (?:[^"\\]|\\.)*)"', line):
            yield number, literal


PLACES = {
    "*.md": prose_of_markdown,
    "docs/**/*.md": prose_of_markdown,
    "python/hlofast/guide/*.md": prose_of_markdown,
    "python/hlofast/**/*.py": prose_of_python,
    "benches/*.py": prose_of_python,
    "rust/*/src/**/*.rs": prose_of_rust,
}
QUOTED = {"docs/style.md", "CHANGELOG.md"}
"""Files that quote what is not to be written."""


@pytest.mark.parametrize("places", PLACES)
def test_words(places: str) -> None:
    reader = PLACES[places]
    bad = []
    read = 0
    for path in sorted(CHECKOUT.glob(places)):
        name = path.relative_to(CHECKOUT).as_posix()
        if name in QUOTED:
            continue
        for line, sentence in reader(path):
            read += 1
            for pattern, better in NEVER.items():
                for match in re.finditer(pattern, sentence, re.IGNORECASE):
                    bad.append(f"{name}:{line}: {match[0]!r}: {better}")
    assert read > 50
    assert not bad, f"{len(bad)} words that docs/style.md replaces:\n" + "\n".join(bad[:200])


@pytest.mark.parametrize(
    "sentence", ["the matrix product", "it is no number", "values alive at the peak"]
)
def test_the_patterns_find_what_they_are_for(sentence: str) -> None:
    assert any(re.search(pattern, sentence) for pattern in NEVER)


@pytest.mark.parametrize("sentence", ["there is no dot", "it is no longer used", "live values"])
def test_the_patterns_leave_plain_english_alone(sentence: str) -> None:
    assert not any(re.search(pattern, sentence) for pattern in NEVER)
