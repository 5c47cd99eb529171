"""Whether XLA reads what hlofast prints, and sees the same module as in the original text.

Run in an environment that has jaxlib 0.10.2, with the example program built by
``cargo build --release --example reprint``::

    python tests/oracle/check_printer.py --reprint target/release/examples/reprint FILE...
    python tests/oracle/check_printer.py --reprint target/release/examples/reprint --probes

For each text XLA accepts, the long and the short form (and the long form with operand shapes)
are given to XLA, and its computations, instructions, opcodes, operands and roots are compared
with those of the original. Names that exist only in printed text (of instructions that the
original implies) are compared by what they are, not by what they are called. Parsing happens in
a child process, since some texts end the process that parses them.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing
import subprocess
import sys
from pathlib import Path

FORMS = {"long": [], "short": ["short"], "typed": ["shapes"]}
PROBES = Path(__file__).parents[1] / "probes" / "verdicts.jsonl.gz"


def xla_view(text: str) -> dict[str, object]:
    """What XLA sees: per computation the instructions with opcode, shape and operand positions.

    XLA orders instructions and computations by itself, so names are the keys.
    """
    from jaxlib import _hlo

    module = _hlo.hlo_module_from_text(text)
    computations = {}
    for computation in module.computations():
        rows = {}
        for instruction in computation.instructions():
            rows[instruction.name] = (
                instruction.opcode.name,
                [operand.name for operand in instruction.operands()],
                instruction_text(instruction),
            )
        computations[computation.name] = rows
    return {"name": module.name, "computations": computations}


def instruction_text(instruction) -> str:
    """The instruction as XLA prints it, without its name."""
    return instruction.to_string().partition(" = ")[2]


def shape_of_graph(view: dict[str, object]) -> dict[str, object]:
    """The view without names: sorted lists, for texts whose implied names differ."""
    computations = sorted(
        sorted((opcode, len(operands)) for opcode, operands, _ in rows.values())
        for rows in view["computations"].values()
    )
    return {"name": view["name"], "computations": computations}


def explain(original: dict[str, object], printed: dict[str, object], text: str) -> str | None:
    """The first difference of two views; ``text`` is the original's."""
    if not text.startswith("HloModule"):
        # XLA calls a module without header otherwise in every form of text.
        printed["name"] = original["name"]
    if "..." in text:
        # XLA fills in elided data, with other numbers each time.
        for view in (original, printed):
            for rows in view["computations"].values():
                for name, facts in rows.items():
                    rows[name] = (*facts[:2], "")
    if original == printed:
        return None
    before, after = original["computations"], printed["computations"]
    if before.keys() == after.keys():
        for name, rows in before.items():
            if rows.keys() == after[name].keys():
                for row, facts in rows.items():
                    if facts[:2] != after[name][row][:2]:
                        return f"{row}: {facts[:2]} became {after[name][row][:2]}"
                    if facts[2] != after[name][row][2]:
                        return f"{row}: {facts[2][:300]} became {after[name][row][2][:300]}"
    if shape_of_graph(original) == shape_of_graph(printed):
        return None
    return "the graphs differ"


def child(connection) -> None:
    """Answers texts with views or error messages, until it dies."""
    while True:
        text = connection.recv()
        if text is None:
            return
        try:
            connection.send((xla_view(text), None))
        except Exception as error:  # any failure of XLA is an answer
            connection.send((None, str(error)))


class Oracle:
    """XLA's parser in a child process."""

    def __init__(self) -> None:
        self.process = None

    def ask(self, text: str) -> tuple[dict[str, object] | None, str | None]:
        if self.process is None:
            self.connection, other = multiprocessing.get_context("spawn").Pipe()
            self.process = multiprocessing.get_context("spawn").Process(
                target=child, args=(other,), daemon=True
            )
            self.process.start()
            other.close()
        try:
            self.connection.send(text)
            return self.connection.recv()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            self.process.join()
            self.process = None
            return None, "the process ended"

    def close(self) -> None:
        if self.process is not None:
            self.connection.send(None)
            self.process.join()


def reprint(program: str, text: bytes, form: list[str]) -> tuple[str | None, str]:
    done = subprocess.run([program, "-", *form], input=text, capture_output=True, check=False)
    if done.returncode:
        return None, done.stderr.decode(errors="replace").strip()
    return done.stdout.decode(errors="surrogateescape"), ""


def read(path: Path) -> bytes:
    data = path.read_bytes()
    return gzip.decompress(data) if path.suffix == ".gz" else data


def texts(arguments: argparse.Namespace):
    for path in arguments.files:
        data = read(path)
        start = data.find(b"HloModule ")
        if start > 0:
            end = data.find(b"```", start)
            data = data[start : end if end > 0 else len(data)]
        yield path.name, data
    if arguments.probes:
        with gzip.open(PROBES, "rt") as lines:
            for line in lines:
                probe = json.loads(line)
                if probe["verdict"] == "accept":
                    yield probe["id"], probe["text"].encode(errors="surrogateescape")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", type=Path)
    parser.add_argument("--reprint", required=True, help="the built example program")
    parser.add_argument("--probes", action="store_true", help="also every accepted probe")
    arguments = parser.parse_args()
    oracle = Oracle()
    counts = {"same": 0, "different": 0, "unread": 0, "skipped": 0}
    for name, data in texts(arguments):
        source = data.decode(errors="surrogateescape")
        original, message = oracle.ask(source)
        if original is None:
            counts["skipped"] += 1
            print(f"{name}: XLA does not read the original: {message[:200]}")
            continue
        for form, words in FORMS.items():
            text, message = reprint(arguments.reprint, data, words)
            if text is None:
                counts["unread"] += 1
                print(f"{name} ({form}): hlofast does not read it: {message[:300]}")
                break
            printed, message = oracle.ask(text)
            problem = message if printed is None else explain(original, printed, source)
            counts["different" if problem else "same"] += 1
            if problem:
                print(f"{name} ({form}): {problem[:1000]}")
    oracle.close()
    print(", ".join(f"{count} {word}" for word, count in counts.items()))
    return 1 if counts["different"] or counts["unread"] else 0


if __name__ == "__main__":
    sys.exit(main())
