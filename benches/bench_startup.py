"""Time to the first answer, compared with the start of bare Python."""

import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from harness import Figure, Record, against, bare_python
from texts import generated

ASKED = {"import hlofast": 1.3, "hlofast --help": 3.5, "hlofast summary, 10 kB": 4.0}


def bench_startup(benchmark: Any, record: Record, quick: bool, tmp_path: Path) -> None:
    small = generated("instructions", 60)
    program = str(Path(sysconfig.get_path("scripts")) / "hlofast")
    commands = {
        "import hlofast": [sys.executable, "-c", "import hlofast"],
        "hlofast --help": [program, "--help"],
        "hlofast summary, 10 kB": [program, "summary", str(small.path)],
    }

    def start(command: list[str]) -> None:
        # Not in the checkout, whose package folder has no compiled module.
        subprocess.run(command, check=True, stdout=subprocess.DEVNULL, cwd=tmp_path)

    others = {name: (lambda command=command: start(command)) for name, command in commands.items()}
    benchmark.group = "a bare Python start"
    times = against(benchmark, lambda: start(bare_python()), others, 3 if quick else 40, turns=1)
    bare = times.pop("ours")
    for name, measured in times.items():
        ratio = measured.best / bare.best
        record.figures.append(Figure(f"{name}, of a bare Python start", ratio, at_most=ASKED[name]))
        record.details.append(
            {"what": name, "ratio_of_medians": measured.median / bare.median} | measured.facts()
        )
    record.details.append(
        {"what": "bare", "bytes_of_file": small.path.stat().st_size} | bare.facts()
    )
