"""Every figure beside a label in a console block of the documents is the Python API's."""

import re
import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import console
import hlofast
from conftest import CHECKOUT
from figures_read import unexplained
from hlofast import _memory
from hlofast._result import Result
from hlofast.cli import VERBS, parser_of
from hlofast.config._results import Described, Selected
from test_cli import hlofast_command

GUIDE = CHECKOUT / "python" / "hlofast" / "guide"
DOCUMENTS = [
    CHECKOUT / "README.md",
    *sorted(CHECKOUT.glob("docs/*.md")),
    *sorted(CHECKOUT.glob("docs/commands/*.md")),
    *sorted(GUIDE.glob("*.md")),
]
COMMANDS = [
    (document, found[2], found[3])
    for document in DOCUMENTS
    for found in console.BLOCK.finditer(document.read_text())
]
PAIR = re.compile(r"(\w+)=(\d+)")
CONTEXT = (
    *("mesh", "device", "hosts", "slices", "rules", "hbm", "step_seconds", "profile"),
    *("libraries", "frame", "merge_layers"),
)


def module_of(arguments: Any, path: str) -> hlofast.Module:
    told = {name: getattr(arguments, name, None) for name in CONTEXT}
    told = {name: value for name, value in told.items() if value not in (None, False)}
    return hlofast.load(path, module=getattr(arguments, "module", None), **told)


def config_of(arguments: Any) -> Any:
    files = [own for own in arguments.files if "=" not in own]
    overrides = [own for own in arguments.files if "=" in own]
    if files:
        return hlofast.config.load(files[0], overrides=overrides)
    return hlofast.config.loads("", path="run.yml", overrides=overrides)


def configured(arguments: Any) -> list[Result]:
    config = config_of(arguments)
    return [Described(config), *(Selected(config.select(own)) for own in arguments.instance)]


def planned(arguments: Any) -> Any:
    plan = config_of(arguments).plan(arguments.instance[0], offloads=not arguments.no_offload)
    if arguments.like is None:
        return plan
    return plan.like({key: int(value) for key, value in PAIR.findall(arguments.like)})


def profiled(arguments: Any) -> Result:
    profile = hlofast.load_profile(arguments.recording)
    module = max(profile.modules, key=len)  # The step; the others are one instruction each.
    return module.profile(profile, mesh=arguments.mesh)


API: dict[str, Callable[[Any], Result | list[Result]]] = {
    "verdict": lambda a: module_of(a, a.files[0]).verdict(),
    "summary": lambda a: module_of(a, a.files[0]).summary(),
    "cost": lambda a: module_of(a, a.files[0]).cost(xla=a.xla, peak_flops=a.peak_flops),
    "matmuls": lambda a: module_of(a, a.files[0]).matmuls(),
    "collectives": lambda a: module_of(a, a.files[0]).collectives(),
    "lint": lambda a: module_of(a, a.files[0]).lint(),
    "remat": lambda a: module_of(a, a.files[0]).remat(hbm=a.hbm, device=a.device),
    "what-if": lambda a: module_of(a, a.files[0]).what_if(
        batch=a.batch, sequence=a.sequence, layers=a.layers, mesh=a.mesh_to, policy=a.policy
    ),
    "memory": lambda a: _memory.quiet(module_of(a, a.files[0]), device=a.device),
    "time": lambda a: module_of(a, a.files[0]).time(estimates=a.estimates),
    "stages": lambda a: module_of(a, a.files[0]).stages(),
    "trace": lambda a: module_of(a, a.file).trace(),
    "report": lambda a: module_of(a, a.file).report(plots=False),
    "show": lambda a: module_of(a, a.file).show(a.name),
    "diff": lambda a: module_of(a, a.before).diff(module_of(a, a.after)),
    "check": lambda a: hlofast.check(
        hlofast.config.load(a.config[0]).select(a.instance), module_of(a, a.file)
    ),
    "config": configured,
    "plan": planned,
    "profile": profiled,
    "oom": lambda a: hlofast.oom(a.file),
    "history": lambda a: hlofast.history(a.folder, a.module),
}
NO_FACTS = {"graph", "fmt", "schema", "completion", "guide", "mcp", "query", "scan"}
"""Verbs that print texts, or tables alone."""
OF_THE_COMMAND = {
    "file",
    "written",
    "format",
    "compressed",
    "kind",
    "page",
    "before",
    "after",
    "text size",
}
"""Facts about the run of a command: files and forms; commands count the text of one module, the API
that of the file."""
ELSEWHERE = {
    "calibrate": "fits rates, which test_calibration.py compares",
    "top": "shows the facts of several results, which test_top.py compares",
}
OF_PROFILES = {"verdict", "summary"}
"""Verbs that show something else of a profile, which test_profile_shown.py compares."""


def shown_facts(output: str, place: int = 0) -> list[tuple[str, str]]:
    """The pairs of label and text below a title of an output."""
    lines = output.split("\n\n")[place].splitlines()[1:]
    return [(head, text) for head, text in (re.split(r" {2,}", own, maxsplit=1) for own in lines)]


def cases() -> list[Any]:
    made = []
    for document, command, output in COMMANDS:
        words = shlex.split(command.partition(" | ")[0])[1:]
        verb = words[0] if words[0] in VERBS else "verdict"
        assert verb in API or verb in NO_FACTS or verb in ELSEWHERE, verb
        of_profile = verb in OF_PROFILES and words[-1].endswith(".xplane.pb.xz")
        if verb in API and not of_profile:
            arguments = parser_of(verb).parse_args(words[words[0] == verb :])
            made.append(pytest.param(verb, arguments, output, id=f"{document.stem}: {command}"))
    return made


@pytest.fixture(scope="module")
def tour(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("figures") / "tour"
    assert hlofast_command("guide", "-o", folder).returncode == 0
    (folder / "tests").symlink_to(CHECKOUT / "tests", target_is_directory=True)
    return folder


@pytest.mark.parametrize(("verb", "arguments", "output"), cases())
def test_facts_are_those_of_the_python_api(
    verb: str, arguments: Any, output: str, tour: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    if verb in ("config", "plan") and any("=" in own for own in arguments.files):
        pytest.importorskip("yaml")
    monkeypatch.chdir(tour)
    results = API[verb](arguments)
    for place, result in enumerate(results if isinstance(results, list) else [results]):
        pairs = shown_facts(output, place)
        shown = [pair for pair in pairs if pair[0] not in OF_THE_COMMAND]
        assert shown
        assert unexplained(result, shown) == []


def test_a_wrong_figure_is_found(tour: Path) -> None:
    """Each fact of a block, with another digit, is a figure that nothing explains."""
    (output,) = (
        output
        for document, command, output in COMMANDS
        if document.name == "cost.md" and " cost " in command
    )
    result = hlofast.load(tour / "tests/fixtures/train_step.after_optimizations.txt").cost()
    for label, text in shown_facts(output):
        digit = re.search(r"\d(?=\D*$)", text)
        if digit is None or label == "file":
            continue
        wrong = f"{text[: digit.start()]}{(int(digit[0]) + 1) % 10}{text[digit.end() :]}"
        if "iB)" not in text:  # The exact figure stands before it.
            assert unexplained(result, [(label, wrong)]), label
