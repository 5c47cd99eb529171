"""Whether XLA reads rewritten modules, and sees in their canonical text what it sees in them.

    cargo build --release --example rewrite --example reprint
    python tests/oracle/check_rewritten_text.py --examples target/release/examples FILE...

In each text about ``--count`` values with several users are computed again for their last users.
What is refused is counted; the rest is rewritten in one go and given to XLA's parser, in the form
the rewriting has and printed by hlofast, in a child process.  For scheduled TPU programs, which
the CPU client cannot compile.
"""

from __future__ import annotations

import argparse
import pathlib
import subprocess
import sys
import tempfile

import check_printer


def rewritten(arguments, text):
    """The rewritten text, and how many values were computed again of how many asked for."""
    with tempfile.NamedTemporaryFile(suffix=".txt") as file:
        file.write(text)
        file.flush()
        command = [arguments.examples / "rewrite", file.name, str(arguments.count)]
        done = subprocess.run(command, capture_output=True, check=False)
    if done.returncode:
        return None, done.stderr.decode(errors="replace")
    return done.stdout, done.stderr.decode(errors="replace").splitlines()[-1]


def main():
    """Command line entry."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("files", nargs="+", type=pathlib.Path)
    parser.add_argument(
        "--examples", required=True, type=pathlib.Path, help="folder of the built examples"
    )
    parser.add_argument("--count", type=int, default=40, help="values per text")
    arguments = parser.parse_args()
    oracle = check_printer.Oracle()
    wrong = 0
    for path in arguments.files:
        new, told = rewritten(arguments, check_printer.read(path))
        problem = told if new is None else None
        if new is not None:
            printed, problem = check_printer.reprint(str(arguments.examples / "reprint"), new, [])
            text = new.decode(errors="surrogateescape")
            if printed is not None:
                seen, problem = oracle.ask(text)
                again, message = oracle.ask(printed)
                problem = problem or message or check_printer.explain(seen, again, text)
        wrong += bool(problem)
        print(f"{path.name:40} {told:12} {problem or 'the same'}"[:1000], flush=True)
    oracle.close()
    print(f"{len(arguments.files)} modules, {wrong} not read or not the same")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
