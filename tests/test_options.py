"""Options mean the same in every verb."""

import argparse

import pytest

from hlofast.cli import VERBS, parser_of

DIFFERENT = {
    # A TOML file of devices, or how many there are.
    "--devices": {"FILE.toml", "N"},
    # The codes of lint, or how grave what check finds is.
    "--fail-on": {"CODE,...", "SEVERITY"},
    # What is written: a folder, a page, a module.
    "--output": {"OUT", "PATH", "PAGE", "FILE"},
}
"""Options whose values differ between verbs."""


def actions() -> dict[str, dict[str, argparse.Action]]:
    found: dict[str, dict[str, argparse.Action]] = {}
    for verb in VERBS:
        for action in parser_of(verb)._actions:
            for name in action.option_strings:
                found.setdefault(name, {})[verb] = action
    return found


@pytest.mark.parametrize("name", sorted(actions()))
def test_an_option_means_the_same_everywhere(name: str) -> None:
    verbs = actions()[name]
    assert len({action.nargs == 0 for action in verbs.values()}) == 1, "a flag or a value"
    assert len({action.dest for action in verbs.values()}) == 1
    values = {action.metavar for action in verbs.values()}
    long = next(own for own in next(iter(verbs.values())).option_strings if own.startswith("--"))
    assert len(values) == 1 or values == DIFFERENT.get(long)
    assert all(action.help for action in verbs.values())


def test_rows_are_top() -> None:
    assert not actions().keys() & {"--limit", "--rows"}
    assert {"query", "top", "cost", "verdict", "show"} <= actions()["--top"].keys()
