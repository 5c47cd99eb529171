"""Runs the notebook of the documentation, and makes a page of it."""

import os
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient

SOURCE = Path(__file__).with_name("notebook.ipynb")
_PLACE = '<div data-output="{}"></div>'


def executed(folder: str) -> nbformat.NotebookNode:
    """The notebook with its outputs, run in a folder; the first error of a cell is raised."""
    notebook = nbformat.read(SOURCE, as_version=4)
    # The cells run the `hlofast` of this environment.
    own = Path(sys.executable).parent
    before = os.environ["PATH"]
    os.environ["PATH"] = f"{own}{os.pathsep}{before}"
    try:
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, timeout=300, kernel_name="python3", resources=resources).execute()
    finally:
        os.environ["PATH"] = before
    return notebook


def page() -> tuple[str, list[str]]:
    """The notebook as Markdown with places for its outputs, and the outputs as HTML.

    What a cell prints is part of the Markdown; warnings, which name files of this machine, are not.
    """
    with tempfile.TemporaryDirectory() as folder:
        notebook = executed(folder)
    parts, outputs = [], []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
            continue
        parts.append(f"```python\n{cell.source}\n```")
        for output in cell.outputs:
            if output.output_type == "stream":
                if output.name == "stdout":
                    parts.append(f"```text\n{output.text.rstrip()}\n```")
            else:
                parts.append(_PLACE.format(len(outputs)))
                outputs.append(output.data["text/html"])
    return "\n\n".join(parts) + "\n", outputs


def filled(html: str, outputs: list[str]) -> str:
    """A page with the outputs in their places."""
    for number, output in enumerate(outputs):
        place = _PLACE.format(number)
        if html.count(place) != 1:
            raise ValueError(f"{SOURCE.name}: output {number} has no place")
        html = html.replace(place, f'<div class="output" data-search-exclude>{output}</div>')
    return html
