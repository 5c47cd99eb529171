"""The regular expressions of mesh rules: they match what `re.fullmatch` does, in bounded time."""

import re
import warnings

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hlofast.config import Config

TOKENS = st.sampled_from(
    r"a b - . ( | ) * + ? [ab] [^a] [a-c] []a] {2} {0,2} {,1} {1,} { } \d \w \s \D \W \S \. \- \Z"
    r" \A ^ $ \b (?: (?P<n> \n \x41 \u0042 \101 \t a 8".split(" ")
)


def rule_of(pattern: str) -> Config:
    """A config with one mesh rule."""
    return Config.of(mesh_rules=[(pattern, (1,))])


def problem(pattern: str) -> str | None:
    """Why a pattern is not supported."""
    told = rule_of(pattern).select("x").notes.to_pylist()
    return next((row["text"] for row in told if row["kind"] == "selector"), None)


def fits(pattern: str, text: str) -> tuple[str, str]:
    """The start of a text that does not match, as far as it fits, and what is expected then."""
    (row,) = rule_of(pattern).select(text).near
    return row["fits"], row["expected"]


def instances(pattern: str) -> str | None:
    (row,) = rule_of(pattern).rules()
    names: str | None = row["instances"]
    return names


@settings(max_examples=300)
@given(st.lists(TOKENS, max_size=8).map("".join), st.text("ab-.8A\n c", max_size=6))
def test_they_match_what_python_matches(pattern: str, text: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            compiled = re.compile(pattern)
        except re.error:
            compiled = None
    unsupported = problem(pattern)
    if unsupported is not None:
        assert compiled is None or "unsupported" in unsupported
        return
    assert compiled is not None
    effective = rule_of(pattern).select(text)
    assert effective.rule == (0 if compiled.fullmatch(text) else None)
    if effective.rule is None:
        start, _ = fits(pattern, text)
        assert text.startswith(start)


@pytest.mark.parametrize(
    "pattern",
    ["(?=a)", "(?i)a", "(?<!a)b", r"(a)\1", "a++", "(?>a)", "(?(1)a|b)", r"\N{DIGIT ONE}"],
)
def test_what_no_automaton_matches_is_refused(pattern: str) -> None:
    assert "unsupported" in str(problem(pattern))


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        ("a)", "unmatched ')' at character 2 of 'a)'"),
        ("(a", "unclosed group"),
        ("(?P<n>(?P<n>a))", "two groups are called n"),
        ("[a", "unclosed set"),
        ("*a", "nothing to repeat at character 1"),
        ("a**", "multiple repeat"),
        ("a{3,2}", "the minimum of a repetition exceeds"),
        ("[b-a]", "invalid range"),
        ("\\", "unsupported escape"),
        ("a{9999}", "has more than 2,000 states"),
        ("(((a{99}){99}){99}){99}", "has more than 2,000 states"),
        ("a{999999999}", "too many repetitions"),
        ("(" * 100 + ")" * 100, "more than 50 nested groups"),
    ],
)
def test_faults(pattern: str, message: str) -> None:
    assert message in str(problem(pattern))


@pytest.mark.parametrize(
    ("text", "start", "expected"),
    [
        ("gpu-p6-8", "gpu-p", "'4de-' or '5-'"),
        ("gpu-p5-x", "gpu-p5-", "[0-9]"),
        ("gpu-p5-16x", "gpu-p5-16", "[0-9] or the end"),
        ("", "", "'gpu-'"),
    ],
)
def test_how_far_a_text_fits(text: str, start: str, expected: str) -> None:
    assert fits("gpu-(p5|p4de)-[0-9]+", text) == (start, expected)


def test_any_character_is_called_so() -> None:
    assert fits("a.c", "a") == ("a", "any character")


@pytest.mark.parametrize(
    ("pattern", "names"),
    [
        ("a(b|c)?[12]", "a1,a2,ab1,ab2,ac1,ac2"),
        ("x.y", "x.y"),
        ("a*", None),
        (r"\d", None),
        ("[^a]", None),
        ("[a-z]{3}", None),
        ("$a", None),
    ],
)
def test_the_names_that_match(pattern: str, names: str | None) -> None:
    assert instances(pattern) == names
