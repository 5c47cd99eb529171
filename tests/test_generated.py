"""The committed generated files are up to date."""

import pytest

import generated
import hlofast
from hlofast.cli import VERBS

FILES = generated.generated()


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_committed_as_generated(path: generated.Path) -> None:
    assert path.read_text() == FILES[path], "run python tests/generated.py"


def test_the_table_of_findings_has_every_rule() -> None:
    text = "# A\n\n| code | what is found |\n|---|---|\n| `old-rule` | gone |\n\nMore.\n"
    written = generated.findings(text)
    rows = [line for line in written.splitlines() if line.startswith("| `")]
    assert rows == [f"| `{code}` | {what} |" for code, what in hlofast.Findings.RULES.items()]
    assert written.startswith("# A\n") and written.endswith(" |\n\nMore.\n")


def test_every_schema_is_generated() -> None:
    assert {path.stem for path in generated.SCHEMAS.glob("*.json")} == set(generated.SAMPLES)


def test_every_verb_with_json_has_a_sample() -> None:
    assert set(generated.SAMPLES) <= set(VERBS)


@pytest.mark.parametrize("verb", generated.SAMPLES)
def test_every_field_is_documented(verb: str) -> None:
    fields = []
    for sample in generated.results(verb):
        fields += sample.FACTS
        for section in sample.every_section():
            fields += section.table.fields
    for field in fields:
        assert field.doc.endswith("."), (verb, field)
        assert field.label, (verb, field)
