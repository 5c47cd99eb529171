"""The texts that the benches read: committed dumps, your own dumps, a seed, generated texts."""

import json
import os
import subprocess
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import generate
import hlofast
from harness import BENCHES, CHECKOUT, say

CACHE = BENCHES / ".cache"
DUMPS = CACHE / "dumps"
FIXTURES = CHECKOUT / "tests" / "fixtures"
COMMITTED = {
    "llm_70b_256_chips": "sharded/decoder_v5e_256.txt.gz",
    "llm_7b_offloaded": "sharded/offload_v5e_16.txt.gz",
    "llm_8_cpus": "sharded/decoder_cpu_8.txt.gz",
    "before_optimizations": "dumps/cpu_dense.before.txt.gz",
    "small_train_step": "train_step.after_optimizations.txt",
}
"""The texts of the quick set: from 0.1 to 2.7 MB, TPU and CPU, before and after XLA's passes."""
MOST = 6
"""The largest modules of a folder that are timed, so that the quick set stays quick."""


@dataclass(frozen=True)
class Text:
    """A file to parse, with XLA's instruction count where an index has it."""

    name: str
    path: Path
    instructions: int | None = None
    own: bool = False

    def read(self) -> bytes:
        """The module's text: decompressed, found in a page or translated from a protobuf."""
        if self.own or self.path.suffix != ".txt":
            return _text(self.path)
        return self.path.read_bytes()

    def size(self) -> int:
        return len(self.read())

    def label(self) -> str:
        return f"{self.name}, {self.size() / 1e6:.1f} MB"


@cache
def _text(path: Path) -> bytes:
    return hlofast.load(path).to_text(form="original").encode()


def committed() -> list[Text]:
    """Dumps of the repository."""
    return [Text(name, FIXTURES / path) for name, path in COMMITTED.items()]


def chosen(paths: list[Path]) -> list[Text]:
    """The files named, and the largest modules below the folders named."""
    texts = []
    for path in paths:
        if path.is_file():
            texts.append(Text(path.name, path, own=True))
            continue
        scanned = hlofast.scan(path, tables=["modules"])
        files = [Path(row["path"]) for row in scanned.files if row["status"] == "read"]
        largest = sorted(files, key=lambda file: (-len(_text(file)), str(file)))[:MOST]
        texts += [Text(str(file.relative_to(path)), file, own=True) for file in largest]
    if not texts:
        raise FileNotFoundError(f"no HLO modules below {', '.join(map(str, paths))}")
    return texts


def seed() -> Text | None:
    """Seed document 002, if the seeds are available."""
    folder = Path(os.environ.get("HLOFAST_SEEDS", CHECKOUT.parent / "shared" / "seeds"))
    matches = sorted(folder.glob("002_*"))
    return Text("seed_002", matches[0], 9679) if matches else None


@cache
def dumps() -> tuple[Text, ...]:
    """The dumps of the index; makes missing dumps first, which takes minutes."""
    if not (DUMPS / "index.json").exists():
        say(f"compiling programs with JAX for 42 dumps, once, about 4 minutes: {DUMPS}")
        script = FIXTURES / "make_dumps.py"
        subprocess.run([sys.executable, script, "--out", DUMPS], check=True)
    index = json.loads((DUMPS / "index.json").read_text())
    return tuple(
        Text(entry["name"], DUMPS / f"{entry['name']}.txt", entry["instructions"])
        for entry in index["dumps"]
    )


def generated(kind: str, size: int) -> Text:
    """A text of `generate.py`, written again only when that file changes."""
    folder = CACHE / "generated"
    path = folder / f"{kind}_{size}.txt"
    source = Path(generate.__file__).stat().st_mtime
    if not path.exists() or path.stat().st_mtime < source:
        say(f"writing the generated text {path.stem}")
        folder.mkdir(parents=True, exist_ok=True)
        with path.open("w") as file:
            file.writelines(generate.KINDS[kind](size))
    return Text(path.stem, path)
