"""How far the modelled steps of configs are from all published steps, AXLearn's and MaxText's.

    python benches/published_steps.py FOLDER

FOLDER is that of `config_accuracy.py`. AXLearn's steps are judged by the rates of a fit without
them ("left out"). MaxText's steps are judged from MaxText's own arguments (`maxtext_accuracy.py`);
no rate is fitted on them. Some of AXLearn's figures do not say whether a flash kernel ran: they
have two readings, which count half each in "by figure". Asked: 70 % within 15 %, all within 30 %.
"""

from __future__ import annotations

import argparse
import statistics
from pathlib import Path

import config_accuracy
import maxtext_accuracy


class Judged:
    """A reading of a published step, with its error and its weight among the readings."""

    def __init__(self, name: str, error: float, weight: float = 1.0) -> None:
        self.name = name
        self.error = error
        self.weight = weight


def left_out(folder: Path) -> list[Judged]:
    """AXLearn's steps, each with the rates of a fit without it."""
    rows = [row for row in config_accuracy.ROWS if row.load(folder)]
    found = []
    for figure in dict.fromkeys(row.figure for row in rows):
        point = config_accuracy.fit([row for row in rows if row.figure != figure])
        rates = config_accuracy.rates_of(point)
        own = [row for row in rows if row.figure == figure and not row.name.startswith("MaxText")]
        for row in own:
            error = config_accuracy.modelled(row, rates) / row.seconds - 1
            found.append(Judged(f"{row.name} on {row.instance}", error, 1 / len(own)))
    return found


def not_fitted() -> list[Judged]:
    """MaxText's steps."""
    return [
        Judged(f"{row['name']} on {row['instance']}", float(str(row["error"])))
        for row in maxtext_accuracy.rows()
    ]


def shown(label: str, judged: list[Judged]) -> None:
    """Prints the figures of some steps, and the worst."""
    sizes = [abs(own.error) for own in judged]
    worst = max(judged, key=lambda own: abs(own.error))
    near = sum(size <= 0.15 for size in sizes) / len(sizes)
    total = sum(own.weight for own in judged)
    far = sum(size <= 0.3 for size in sizes)
    by_figure = sum(own.weight for own in judged if abs(own.error) <= 0.15) / total
    print(
        f"{label:24} {len(sizes):3} readings of {total:.0f} figures, median "
        f"{statistics.median(sizes):.1%}; within 15 %: {near:.1%}, by figure {by_figure:.1%}; "
        f"within 30 %: {far}; worst {worst.error:+.2%} ({worst.name})"
    )


def main() -> None:
    """Prints one line for each trainer, and one for all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with golden configs")
    axlearn, maxtext = left_out(parser.parse_args().folder), not_fitted()
    shown("AXLearn, left out", axlearn)
    shown("MaxText, nothing fitted", maxtext)
    shown("all", [*axlearn, *maxtext])


if __name__ == "__main__":
    main()
