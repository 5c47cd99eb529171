#!/usr/bin/env python
"""Dumps of many JAX programs, with the module after every pass, as `--xla_dump_to` leaves them.

    python benches/scan_dumps.py [--only WORD]

Writes one folder per program into benches/.cache/scan_dumps and keeps existing folders. Needs the
environment of tests/fixtures/make_dumps.py. Takes minutes on an idle machine.
"""

import argparse
import subprocess
import sys
import tempfile
from pathlib import Path

from harness import BENCHES, say

OUT = BENCHES / ".cache" / "scan_dumps"
EIGHT = "v5e:2x4/2x4"

PROGRAMS = [
    ("train_step", "cpu:2x4"),
    ("small_dense", "cpu:2x4"),
    ("small_scanned", "cpu:2x4"),
    ("train_step", EIGHT),
    ("small_scanned", EIGHT),
    ("dense_scanned", "cpu:2x4"),
    ("small_collectives", "cpu:2x4"),
    ("collectives", "cpu:2x4"),
    ("small_mixture", "cpu:2x4"),
    ("mixture_scanned", "cpu:2x4"),
    ("attention", "cpu:2x2"),
    ("control_flow", "cpu"),
    ("small_recurrent", "cpu"),
    ("small_data_movement", "cpu"),
    ("indexing", "cpu"),
    ("quantised", "cpu"),
    ("small_decode", EIGHT),
    ("small_mixture", EIGHT),
]


def folder_of(program: str, backend: str) -> Path:
    """The folder with the dumps of a program."""
    return OUT / f"{'cpu' if backend.startswith('cpu') else 'tpu'}_{program}"


def missing() -> list[tuple[str, str]]:
    """The programs that have not been dumped."""
    return [each for each in PROGRAMS if not folder_of(*each).is_dir()]


def folders() -> list[Path]:
    """The folders of all programs; dumps the missing programs first."""
    if missing():
        say(f"dumping {len(missing())} programs with JAX, once, minutes: {OUT}")
        subprocess.run([sys.executable, __file__], check=True)
    return [folder_of(*each) for each in PROGRAMS]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="", help="only programs whose folder name contains WORD")
    word = parser.parse_args().only
    sys.path.insert(0, str(BENCHES.parent / "tests" / "fixtures"))
    from make_dumps import Programs

    OUT.mkdir(parents=True, exist_ok=True)
    for program, backend in missing():
        folder = folder_of(program, backend)
        if word in folder.name:
            with tempfile.TemporaryDirectory(dir=OUT) as made:
                Programs().dump_folder(program, backend, made, ".*")
                Path(made).chmod(0o755)
                Path(made).rename(folder)
                Path(made).mkdir()
            sizes = [path.stat().st_size for path in folder.iterdir()]
            print(f"{folder.name}: {len(sizes)} files, {sum(sizes) / 1e6:.0f} MB", flush=True)


if __name__ == "__main__":
    main()
