"""Accuracy of the step time of configs against step times that trainers published.

    python benches/config_accuracy.py [--json FILE] FOLDER

FOLDER holds AXLearn's golden configs; rows whose golden is missing are skipped. They are public:

* `fuji-7B.txt` is in the wheel `axlearn-0.0.1.post20240213000026` (PyPI), in
  `axlearn/experiments/testdata/axlearn.experiments.text.gpt.c4_trainer`;
* `fuji-70B-v2-flash.txt` is in the repository apple/axlearn under the same path.

The other configs of the table are those with changes, which `ROWS` lists: they differ from the
goldens of their names in nothing that the model reads. Some figures name a config that exists with
and without a flash kernel (`fuji-7B-v1`, `fuji-7B-v1-flash`) and do not say which of the two ran.
Such a figure has two rows, which weigh half each.

Fitted are the rates in `FITTED`, on the logarithms of modelled over published steps; a weak prior
keeps rates that few rows determine near their starting values. MaxText's steps on several slices
are judged and in no fit: the wait for other slices is the device figure `slice_wait`, which
`time_slices.py` fits. "left out" is the error with the rates of a fit without all rows of that
figure.
"""

from __future__ import annotations

import argparse
import json
import math
from pathlib import Path
from typing import Any

import numpy as np

import hlofast
from hlofast.config import Config, _time

FUJI = "apple/axlearn, axlearn/experiments/text/gpt/fuji.py, comments (2024)"
GALA = "apple/axlearn, axlearn/experiments/text/gpt/gala.py, comments (2024)"
MAXTEXT_V5E = "AI-Hypercomputer/maxtext, configs/tpu/v5e/README.md"
MAXTEXT_V5P = "AI-Hypercomputer/maxtext, configs/tpu/v5p/README.md"
MAXTEXT_TIERS = "AI-Hypercomputer/maxtext, model tiering"
MAXTEXT_V4 = "AI-Hypercomputer/maxtext, configs/tpu/v4/README.md"

DECODER = "model.decoder."
LAYER = DECODER + "transformer.layer."
ATTENTION = LAYER + "self_attention.attention."
POLICY = LAYER + "remat_spec['policy']"
DOTS = "jax._src.ad_checkpoint.dots_saveable"
NOTHING = "jax._src.ad_checkpoint.nothing_saveable"
PROJECTIONS = Config.of(
    fn="axlearn.common.attention._save_and_offload_only_these_names_regex",
    names_which_can_be_offloaded=None,
    names_which_can_be_saved=".*([qkvo]_proj|context)",
    offload_dst="pinned_host",
    offload_src="device",
)
"""The policy of AXLearn's decoder layers where no mesh rule sets another."""


class Row:
    """A published step and the config that stands for it."""

    def __init__(
        self,
        name: str,
        instance: str,
        seconds: float,
        source: str,
        golden: str = "fuji-7B.txt",
        *,
        curve: str | None = None,
        weight: float = 1.0,
        **changes: Any,
    ) -> None:
        self.name = name
        self.instance = instance
        self.seconds = seconds
        self.source = source
        self.golden = golden
        self.curve = curve
        self.weight = weight
        self.changes = changes
        self.values: dict[str, Any] = {}
        self.demand: _time.Demand | None = None
        self.backend = ""

    @property
    def figure(self) -> tuple[object, ...]:
        """Rows with the same figure are left out of a fit together."""
        return (self.curve,) if self.curve else (self.instance, self.seconds)

    def load(self, folder: Path) -> bool:
        """Reads what a device has to do; False if the golden is missing."""
        path = folder / self.golden
        if not path.exists():
            return False
        config = hlofast.config.load(path)
        if self.changes:
            config = changed(config, **self.changes)
        if self.values:
            config = config.without("mesh_rules").replace(self.values)
        verdict = config.select(self.instance).verdict()
        if verdict.time is None or verdict.communication_seconds is None:
            raise ValueError(f"{self.name} on {self.instance}: {verdict.gaps}")
        self.demand = verdict.time.demand
        self.backend = hlofast.devices.get(verdict.device or "").backend
        return True


def changed(
    config: Config,
    *,
    mesh: tuple[int, int, int],
    layers: int = 32,
    width: int = 4096,
    heads: int = 32,
    attention: int | None = None,
    hidden: int | None = None,
    gated: bool = True,
    vocabulary: int = 32768,
    length: int = 2048,
    batch: int = 2048,
    flash: bool = False,
    policy: Any = PROJECTIONS,
) -> Config:
    """`fuji-7B.txt` with another model, batch, policy and mesh (data, fsdp, model); no rules."""
    values: dict[str, Any] = {
        DECODER + "transformer.num_layers": layers,
        DECODER + "dim": width,
        DECODER + "vocab_size": vocabulary,
        ATTENTION + "num_heads": heads,
        "input.source.max_sequence_length": length,
        "input.batcher.global_batch_size": batch,
        POLICY: policy,
    }
    if attention is not None:
        values[ATTENTION + "hidden_dim"] = attention
    if hidden is not None:
        values[LAYER + "feed_forward.hidden_dim"] = hidden
    if not gated:
        values[LAYER + "feed_forward.activation"] = "nn.gelu"
    if flash:
        values[ATTENTION + "klass"] = "axlearn.common.flash_attention.layer.FlashAttention"
        values[ATTENTION + "causal"] = True
    data, fsdp, model = mesh
    for index, size in enumerate((data, 1, fsdp, 1, model)):
        values[f"mesh_shape[{index}]"] = size
    return config.without("mesh_rules").replace(values)


def llama(
    name: str, rate: float, *, layers: int, width: int, heads: int, hidden: int, vocabulary: int,
    length: int, per_device: int, offloaded: str,
) -> Row:  # fmt: skip
    """A model of MaxText on a slice of TPU v6e, from `fuji-70B-v2-flash.txt`; `rate` in tokens."""
    row = Row(name, "tpu-v6e-256", per_device * length / rate, MAXTEXT_TIERS,
              "fuji-70B-v2-flash.txt", weight=0.0)  # fmt: skip
    row.values = {
        DECODER + "transformer.num_layers": layers,
        DECODER + "dim": width,
        DECODER + "vocab_size": vocabulary,
        ATTENTION + "num_heads": heads,
        LAYER + "feed_forward.hidden_dim": hidden,
        "input.source.max_sequence_length": length,
        "input.input_dispatcher.global_logical_batch_size": per_device * 256,
        POLICY + ".names_which_can_be_saved": None,
        POLICY + ".names_which_can_be_offloaded": offloaded,
        "mesh_shape": [1, 1, 1, 256, 1, 1],
    }
    return row


def both(name: str, instance: str, seconds: float, source: str, **changes: Any) -> list[Row]:
    """Rows of a figure that does not say whether a flash kernel ran."""
    return [
        Row(name, instance, seconds, source, weight=0.5, **changes),
        Row(
            name.replace(",", "-flash,") if "," in name else f"{name}-flash",
            instance,
            seconds,
            source,
            weight=0.5,
            flash=True,
            **changes,
        ),
    ]


def maxtext(
    name: str,
    instance: str,
    mesh: tuple[int, int],
    rates: dict[int, float],
    source: str,
    per_device: int,
    **model: Any,
) -> list[Row]:
    """Rows of one model on several numbers of slices; `rates` are TFLOP/s per chip.

    MaxText counted all pairs of tokens of attention (half of them since mid-2025).
    """
    length = 2048
    fsdp, tensor = mesh
    tokens = per_device * length
    gates = 3 if model.get("gated", True) else 2
    weights = model["layers"] * model["width"] * (gates * model["hidden"] + 4 * model["attention"])
    operations = 6.0 * tokens * (weights + 32000 * model["width"])
    operations += 12.0 * tokens * model["layers"] * length * model["attention"]
    model |= {"flash": True, "vocabulary": 32000}
    return [
        Row(
            name,
            instance if slices == 1 else f"{instance}-{slices}",
            operations / (rate * 1e12),
            source,
            curve=name,
            weight=0.0,
            mesh=(slices, fsdp, tensor),
            batch=per_device * fsdp * tensor * slices,
            **model,
        )
        for slices, rate in rates.items()
    ]


LLAMA_2 = {"length": 4096, "batch": 1024}
GALA_85M = {"layers": 12, "width": 768, "heads": 12, "batch": 256, "length": 4096}
GALA_1B = {"layers": 24, "width": 2048, "heads": 32, "batch": 256, "length": 4096}
ROWS = [
    *both("fuji-7B-v1", "tpu-v4-1024", 3.03, FUJI, mesh=(-1, 16, 1)),
    # The mesh rule when the figure was published, then the golden's.
    Row("fuji-7B-v1 (2024)", "tpu-v5litepod-256-4", 2.44, FUJI, weight=0.5, mesh=(-1, 16, 1)),
    Row(
        *("fuji-7B-v1-flash", "tpu-v5litepod-256-4", 2.44, FUJI),
        weight=0.5, mesh=(-1, 256, 1), policy=DOTS, flash=True,
    ),
    *both("fuji-7B-v1", "tpu-v5p-512", 2.85, FUJI, mesh=(-1, 8, 1)),
    *both("fuji-7B-v1", "gpu-p5.48xlarge-256", 2.44, FUJI, mesh=(-1, 8, 1)),
    *both("fuji-7B-v1", "gpu-p5.48xlarge-512", 1.54, FUJI, mesh=(-1, 8, 1)),
    *both("fuji-7B-v1, 128 k tokens", "gpu-p5.48xlarge-8", 2.03, FUJI, mesh=(-1, 8, 1), batch=64),
    *both("fuji-7B-v1, 64 k tokens", "gpu-p5.48xlarge-8", 1.1, FUJI, mesh=(-1, 8, 1), batch=32),
    *both(
        *("fuji-7B-v2, 64 k tokens", "gpu-p5.48xlarge-8", 1.54, FUJI),
        mesh=(-1, 8, 1), batch=16, length=4096,
    ),
    *both("fuji-7B-v1, 128 k tokens", "tpu-v5litepod-32", 1.93, FUJI, mesh=(-1, 16, 1), batch=64),
    Row(
        *("fuji-7B-v2-flash", "tpu-v5litepod-256-4", 2.21, FUJI),
        mesh=(-1, 256, 1), policy=DOTS, flash=True, **LLAMA_2,
    ),
    Row(
        *("fuji-7B-v2-flash", "gpu-p5.48xlarge-256", 1.78, FUJI),
        mesh=(-1, 8, 1), flash=True, **LLAMA_2,
    ),
    Row("fuji-70B-v2-flash", "tpu-v5litepod-256-4", 14.3736, FUJI, "fuji-70B-v2-flash.txt"),
    Row("fuji-70B-v2-flash", "gpu-p5.48xlarge-512", 12.9, FUJI, "fuji-70B-v2-flash.txt"),
    llama(
        "MaxText Llama 2 70B", 900, layers=80, width=8192, heads=64, hidden=28672,
        vocabulary=32000, length=4096, per_device=3, offloaded=".*[qkv]_proj",
    ),
    llama(
        "MaxText Llama 3.1 8B", 7207, layers=32, width=4096, heads=32, hidden=14336,
        vocabulary=128256, length=8192, per_device=4, offloaded=".*[qkvo]_proj",
    ),
    # Published later; judged, and in no fit.
    Row("fuji-70B-v2-flash", "tpu-v6e-256-4", 4.9, FUJI, "fuji-70B-v2-flash.txt", weight=0.0),
    Row("fuji-70B-v2-flash", "tpu-v6e-256", 19.5, FUJI, "fuji-70B-v2-flash.txt", weight=0.0),
    *both("gala-85M", "tpu-v5litepod-256", 0.18, GALA, mesh=(-1, 1, 1), **GALA_85M),
    *both("gala-1B", "tpu-v5litepod-256", 0.87, GALA, mesh=(-1, 8, 1), **GALA_1B),
    *maxtext(
        *("MaxText 16B", "tpu-v5litepod-256", (256, 1)),
        {1: 120, 2: 117, 4: 117, 8: 115, 16: 111, 32: 108}, MAXTEXT_V5E, 6,
        layers=32, width=4096, heads=64, attention=8192, hidden=28672, policy=NOTHING,
    ),
    *maxtext(
        *("MaxText 64B", "tpu-v5litepod-256", (256, 1)),
        {1: 118, 2: 112, 4: 110, 8: 108, 16: 105, 32: 99}, MAXTEXT_V5E, 2,
        layers=64, width=8192, heads=64, attention=8192, hidden=28672, policy=NOTHING,
    ),
    *maxtext(
        *("MaxText 22B", "tpu-v4-128", (64, 1)),
        {1: 156, 2: 152, 4: 149, 8: 146}, MAXTEXT_V4, 13,
        layers=48, width=6144, heads=24, attention=6144, hidden=24576, gated=False, policy=NOTHING,
    ),
    *maxtext(
        *("MaxText 128B", "tpu-v5p-256", (16, 8)), {1: 315}, MAXTEXT_V5P, 1,
        layers=64, width=8192, heads=128, attention=16384, hidden=57344, policy=DOTS,
    ),
]  # fmt: skip

FITTED: tuple[tuple[str, tuple[_time.Rates, ...], float, float], ...] = (
    ("passes", (_time.TPU, _time.GPU), 16.0, 0.3),
    ("score_passes", (_time.TPU, _time.GPU), 5.0, 0.5),
    ("between_steps", (_time.TPU, _time.GPU), 0.05, 0.2),
    ("matmul", (_time.GPU,), 0.8, 0.1),
    ("links", (_time.GPU,), 0.3, 0.3),
    ("network", (_time.GPU,), 0.3, 0.3),
)
"""Rates with the devices that share them; starting value and spread (of the logarithm) of the
prior. A rate one spread away costs as much as a row with an error of `SCALE`."""
SCALE = 0.15
"""Errors (of the logarithm) beyond this count linearly: a figure may be of another config."""


def rates_of(point: np.ndarray) -> dict[str, _time.Rates]:
    """The rates by backend at a point of the fit (logarithms over starting values)."""
    found = {}
    for backend, rates in (("tpu", _time.TPU), ("gpu", _time.GPU)):
        values = {name: getattr(rates, name) for name in _time.Rates.__slots__}
        for (name, shared, start, _), own in zip(FITTED, point, strict=True):
            if rates in shared:
                values[name] = start * math.exp(own)
        values["matmul"] = min(values["matmul"], 1.0)
        found[backend] = _time.Rates(**values)
    return found


def modelled(row: Row, rates: dict[str, _time.Rates]) -> float:
    """The modelled step of a row."""
    assert row.demand is not None
    return _time.StepTime(row.demand, rates[row.backend]).seconds


def residuals(point: np.ndarray, rows: list[Row]) -> tuple[np.ndarray, np.ndarray]:
    """Errors of the logarithms with their weights, then the distance from the prior."""
    rates = rates_of(point)
    errors, weights = [], []
    for row in rows:
        if row.weight == 0:
            continue
        errors.append(math.log(modelled(row, rates) / row.seconds) / SCALE)
        weights.append(row.weight)
    for own, (*_, spread) in zip(point, FITTED, strict=True):
        errors.append(own / spread)
        weights.append(1.0)
    return np.array(errors), np.array(weights)


def fit(rows: list[Row]) -> np.ndarray:
    """The fitted point: Gauss-Newton steps, errors beyond `SCALE` weighted down (soft L1)."""
    point = np.zeros(len(FITTED))
    for _ in range(40):
        errors, weights = residuals(point, rows)
        weights = weights / np.sqrt(1 + errors**2)
        slopes = np.empty((len(errors), len(point)))
        for index in range(len(point)):
            moved = point.copy()
            moved[index] += 1e-4
            slopes[:, index] = (residuals(moved, rows)[0] - errors) / 1e-4
        normal = slopes.T @ (weights[:, None] * slopes)
        point -= 0.5 * np.linalg.solve(normal, slopes.T @ (weights * errors))
    return point


def main() -> None:
    """Prints fitted and left-out errors per row, and the rates."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path, help="folder with golden configs")
    parser.add_argument("--json", type=Path, help="write the table to this file")
    arguments = parser.parse_args()
    rows = [row for row in ROWS if row.load(arguments.folder)]
    if missing := sorted({row.golden for row in ROWS} - {row.golden for row in rows}):
        print("skipped, no golden:", ", ".join(missing))
    if not rows:
        return
    whole = rates_of(fit(rows))
    shipped = {"tpu": _time.TPU, "gpu": _time.GPU}
    left = {}
    for figure in dict.fromkeys(row.figure for row in rows):
        left[figure] = rates_of(fit([row for row in rows if row.figure != figure]))
    print(f"{'config':31}{'instance':22}{'published':>10}{'left out':>10}{'error':>8}"
          f"{'fitted':>8}{'shipped':>8}")  # fmt: skip
    table = []
    for row in rows:
        out = modelled(row, left[row.figure])
        errors = [
            value / row.seconds - 1
            for value in (out, modelled(row, whole), modelled(row, shipped))
        ]  # fmt: skip
        print(f"{row.name:31}{row.instance:22}{row.seconds:10.3f}{out:10.3f}"
              + "".join(f"{100 * error:+7.1f}%" for error in errors))  # fmt: skip
        table.append(
            {
                "config": row.name, "instance": row.instance, "published_seconds": row.seconds,
                "left_out_seconds": out, "left_out_error": errors[0], "fitted_error": errors[1],
                "shipped_error": errors[2], "source": row.source,
            }
        )  # fmt: skip
    for label, chosen in (
        ("AXLearn, left out", [entry for entry in table if "MaxText" not in entry["config"]]),
        ("MaxText, absolute", [entry for entry in table if "MaxText" in entry["config"]]),
    ):
        shares = [abs(entry["left_out_error"]) for entry in chosen]
        ratios = [1 / (1 + entry["left_out_error"]) - 1 for entry in chosen]
        if not shares:
            continue
        low, high = np.percentile(ratios, (10, 90))
        within = sum(error <= 0.15 for error in shares) / len(shares)
        print(
            f"{label}: {len(shares)} rows, median {100 * float(np.median(shares)):.1f} %, "
            f"{100 * within:.0f} % within 15 %, worst {100 * max(shares):.1f} %; published over "
            f"modelled, 10th to 90th percentile: {low:+.3f} to {high:+.3f}"
        )
    for curve in dict.fromkeys(row.curve for row in rows if row.curve):
        shown = slices_of(curve, rows, left[(curve,)])
        if shown:
            print(f"{curve}, added by slices (modelled / published): {shown}")
    for backend, rates in whole.items():
        print(backend, {name: round(getattr(rates, name), 4) for name in _time.Rates.__slots__})
    if arguments.json:
        arguments.json.write_text(json.dumps(table, indent=1) + "\n")


def slices_of(curve: str, rows: list[Row], rates: dict[str, _time.Rates]) -> str:
    """What slices add to the step of one: modelled / published."""
    one, *more = [row for row in rows if row.curve == curve]
    first = modelled(one, rates)
    return ", ".join(
        f"{row.changes['mesh'][0]}: {100 * (modelled(row, rates) / first - 1):.1f} / "
        f"{100 * (row.seconds / one.seconds - 1):.1f} %"
        for row in more
    )


if __name__ == "__main__":
    main()
