"""Numbers of texts: six digits, or whole ones with up to nine."""

import pytest

from hlofast._text import figure
from hlofast.table import Field


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.25, "0.25"),
        (999_999.4, "999,999"),
        (999_999.7, "1,000,000"),
        (-999_999.7, "-1,000,000"),
        (1_234_567.8, "1,234,568"),
        (999_999_999.4, "999,999,999"),
        (999_999_999.7, "1e+09"),
        (1e12, "1e+12"),
        (float("inf"), "inf"),
    ],
)
def test_whole_numbers_have_up_to_nine_digits(value: float, text: str) -> None:
    assert figure(Field("number", "own", "A number."), value) == text
