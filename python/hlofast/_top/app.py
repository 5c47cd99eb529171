"""The screens of `hlofast top`."""

from __future__ import annotations

from itertools import pairwise

from rich.text import Text
from textual.app import App, ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.screen import Screen
from textual.widgets import DataTable, Footer, Input, OptionList, Sparkline, Static
from textual.widgets.option_list import Option

from hlofast import _text as output
from hlofast._show import Shown
from hlofast._top.view import MOST, View, sheets
from hlofast._verdict_measured import heads

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import ClassVar

    from textual.binding import BindingType

    from hlofast import Module
    from hlofast._report.data import Analyses, Contents

POINTS = 400
"""Points of the memory curve; each is the maximum of live bytes in its part of the schedule."""


class Main(Screen[None]):
    """The verdict, memory over the schedule, and one table at a time."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("s", "sort", "Sort by next column"),
        Binding("r", "reverse", "Reverse"),
        Binding("slash", "filter", "Filter", key_display="/"),
        Binding("escape", "back", "Back", show=False),
        Binding("q", "app.quit", "Quit"),
    ]
    CSS = """
    #verdict { height: auto; padding: 0 1; }
    #memory { height: 4; padding: 0 1; }
    #memory Sparkline { height: 2; }
    #tables { width: 36; }
    #filter { display: none; }
    #place { height: auto; padding: 0 1; }
    DataTable { height: 1fr; }
    """

    def __init__(self, analyses: Analyses, contents: Contents) -> None:
        super().__init__()
        self.analyses = analyses
        self.contents = contents
        self.sections = sheets(analyses, contents)
        self.views = {
            sheet.key: View(sheet, analyses.module)
            for _, section in self.sections
            for sheet in section
        }
        self.shown = self.sections[0][1][0].key
        self.rows: list[int] = []

    @property
    def view(self) -> View:
        """The table on the screen."""
        return self.views[self.shown]

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield Static(_verdict(self.contents), id="verdict")
        memory = self.analyses.memory
        if memory is not None and len(memory.steps()):
            values: list[int] = memory.steps().values("bytes")
            with Vertical(id="memory"):
                at = memory.at
                where = f" at {output.printable(at.name)}" if at is not None else ""
                if memory.peak_before is not None:
                    where += ", in the order of this text: not what one device needs"
                yield Static(
                    Text(
                        f"Live bytes over {len(values):,} steps: live peak "
                        f"{output.size(memory.live_peak)}{where}"
                    )
                )
                yield Sparkline(thinned(values, POINTS))
        with Horizontal():
            options: list[Option] = []
            for title, section in self.sections:
                options.append(Option(Text(title, style="bold"), disabled=True))
                options += [
                    Option(Text(f"  {sheet.caption} ({len(sheet):,})"), id=sheet.key)
                    for sheet in section
                ]
            yield OptionList(*options, id="tables")
            with Vertical():
                yield Static(id="place")
                yield Input(placeholder="part of a name, opcode, scope or source", id="filter")
                yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """Show the first table."""
        self.refill()
        self.query_one(DataTable).focus()

    def refill(self) -> None:
        """Refill the table."""
        view = self.view
        table = self.query_one(DataTable)
        table.clear(columns=True)
        for field, label in zip(view.sheet.fields, view.labels, strict=True):
            table.add_column(Text(label), key=field.name)
        self.rows = view.rows()
        texts = ("text", "code", "path", "row")
        kinds = [view.sheet.kind(field) in texts for field in view.sheet.fields]
        for row in self.rows[:MOST]:
            cells = zip(view.cells(row), kinds, strict=True)
            table.add_row(
                *(Text(cell, justify="left" if is_text else "right") for cell, is_text in cells)
            )
        self.query_one("#place", Static).update(Text(self._place()))

    def _place(self) -> str:
        view = self.view
        count, shown = len(self.rows), min(len(self.rows), MOST)
        text = f"{view.sheet.caption}: {count:,} rows"
        if shown < count:
            text += f", {shown:,} shown"
        if view.within is not None:
            text += f", {view.within[0]} {output.printable(view.within[1])}"
        if view.filter:
            text += f", containing {output.printable(view.filter)!r}"
        return text + (f". {view.sheet.note}" if view.sheet.note else "")

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Show the selected table."""
        self.show(event.option.id or self.shown)

    def show(self, key: str) -> None:
        """Show table `key`."""
        self.shown = key
        self.refill()
        self.query_one(DataTable).focus()

    def on_data_table_header_selected(self, event: DataTable.HeaderSelected) -> None:
        """Sort by the column that was clicked."""
        self.view.sort_by(event.column_key.value or "")
        self.refill()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open the instructions of a total, or the details of an instruction."""
        if event.cursor_row >= len(self.rows):
            return
        row = self.rows[event.cursor_row]
        group, number = self.view.group(row), self.view.instruction(row)
        if number is not None:
            self.app.push_screen(Details(self.analyses.module, number))
        elif group is not None:
            self.views["instructions"].within = group
            self.show("instructions")

    def action_sort(self) -> None:
        """Sort by the next column."""
        self.view.sort_by_next()
        self.refill()

    def action_reverse(self) -> None:
        """Reverse the order of rows."""
        if self.view.sort is not None:
            self.view.sort_by(self.view.sort)
            self.refill()

    def action_filter(self) -> None:
        """Open the filter."""
        field = self.query_one("#filter", Input)
        field.styles.display = "block"
        field.value = self.view.filter
        field.focus()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Apply the filter."""
        self.view.filter = event.value
        event.input.styles.display = "none"
        self.refill()
        self.query_one(DataTable).focus()

    def action_back(self) -> None:
        """Close the filter input, then clear the filter, then show all instructions again."""
        field = self.query_one("#filter", Input)
        if field.has_focus:
            field.styles.display = "none"
        elif self.view.filter:
            self.view.filter = ""
        else:
            self.view.within = None
        self.refill()
        self.query_one(DataTable).focus()


class Details(Screen[None]):
    """One instruction with its operands and users."""

    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,backspace", "app.pop_screen", "Back"),
        Binding("q", "app.quit", "Quit"),
    ]
    CSS = """
    #facts { height: auto; max-height: 50%; padding: 0 1; }
    DataTable { height: 1fr; }
    """

    def __init__(self, module: Module, number: int) -> None:
        super().__init__()
        self.module = module
        self.instruction = module[number]
        self.rows: list[int] = []

    def compose(self) -> ComposeResult:
        """The widgets."""
        yield Static(_facts(Shown(self.module, self.instruction)), id="facts")
        yield DataTable(cursor_type="row", zebra_stripes=True)
        yield Footer()

    def on_mount(self) -> None:
        """List operands and users."""
        table = self.query_one(DataTable)
        table.add_columns("", "name", "opcode", "shape", "computation")
        instruction = self.instruction
        for what, others in (("operand", instruction.operands), ("user", instruction.users)):
            for other in list(others)[: MOST // 2]:
                self.rows.append(other.row)
                texts = (what, other.name, other.opcode, str(other.shape), other.computation.name)
                table.add_row(*(Text(output.printable(text)) for text in texts))
        table.focus()

    def on_data_table_row_selected(self, event: DataTable.RowSelected) -> None:
        """Open an operand or user."""
        if event.cursor_row < len(self.rows):
            self.app.push_screen(Details(self.module, self.rows[event.cursor_row]))


class Top(App[None]):
    """The view of one module."""

    TITLE = "hlofast"

    def __init__(self, analyses: Analyses, contents: Contents) -> None:
        super().__init__()
        self._analyses = analyses
        self._contents = contents

    def on_mount(self) -> None:
        """Show the module."""
        self.push_screen(Main(self._analyses, self._contents))


def thinned(values: list[int], points: int) -> list[float]:
    """Returns at most `points` values, each the maximum of its part of `values`."""
    count = min(points, len(values))
    bounds = [len(values) * at // count for at in range(count + 1)]
    return [float(max(values[a:b])) for a, b in pairwise(bounds)]


def _verdict(contents: Contents) -> Text:
    text = Text(output.printable(contents.title), style="bold")
    for figure, modelled in heads(contents.figures):
        starts = figure.key in ("measured_step", "step", "flops")
        text.append("\n" if starts else "   ", style="not bold")
        text.append(f"{figure.label} ", style="not bold dim")
        text.append(figure.text, style="bold")
        if modelled is not None and modelled.value is not None:
            text.append(f" (modelled {modelled.text})", style="not bold dim")
    return text


def _facts(shown: Shown) -> Text:
    text = Text(output.printable(shown.title), style="bold")
    facts = [
        (fact.field.label, output.figure(fact.field, fact.value))
        for fact in shown.facts
        if fact.name not in ("kind", "module")
    ]
    rows = shown.tables["attributes"]
    for label, value in (*facts, *((row["key"], row["value"]) for row in rows)):
        if value:
            text.append(f"\n{output.printable(label)} ", style="not bold dim")
            text.append(output.label(output.printable(str(value))), style="not bold")
    return text
