"""Parsing (plain, with all columns, strict) compared with XLA's parser and xprof's database."""

import json
import statistics
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from harness import Figure, Record, against, checksum, geometric_mean, interleave
from texts import Text, dumps, seed
from work import plain, strict, with_columns

CHECKSUMS = Path(__file__).with_name("checksums.json")
SEED = seed()
# Texts of quick mode: small texts from every compiler.
QUICK = (
    "cpu_dense_scanned.before", "cpu_dense_scanned.after", "cpu_collectives.before.short",
    "tpu_mixture.before", "tpu_dense_scanned_wide.after", "cpu_optimizers.after.bare",
)  # fmt: skip


def graph_database(text: str) -> Any:
    """xprof's graph database, with the indexes that its own tools read."""
    from xprof.cli.internal import hlo_graph_db

    database = hlo_graph_db.HloGraphDb.from_text(text)
    database._ensure_all_indexed()
    return database


ASKED: dict[str, tuple[Callable[[bytes], Any], str, dict[str, float], dict[str, float]]] = {
    # key: work, title, target for the seed, targets for the mean and for each dump.
    "plain": (plain, "parse", {"seed": 45}, {"mean": 35, "each": 25}),
    "columns": (with_columns, "parse, all columns and users", {"seed": 35}, {"mean": 27}),
    "strict": (strict, "strict parse, every attribute decoded", {"seed": 20}, {"mean": 15}),
}


def all_texts() -> list[Text]:
    return [*([SEED] if SEED else []), *dumps()]


@pytest.mark.parametrize("text", all_texts(), ids=lambda text: text.name)
@pytest.mark.parametrize("what", list(ASKED))
def bench_parse(
    what: str,
    text: Text,
    benchmark: Any,
    record: Record,
    quick: bool,
    xla_parse: Callable[[str], Any],
    request: pytest.FixtureRequest,
) -> None:
    if quick and text is not SEED and text.name not in QUICK:
        # With --quick. Recorded results come from runs without it.
        pytest.skip("not among the quick ones")
    data = text.read()
    decoded = data.decode()
    work = ASKED[what][0]
    megabytes = len(data) / 1e6
    # XLA reads about 25 MB/s: enough rounds for a second per text, and at least three.
    rounds = 2 if quick else round(min(max(25 / megabytes, 3), 20))
    benchmark.group = what
    times = against(benchmark, lambda: work(data), {"xla": lambda: xla_parse(decoded)}, rounds)

    module = work(data)
    check(text, module, xla_parse(decoded), accept=request.config.getoption("--accept"))
    detail: dict[str, Any] = {
        "what": what,
        "text": text.name,
        "bytes": len(data),
        "instructions": module.instruction_count,
        "ours": times["ours"].facts(),
        "xla": times["xla"].facts(),
        "ratio": times["xla"].best / times["ours"].best,
        "ratio_of_medians": times["xla"].median / times["ours"].median,
    }
    if what == "plain" and (text is SEED or text.name in QUICK):
        xprof = {"xprof": lambda: graph_database(decoded)}
        peer = interleave(xprof, 1 if quick else 2)["xprof"]
        detail["xprof"] = peer.facts()
        detail["ratio_to_xprof"] = peer.best / times["ours"].best
    record.details.append(detail)


def check(text: Text, module: Any, peer: Any, *, accept: bool) -> None:
    """Checks the work: as many rows as the index and XLA have, and the recorded checksum."""
    if text.instructions is not None:
        assert len(module) == text.instructions
    assert len(module) == sum(len(c.instructions()) for c in peer.computations())
    recorded = json.loads(CHECKSUMS.read_text()) if CHECKSUMS.exists() else {}
    current = checksum(module)
    if accept:
        recorded[text.name] = current
        CHECKSUMS.write_text(json.dumps(dict(sorted(recorded.items())), indent=1) + "\n")
    assert recorded.get(text.name) == current, "another module than recorded: --accept to record it"


def bench_figures(record: Record) -> None:
    """Computes the figures of the table from the runs above, without measuring."""
    for what, (_, title, of_seed, of_dumps) in ASKED.items():
        rows = [row for row in record.details if row["what"] == what]
        ratios = {row["text"]: row["ratio"] for row in rows if row["text"] != "seed_002"}
        for row in rows:
            if row["text"] == "seed_002":
                note = f"{row['bytes'] / row['ours']['best'] / 1e9:.2f} GB/s"
                record.figures.append(
                    Figure(f"{title}, seed 002", row["ratio"], at_least=of_seed["seed"], note=note)
                )
        if ratios:
            mean, least = geometric_mean(ratios.values()), min(ratios, key=ratios.__getitem__)
            record.figures.append(
                Figure(
                    f"{title}, geometric mean of {len(ratios)} dumps", mean,
                    at_least=of_dumps["mean"],
                )
            )  # fmt: skip
            if "each" in of_dumps:
                record.figures.append(
                    Figure(
                        f"{title}, slowest of these", ratios[least], at_least=of_dumps["each"],
                        note=least,
                    )
                )  # fmt: skip
    peers = [row["ratio_to_xprof"] for row in record.details if "ratio_to_xprof" in row]
    if peers:
        title = f"parse, against xprof's HloGraphDb, median of {len(peers)} texts"
        record.figures.append(Figure(title, statistics.median(peers)))
