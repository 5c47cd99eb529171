"""Reading protobufs, compared with XLA's own reader."""

import time
from typing import Any

import pytest

import hlofast
from harness import Figure, Record, geometric_mean, interleave
from texts import Text, dumps, seed

SEED = seed()
# Texts of quick mode: small texts from both compilers.
QUICK = ("cpu_dense_scanned.before", "cpu_dense_scanned.after", "tpu_mixture.before")
ASKED = 10
ASKED_OF_EACH = 6.5


def all_texts() -> list[Text]:
    return [*([SEED] if SEED else []), *dumps()]


@pytest.mark.parametrize("text", all_texts(), ids=lambda text: text.name)
def bench_proto(text: Text, record: Record, quick: bool, xla_parse: Any) -> None:
    if quick and text is not SEED and text.name not in QUICK:
        # With --quick. Recorded results come from runs without it.
        pytest.skip("not among the quick ones")
    from jaxlib import _hlo

    # XLA's reader takes the module without the HloProto around it.
    module = xla_parse(text.read().decode())
    data = module.as_serialized_hlo_module_proto()
    rounds = 2 if quick else round(min(max(25 / (len(data) / 1e6), 3), 20))
    # Both work in the calling thread, whose processor time does not depend on other load.
    times = interleave(
        {
            "xla": lambda: _hlo.HloModule.from_serialized_hlo_module_proto(data),
            "ours": lambda: hlofast.loads(data, threads=1),
        },
        rounds,
        turns={"ours": 5},
        clock=time.thread_time,
    )
    own = hlofast.loads(data, threads=1)
    assert len(own) == sum(len(each.instructions()) for each in module.computations())
    record.details.append({
        "text": text.name,
        "bytes": len(data),
        "instructions": len(own),
        "ours": times["ours"].facts(),
        "xla": times["xla"].facts(),
        "ratio": times["xla"].best / times["ours"].best,
        "ratio_of_medians": times["xla"].median / times["ours"].median,
    })  # fmt: skip


def bench_figures(record: Record) -> None:
    """Computes the figures of the table from the runs above, without measuring."""
    ratios = {row["text"]: row["ratio"] for row in record.details}
    if ratios:
        title = f"read a protobuf, processor time, geometric mean of {len(ratios)} modules"
        record.figures.append(Figure(title, geometric_mean(ratios.values()), at_least=ASKED))
        least = min(ratios, key=ratios.__getitem__)
        title = "read a protobuf, processor time, slowest of these"
        record.figures.append(Figure(title, ratios[least], at_least=ASKED_OF_EACH, note=least))
