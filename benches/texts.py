"""The texts that the benches read: a seed, real dumps, generated ones."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import generate
from harness import BENCHES, CHECKOUT

CACHE = BENCHES / ".cache"
DUMPS = CACHE / "dumps"


@dataclass(frozen=True)
class Text:
    """A file to parse, with the number of instructions that XLA finds, where an index says it."""

    name: str
    path: Path
    instructions: int | None = None

    def read(self) -> bytes:
        return self.path.read_bytes()


def seed() -> Text | None:
    """Seed document 002, where the seeds are at hand."""
    folder = Path(os.environ.get("HLOFAST_SEEDS", CHECKOUT.parent / "shared" / "seeds"))
    found = sorted(folder.glob("002_*"))
    return Text("seed_002", found[0], 9679) if found else None


@cache
def dumps() -> tuple[Text, ...]:
    """The dumps of the index; made first (it takes minutes) if they are not there."""
    if not (DUMPS / "index.json").exists():
        script = CHECKOUT / "tests" / "fixtures" / "make_dumps.py"
        subprocess.run([sys.executable, script, "--out", DUMPS], check=True)
    index = json.loads((DUMPS / "index.json").read_text())
    return tuple(
        Text(entry["name"], DUMPS / f"{entry['name']}.txt", entry["instructions"])
        for entry in index["dumps"]
    )


def generated(kind: str, size: int) -> Text:
    """A text of `generate.py`, written once for its source."""
    folder = CACHE / "generated"
    path = folder / f"{kind}_{size}.txt"
    source = Path(generate.__file__).stat().st_mtime
    if not path.exists() or path.stat().st_mtime < source:
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            file.writelines(generate.KINDS[kind](size))
    return Text(path.stem, path)
