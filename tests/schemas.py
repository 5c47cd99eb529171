"""Documents of verbs against their schemas, each of which is read and checked once."""

import importlib.resources
import json
from functools import cache
from typing import Any

import jsonschema


@cache
def of(verb: str) -> Any:
    """The validator of a verb's documents."""
    path = importlib.resources.files("hlofast") / "schemas" / f"{verb}.json"
    schema = json.loads(path.read_text())
    kind = jsonschema.validators.validator_for(schema)
    kind.check_schema(schema)
    return kind(schema)


def check(verb: str, whole: Any) -> None:
    """Raise `ValidationError` if a document does not keep to the schema of its verb.

    Of rows with the same keys and types one is enough: schemas say no more of them, as a test of
    all schemas sees to (test_cli.py).
    """
    results = [{**own, "tables": _fewer(own["tables"])} for own in whole["results"]]
    of(verb).validate({**whole, "results": results})


def _fewer(tables: dict[str, Any]) -> dict[str, Any]:
    return {
        name: list({(*row, *map(_kind, row.values())): row for row in rows}.values())
        for name, rows in tables.items()
    }


def _kind(value: Any) -> Any:
    # 2.0 is an integer.
    return int if isinstance(value, float) and value.is_integer() else type(value)
