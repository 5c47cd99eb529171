"""The section of a page about what a profile measured."""

from __future__ import annotations

from hlofast._context import unmeasured
from hlofast._report.data import Section, facts_of, notes_of
from hlofast._report.sheet import Sheet

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast._report.data import Analyses
    from hlofast.table import Table

_TITLE = "Measured"
_MODELLED = ("modelled_seconds", "modelled_exposed_seconds", "ratio", "roofline_share")
"""Columns about the model, which pages without a device leave out."""


def section(analyses: Analyses) -> Section | None:
    """Parts of the step, axes, sums, instructions, collectives, devices; None without a profile."""
    measured = analyses.measured
    if measured is None:
        text = unmeasured(analyses.module)
        return None if text is None else Section("measured", _TITLE, unknown=f"{text}.")
    tables = measured.tables

    def sheet(key: str, caption: str, table: Table, columns: str = "", **options: Any) -> Sheet:
        names = columns.split() or [own for own in table.columns if own != "is_median"]
        if measured.modelled is None:
            names = [own for own in names if own not in _MODELLED]
        return Sheet(f"measured-{key}", caption, table, names, **options)

    instructions = (
        "instruction opcode measured_seconds share calls least_seconds median_seconds most_seconds "
        "modelled_seconds ratio flops_per_second bytes_per_second roofline_share phase scope source"
    )
    sheets = [
        sheet("parts", "Parts of the measured step", tables["parts"]),
        sheet("axes", "Measured communication by mesh axis", tables["axes"]),
        *(
            sheet(f"by-{key}", f"Measured time by {label}", measured.by(key))
            for key, label in (("phase", "phase"), ("scope", "scope"), ("source", "source line"),
                               ("opcode", "opcode"))
        ),
        sheet("instructions", "Measured instructions", tables["instructions"], instructions),
        sheet("collectives", "Measured collectives", tables["collectives"]),
        sheet("devices", "Measured devices", measured.devices),
        sheet("unjoined", "Events without an instruction", tables["unjoined"]),
    ]  # fmt: skip
    notes = [note for note in notes_of(measured) if note]
    return Section("measured", _TITLE, facts=facts_of(measured), sheets=sheets, notes=notes)
