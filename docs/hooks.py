"""Pages of the site that are elsewhere in the repository, or made of it.

README, the guide of the wheel, the results of the benches and the changelog are shown as they are;
their links to files that the site lacks lead to the repository. The pages of the Python API come
from the names in `hlofast.__all__`, the pages of verbs are the files in `docs/commands`.
"""

import ast
import re
from pathlib import Path
from urllib.parse import urlsplit

import notebooks
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

TOP = Path(__file__).resolve().parents[1]
PACKAGE = TOP / "python" / "hlofast"
REPOSITORY = "https://github.com/hlofast/hlofast/blob/main"
ELSEWHERE = {
    "index.md": TOP / "README.md",
    "benches.md": TOP / "benches" / "README.md",
    "changelog.md": TOP / "CHANGELOG.md",
    **{
        f"guide/{path.relative_to(PACKAGE / 'guide').as_posix()}": path
        for path in sorted((PACKAGE / "guide").rglob("*"))
        if path.suffix in {".md", ".png", ".py"}
    },
}
"""Files of the site, and where they are in the repository."""
API = {
    "Reading programs": "load loads find_modules from_jax FoundModule Module Context",
    "Analyses": "Verdict Summary Cost Utilization Matmuls Collectives Memory Remat Policies Policy "
    "Findings Finding Time WhatIf Stages Shown Graph Trace Diff diff History history",
    "Profiles and messages": "load_profile Profile ProfileSummary Measured Calibration Messages "
    "oom ProfilePlane ProfileLine ProfileEvents ProfileEvent",
    "Pages and charts": "report Report Plot",
    "Dump directories": "scan Scan open_dataset fingerprints ray",
    "Checks": "check Check Declaration DeclaredParameter DeclaredValue Prediction Expectations "
    "Comparison",
    "Configs and devices": "config devices Mesh AxisMatch PartitionSpec register_custom_call "
    "unregister_custom_call",
    "Tables": "Table Column TextColumn Columns",
    "Instructions": "Instruction InstructionSequence Computation ComputationSequence Shape Layout "
    "Literal Sharding ReplicaGroups Attributes Alias Metadata SourceLocation StackFrame "
    "DimensionLabels PaddingDimension SliceDimension WindowDimension",
    "Errors and words": "ParseError ContextError FragmentError call_roles element_types opcodes "
    "phases provenances protobuf_fields_not_in_text",
}
"""Pages of the Python API, and their names."""
RESULTS = "Results"
INNER = "_result.Result _result.Fact _result.Note _result.Section _core.Field"
"""Classes that results share; their own names are not public."""
NOTEBOOK = "notebook.md"
outputs: list[str] = []
"""Outputs of the notebook's cells."""
NOT_SHOWN = {"__version__"}


def public() -> list[str]:
    """The names in `hlofast.__all__`, without importing the package."""
    for node in ast.parse((PACKAGE / "__init__.py").read_text()).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return list(ast.literal_eval(node.value))
    raise ValueError("hlofast.__all__ is missing")


def api_page(title: str) -> str:
    """The address of a page of the Python API."""
    return f"api/{title.lower().replace(' ', '_')}.md"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Adds the pages of verbs and of the Python API to the navigation."""
    given = {name for names in API.values() for name in names.split()}
    if given != set(public()) - NOT_SHOWN:
        raise ValueError(f"docs/hooks.py: API differs: {given ^ set(public()) - NOT_SHOWN}")
    text = (TOP / "docs" / "commands.md").read_text()
    verbs = re.findall(r"\]\((commands/\w+\.md)\)", text)
    added = {
        "Commands": ["commands.md", *({Path(verb).stem: verb} for verb in verbs)],
        "Python": ["python.md", *({title: api_page(title)} for title in [*API, RESULTS])],
    }
    assert config.nav is not None
    for item in config.nav:
        for title in added.keys() & item.keys():
            item[title] = added[title]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files that are elsewhere and the pages that are made."""
    for uri, path in ELSEWHERE.items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    for title, names in {**API, RESULTS: INNER}.items():
        parts = [f"# {title}", *(f"::: hlofast.{name}" for name in names.split())]
        files.append(File.generated(config, api_page(title), content="\n\n".join(parts)))
    text, outputs[:] = notebooks.page()
    files.append(File.generated(config, NOTEBOOK, content=text))
    return files


def on_page_content(html: str, page: Page, **_: object) -> str:
    """Puts the outputs of the notebook in their places."""
    return notebooks.filled(html, outputs) if page.file.src_uri == NOTEBOOK else html


def on_page_markdown(markdown: str, page: Page, files: Files, **_: object) -> str:
    """Leads links between files of the repository to pages of the site, or to the repository."""
    source = page.file.abs_src_path
    if source is None:
        return markdown
    here = Path(source).parent
    places = {str(path): uri for uri, path in ELSEWHERE.items()}
    depth = page.file.src_uri.count("/")

    def led(match: re.Match[str]) -> str:
        target = match[2]
        link = urlsplit(target)
        if link.scheme or not link.path:
            return match[0]
        path = (here / link.path).resolve()
        uri = NOTEBOOK if path == notebooks.SOURCE else places.get(str(path))
        if uri is None and path.is_relative_to(TOP / "docs") and path.exists():
            uri = path.relative_to(TOP / "docs").as_posix()
            uri = None if files.get_file_from_path(uri) is None else uri
        if uri is None and path.exists():
            return f"{match[1]}{REPOSITORY}/{path.relative_to(TOP).as_posix()})"
        if uri is None:
            return match[0]
        anchor = f"#{link.fragment}" if link.fragment else ""
        return f"{match[1]}{'../' * depth}{uri}{anchor})"

    parts = re.split(r"(^```.*?^```$)", markdown, flags=re.MULTILINE | re.DOTALL)
    parts[::2] = [re.sub(r"(\]\()([^)\s]+)\)", led, part) for part in parts[::2]]
    return "".join(parts)
