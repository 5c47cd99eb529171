"""Asks XLA's own parser (jaxlib 0.10.2) about every probe and writes `verdicts.jsonl.gz`.

Run `python -m tests.probes.judge` in an environment that has jaxlib; nothing else needs it.
Some texts abort the process that parses them, so the parsing happens in a child that is restarted
after each such text.
"""

from __future__ import annotations

import argparse
import gzip
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

VERDICTS = Path(__file__).with_name("verdicts.jsonl.gz")
LONG_FORM_LIMIT = 4096

# The binding names opcodes as XLA's C++ enumeration does; these are not the text names in camel case.
OPCODE_NAMES = {
    "kClz": "count-leading-zeros",
    "kCos": "cosine",
    "kExp": "exponential",
    "kExpm1": "exponential-minus-one",
    "kLog1p": "log-plus-one",
    "kOptimizationBarrier": "opt-barrier",
    "kPopulationCount": "popcnt",
    "kSin": "sine",
    "kTopK": "topk",
}


def opcode_name(enumerator: str) -> str:
    """`kBatchNormGrad` -> `batch-norm-grad`."""
    known = OPCODE_NAMES.get(enumerator)
    if known:
        return known
    return re.sub(r"(?<!^)([A-Z])", r"-\1", enumerator[1:]).lower()


def first_message(error: str) -> str:
    """The innermost message with its place, without XLA's wrapping and the quoted source."""
    wrapped = error.partition("\n")
    lines = wrapped[2].split("\n") if "when trying to parse" in wrapped[0] else [error]
    message = lines[0].removeprefix("was parsing ").removeprefix("INVALID_ARGUMENT: ")
    # Where XLA reads a vector that was never set, its message holds a random size.
    message = re.sub(r"\b1844\d{16}\b", "?", message)
    # Protocol buffers are printed with white space that differs from run to run on purpose.
    return re.sub(r"goo\.gle/debug\w+\s+", "", message)


def verdict_of(text: str) -> Iterator[dict[str, object]]:
    """What XLA says about one text; the second answer adds the printed form."""
    from jaxlib import _hlo

    try:
        parsed = _hlo.hlo_module_from_text(text)
    except Exception as error:
        yield {"verdict": "reject", "message": first_message(str(error))}
        return
    computations = [
        [
            computation.name,
            [
                [instruction.name, opcode_name(instruction.opcode.name), [other.name for other in instruction.operands()]]
                for instruction in computation.instructions()
            ],
        ]
        for computation in parsed.computations()
    ]
    # Printing may end the process although parsing did not: what is known by then goes out first.
    yield {"verdict": "accept", "computations": computations}
    long_form = parsed.to_string()
    if len(long_form) < LONG_FORM_LIMIT:
        yield {"verdict": "accept", "computations": computations, "long": long_form}


def child() -> None:
    """Reads JSON strings from standard input; answers are lines, an empty one ends each text's."""
    for line in sys.stdin:
        for answer in verdict_of(json.loads(line)):
            sys.stdout.write(json.dumps(answer) + "\n")
            sys.stdout.flush()
        sys.stdout.write("\n")
        sys.stdout.flush()


def check_failure(stderr: str) -> str:
    """The first fatal log line without its time, thread and place in the source, if there is one."""
    for line in stderr.splitlines():
        match = re.match(r"F\d+ [\d:.]+ +\d+ [^\]]*\] (.*)", line)
        if match:
            return match[1]
    return ""


def judge(texts: list[str]) -> Iterator[dict[str, object]]:
    """The verdict on each text, in order; a child that dies is replaced."""
    start = 0
    while start < len(texts):
        asked = "".join(json.dumps(text) + "\n" for text in texts[start:])
        done = subprocess.run(
            [sys.executable, "-P", __file__, "--child"],
            input=asked, capture_output=True, text=True, timeout=600,
        )
        *finished, last = done.stdout.split("\n\n")
        for answers in finished:
            yield json.loads(answers.splitlines()[-1])
        start += len(finished)
        # A text may fall victim to what an earlier one did to the memory: it is asked again, alone
        # at the start of a new child, and only that answer counts.
        if start < len(texts) and not finished:
            if done.returncode >= 0:
                raise RuntimeError(f"the judge itself failed:\n{done.stderr}")
            message = check_failure(done.stderr) or f"signal {-done.returncode}"
            known = last.splitlines()
            yield json.loads(known[-1]) if known else {"verdict": "abort", "message": message}
            start += 1


def stable(texts: list[str]) -> Iterator[dict[str, object]]:
    """Two judgements, without what differs between them: XLA reads unset memory here and there."""
    for first, other in zip(judge(texts), judge(texts), strict=True):
        if first["verdict"] != other["verdict"]:
            first = {"verdict": "reject", "message": "accepted or not by chance"}
        yield {key: value for key, value in first.items() if other.get(key) == value}


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--child", action="store_true", help="answer texts on standard input")
    options.add_argument("--only", default="", help="judge ids with this prefix, print, write nothing")
    arguments = options.parse_args()
    if arguments.child:
        child()
        return
    from .catalog import all_probes

    probes = [probe for probe in all_probes() if probe.id.startswith(arguments.only)]
    rows = []
    for probe, verdict in zip(probes, stable([probe.text for probe in probes]), strict=True):
        if probe.expected and probe.expected != verdict["verdict"] and not probe.newest:
            print(f"{probe.id}: the reference says {probe.expected}, XLA: {verdict['verdict']} "
                  f"{verdict.get('message', '')}")
        rows.append({"id": probe.id, "row": probe.row, "text": probe.text, **verdict})
    if arguments.only:
        for row in rows:
            print(row["id"], row["verdict"], row.get("message", ""), sep="\t")
        return
    lines = "".join(json.dumps(row, ensure_ascii=True) + "\n" for row in rows)
    VERDICTS.write_bytes(gzip.compress(lines.encode(), compresslevel=9, mtime=0))
    print(f"{len(rows)} probes, {VERDICTS.stat().st_size} bytes")


if __name__ == "__main__":
    main()
