"""Helpers that read results and the JSON documents that verbs print."""

import json
from html import escape
from typing import Any

import schemas
from hlofast._result import Result
from hlofast._text import printable


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """The values of the facts of a result in a document, by name."""
    return {name: fact["value"] for name, fact in result["facts"].items()}


def codes(result: dict[str, Any]) -> set[str]:
    """The codes of the notes of a result in a document."""
    return {note["code"] for note in result["notes"]}


def checked(verb: str, done: tuple[int, str, str], code: int = 0) -> Any:
    """The results in the JSON document that a command printed, which keeps to the verb's schema."""
    assert done[0] == code, done[2]
    whole = json.loads(done[1])
    schemas.check(verb, whole)
    return whole["results"]


def document(run: Any, verb: str, *arguments: object, code: int = 0) -> Any:
    """The results in the JSON document that a verb prints."""
    return checked(verb, run(verb, *arguments, "--json"), code)


def check_one_source(result: Result, printed: str) -> None:
    """The command prints what the result says of itself; JSON keeps to the schema; HTML is safe."""
    lines = [line for line in printed.rstrip().splitlines() if not line.startswith("file ")]
    assert [line.split() for line in lines] == [line.split() for line in str(result).splitlines()]
    whole = json.loads(result.to_json())
    schemas.check(result.VERB, whole)
    every = result.to_dict(result.every_section())
    schemas.check(result.VERB, {**whole, "results": [every]})
    assert {fact.name for fact in result.facts} <= {field.name for field in result.FACTS}
    assert set(result.tables) == set(every["tables"])
    html = result._repr_html_()
    for label, text in result.shown_facts:
        assert escape(label) in html
        assert escape(printable(text)) in html
    assert "<script" not in html
