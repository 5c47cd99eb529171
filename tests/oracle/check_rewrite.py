"""Whether rewritten modules compute what they computed before, in less memory, as XLA runs them.

    python tests/oracle/check_rewrite.py [NAME...]

Every program in ``tests/fixtures/rewrites`` is rewritten again (``cargo run --example rewrite``);
the text and its rewriting are read by XLA's parser, compiled for eight replicas on the CPU client
without the passes that would merge copies back, and run on the same arguments.  Results may differ
by a relative 1e-6, the peak of XLA's live-range file has to fall, and both peaks and the numbers of
collectives have to be those recorded in ``index.jsonl``.  Needs jax 0.10.2, numpy and cargo.
"""

from __future__ import annotations

import argparse
import gzip
import json
import pathlib
import sys
import tempfile

FIXTURES = pathlib.Path(__file__).resolve().parents[1] / "fixtures"
sys.path.insert(0, str(FIXTURES))

import make_rewrites  # noqa: E402 - found beside the fixtures


def faults(row, folder):
    """What is wrong with one program, in words."""
    text = gzip.decompress(
        (make_rewrites.OUT / row["name"] / "module.txt.gz").read_bytes()
    ).decode()
    new = make_rewrites.rewritten(text, row["recipe"], folder)
    compared, *_ = make_rewrites.compare(text, new, folder)
    if compared["difference"] > 1e-6:
        yield f"results differ by {compared['difference']:.1e}"
    if compared["peak_after"] >= compared["peak_before"]:
        yield f"the peak does not fall: {compared['peak_before']} to {compared['peak_after']} bytes"
    for key in ("peak_before", "peak_after", "collectives_before", "collectives_after"):
        if compared[key] != row[key]:
            yield f"{key} is {compared[key]}, recorded is {row[key]}"


def main(arguments=None):
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("names", nargs="*", help="only these programs")
    given = parser.parse_args(arguments)
    rows = map(json.loads, (make_rewrites.OUT / "index.jsonl").read_text().splitlines())
    rows = [row for row in rows if not given.names or row["name"] in given.names]
    wrong = 0
    for row in rows:
        with tempfile.TemporaryDirectory() as scratch:
            told = list(faults(row, pathlib.Path(scratch)))
        wrong += bool(told)
        print(f"{row['name']:28} {'; '.join(told) or 'as recorded'}", flush=True)
    print(f"{len(rows)} programs, {wrong} not as recorded")
    return 1 if wrong or not rows else 0


if __name__ == "__main__":
    sys.exit(main())
