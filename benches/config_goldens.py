"""What hlofast makes of AXLearn's golden configs: modelled, or refused and why.

    python benches/config_goldens.py                 the shortened goldens of the tests
    python benches/config_goldens.py FOLDER          all goldens below a folder

FOLDER is `axlearn/experiments/testdata` of the repository apple/axlearn, or that of the wheel
`axlearn-0.0.1.post20240213000026` (PyPI). A golden is judged on the machine of its first mesh rule
that names one. "weights" says whether paths and shapes are those of the file `NAME_init.txt`, in
which AXLearn prints how it initialises each parameter.
"""

from __future__ import annotations

import argparse
import io
import lzma
import re
import tarfile
from pathlib import Path

import hlofast
from hlofast.config import Config
from hlofast.errors import ConfigError

FIXTURE = Path(__file__).resolve().parent.parent / "tests" / "fixtures" / "goldens.tar.xz"
_SHAPE = re.compile(r"shape=[\[(]([0-9, ]+)[\])]")
_OTHERS = ("_init.txt", "_regularizer.txt")
MACHINE = "tpu-v5p-1024"
"""The machine of goldens without mesh rules."""


def texts(folder: Path | None) -> dict[str, str]:
    """Goldens and the files beside them, by name."""
    if folder is not None:
        return {path.name: path.read_text() for path in sorted(folder.rglob("*.txt"))}
    packed = io.BytesIO(lzma.decompress(FIXTURE.read_bytes()))
    with tarfile.open(fileobj=packed) as archive:
        members = {own.name: archive.extractfile(own) for own in archive.getmembers()}
        return {name: file.read().decode() for name, file in members.items() if file is not None}


def machine(config: Config) -> str:
    """The first instance that a mesh rule names in full, or `MACHINE`."""
    for row in config.rules():
        name = str(row["selector"]).split("|")[0].replace("(", "").replace(")", "")
        if re.fullmatch(r"[\w.-]+", name) and not name.endswith("."):
            return name
    return MACHINE


def initialised(text: str) -> dict[str, tuple[int, ...]]:
    """Shapes by path; constants are printed without one."""
    found = {}
    for line in text.splitlines():
        path, _, rest = line.partition(":")
        match = _SHAPE.search(rest)
        sizes = match[1] if match else rest if re.fullmatch(r"[ 0-9,]+", rest) else ""
        found[path] = tuple(int(own) for own in sizes.split(",") if own.strip())
    return found


def judged_weights(config: Config, expected: dict[str, tuple[int, ...]]) -> str:
    """Whether paths and shapes agree."""
    shapes = {row["path"]: tuple(map(int, row["shape"].split(","))) for row in config.parameters()}
    if shapes.keys() != expected.keys():
        return f"{len(shapes.keys() ^ expected.keys())} paths differ"
    wrong = [
        path
        for path, shape in expected.items()
        if shapes[path][len(shapes[path]) - len(shape) :] != shape
    ]
    return f"{len(wrong)} shapes differ" if wrong else "agree"


def main() -> None:
    """Prints one line per golden, then totals."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, nargs="?", help="folder with golden configs")
    parser.add_argument("--width", type=int, default=110, help="columns of the reason")
    arguments = parser.parse_args()
    found = texts(arguments.folder)
    names = [name for name in found if not name.endswith(_OTHERS)]
    modelled = 0
    print(f"{'golden':46} {'parameters':>17} {'weights':8} step")
    for name in names:
        try:
            config = hlofast.config.loads(found[name])
        except ConfigError as error:
            print(f"{name.removesuffix('.txt'):46} {'-':>17} {'-':8} {error}")
            continue
        beside = name.removesuffix(".txt") + "_init.txt"
        weights = judged_weights(config, initialised(found[beside])) if beside in found else "-"
        count = config.parameter_count()
        effective = config.select(machine(config))
        verdict = effective.verdict()
        if verdict.step_seconds is not None and not verdict.gaps:
            step = f"modelled: {verdict.step_seconds:.3f} s on {machine(config)}"
            modelled += 1
        else:
            told = [f"{path}: {why}" for path, why in verdict.gaps]
            told += [row["text"] for row in effective.notes]
            step = f"refused: {told[0] if told else 'the step is unknown'}"[: arguments.width]
        shown = "unknown" if count is None else f"{count:,}"
        print(f"{name.removesuffix('.txt'):46} {shown:>17} {weights:8} {step}")
    print(f"{modelled} of {len(names)} goldens with a modelled step")


if __name__ == "__main__":
    main()
