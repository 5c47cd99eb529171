"""Compares peaks and recomputed FLOPs of attention under checkpoint policies with XLA's.

    python benches/softmax_accuracy.py

The steps of `tests/fixtures/make_softmaxes.py`: attention alone in scans and in Python loops, in
forms that the model was made with and that it was not. Prints the tables of benches/README.md.
"""

import itertools
import json
import re
import statistics
import sys
from pathlib import Path

import hlofast

FIXTURES = Path(__file__).resolve().parent.parent / "tests" / "fixtures"
sys.path.insert(0, str(FIXTURES))

import policy_texts  # noqa: E402 - found by the line above

CHIPS = ("v5e", "v5p", "v6e")
KINDS = {"softmaxes": "scans", "loop_softmaxes": "Python loops"}
"""What the layers of each archive are in."""


def errors(name: str, is_before: bool) -> dict[str, dict[tuple[str, str], tuple[float, bool]]]:
    """By form, chip and policy: the error of the peak, and whether recomputed FLOPs are XLA's."""
    lines = (FIXTURES / "policies" / f"{name}.jsonl").read_text().splitlines()
    texts = policy_texts.unpack(name)
    found: dict[str, dict[tuple[str, str], tuple[float, bool]]] = {}
    for record in map(json.loads, lines):
        if record["policy"] == "none":
            continue
        form, chip = record["program"].removeprefix("loop_").rsplit("_", 1)
        text = texts[f"{record['program']}.none{'.before' * is_before}"]
        policies = hlofast.loads(text).with_context(device=f"tpu-{chip}").remat().policies
        if policies is None:
            sys.exit(f"{record['program']}: no policies")
        own = policies.policy(policy_texts.BUILT_IN[record["policy"]])
        is_same = own.recomputed_flops == record["recomputed_flops"]
        error = own.peak / record["peak"] - 1
        found.setdefault(form, {})[chip, record["policy"]] = error, is_same
    return found


def main() -> None:
    """Prints the tables."""
    for (name, kind), is_before in itertools.product(KINDS.items(), (False, True)):
        known = errors(name, is_before)
        title = f"{kind}, {'before' if is_before else 'after'} optimisation"
        policies = [(chip, policy) for policy in policy_texts.BUILT_IN for chip in CHIPS]
        print(f"| {title} | {' | '.join(', '.join(own) for own in policies)} |")
        print("|---" * 10 + "|")
        for form, own in known.items():
            cells = [f"{own[pair][0]:+.1%}" if pair in own else "" for pair in policies]
            print(f"| `{form}` | {' | '.join(cells)} |")
        # Forms with a number of keys in their names were compiled for one rule, and count in none.
        for label, is_fitted in (("made with", True), ("unseen", False)):
            forms = [
                own
                for form, own in known.items()
                if (form in policy_texts.SOFTMAXES) == is_fitted and not re.search(r"\d{4}$", form)
            ]
            rows = [row for own in forms for row in own.values()]
            sizes = [abs(error) for error, _ in rows]
            print(
                f"{label}: {len(rows)} peaks, median {statistics.median(sizes):.1%}, "
                f"within 5 % {sum(own <= 0.05 for own in sizes)}, "
                f"within 12 % {sum(own <= 0.12 for own in sizes)}, worst {max(sizes):.1%}; "
                f"FLOPs as XLA's {sum(is_same for _, is_same in rows)}"
            )


if __name__ == "__main__":
    main()
