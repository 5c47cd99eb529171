"""A gate without a clock: the machine instructions for reading two fixtures.

    python benches/instructions.py [--accept]

Counts with valgrind's callgrind; the load of the machine does not change the counts. A count that
exceeds its record in `instructions.json` by more than the tolerance is a failure. `--accept`
records the counts. Needs valgrind, Rust and the two fixtures of the repository. Compiler versions
change the counts a little; the file names the version with which it was recorded. Valgrind knows no
AVX-512, so the kernels of the next lower level are counted.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

CHECKOUT = Path(__file__).resolve().parent.parent
RECORDED = Path(__file__).with_name("instructions.json")
FIXTURES = ("train_step.after_optimizations.txt", "dumps/cpu_dense.before.txt.gz")
MODES = ("tolerant", "columns", "strict")
TOLERANCE = 0.03


def build() -> Path:
    """Builds the example that reads one text in one mode."""
    command = ["cargo", "build", "--release", "--package", "hlofast", "--example", "read"]
    output = subprocess.check_output([*command, "--message-format", "json"], cwd=CHECKOUT)
    executables = [json.loads(line).get("executable") for line in output.splitlines()]
    return Path([path for path in executables if path][-1])


def count(program: Path, mode: str, times: int, text: Path) -> int:
    """Machine instructions of a run that reads `text` `times` times."""
    with tempfile.NamedTemporaryFile() as out:
        run = subprocess.run(
            ["valgrind", "--tool=callgrind", f"--callgrind-out-file={out.name}",
             str(program), mode, str(times), str(text)],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
    match = re.search(r"Collected : (\d+)", run.stderr)
    if not match:
        raise RuntimeError(f"valgrind printed no count:\n{run.stderr}")
    return int(match[1])


def counts() -> dict[str, float]:
    """Machine instructions per byte of text, without start-up, by fixture and mode."""
    program, counted = build(), {}
    with tempfile.TemporaryDirectory() as folder:
        for fixture in FIXTURES:
            data = (CHECKOUT / "tests" / "fixtures" / fixture).read_bytes()
            if fixture.endswith(".gz"):
                import gzip

                data = gzip.decompress(data)
            text = Path(folder) / "text"
            text.write_bytes(data)
            for mode in MODES:
                once, thrice = (count(program, mode, times, text) for times in (1, 3))
                counted[f"{fixture} {mode}"] = round((thrice - once) / 2 / len(data), 3)
    return counted


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--accept", action="store_true", help="record the counts found")
    accept = parser.parse_args().accept
    if not shutil.which("valgrind"):
        print("valgrind is not installed", file=sys.stderr)
        return 2
    counted = counts()
    if accept:
        compiler = subprocess.check_output(["rustc", "--version"], text=True).strip()
        content = {"compiler": compiler, "tolerance": TOLERANCE, "instructions_per_byte": counted}
        RECORDED.write_text(json.dumps(content, indent=1) + "\n")
    recorded = json.loads(RECORDED.read_text())
    failed = False
    for name, value in counted.items():
        before = recorded["instructions_per_byte"].get(name)
        change = value / before - 1 if before else 0.0
        worse = before is None or change > recorded["tolerance"]
        failed |= worse
        print(f"{'! ' if worse else '  '}{value:8.3f} per byte, {change:+.1%}  {name}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
