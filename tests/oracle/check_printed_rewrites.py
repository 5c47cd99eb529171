"""Whether XLA's parser reads rewritten TPU programs and its printer gives them back equal.

    python tests/oracle/check_printed_rewrites.py [FILE...]

Plan and candidates of every scheduled TPU program among the fixtures, or of the texts given, are
applied and given to XLA; ``tests/fixtures/make_printed_rewrites.py`` says what is compared.  For the
fixtures the fingerprints have to be those on record.  Needs hlofast and jaxlib 0.10.2 in one
environment.
"""

from __future__ import annotations

import argparse
import json
import pathlib
import sys

import hlofast

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "fixtures"))

import make_printed_rewrites  # lies among the fixtures


def faults(module, peak, recorded):
    """What is wrong with one rewritten module, in words."""
    again = hlofast.loads(make_printed_rewrites.printed(module))
    if not module.same_program(again, metadata=False):
        yield "XLA prints another program"
    fingerprint = make_printed_rewrites.fingerprint(again)
    if fingerprint != make_printed_rewrites.fingerprint(module):
        yield "the fingerprints differ"
    if recorded and recorded["fingerprint"] != fingerprint:
        yield "it is not the one on record"
    own = hlofast.loads(module.to_text()).remat(rule=make_printed_rewrites.RULE).peak
    if own != peak:
        yield f"its peak is {own} bytes, {peak} were predicted"


def main(arguments=None):
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="*", type=pathlib.Path)
    given = parser.parse_args(arguments)
    rows = map(json.loads, make_printed_rewrites.RECORD.read_text().splitlines())
    recorded = {} if given.files else {(row["program"], row["what"]): row for row in rows}
    programs = {path.name: path for path in given.files} or make_printed_rewrites.programs()
    met, wrong = [], 0
    for program, path in programs.items():
        for what, peak, module in make_printed_rewrites.rewritten(path):
            told = list(faults(module, peak, recorded.get((program, what))))
            wrong += bool(told)
            met.append((program, what))
            print(f"{program:28} {what:28} {'; '.join(told) or 'printed back equal'}", flush=True)
    for program, what in recorded.keys() - set(met):
        wrong += 1
        print(f"{program:28} {what:28} is on record, and not rewritten any more")
    print(f"{len(met)} rewritten modules of {len(programs)} programs, {wrong} with faults")
    return 1 if wrong or not met else 0


if __name__ == "__main__":
    sys.exit(main())
