"""Columns of `Measured`."""

from __future__ import annotations

from hlofast._core import Field

KEY = Field("text", "key", "The value of the key.", nullable=True)
INSTRUCTIONS = Field("count", "instructions", "Number of instructions with events.", adds_up=True)
MEASURED = Field(
    "seconds",
    "measured_seconds",
    "Measured device time per step, summed over concurrent streams.",
    label="measured s",
    adds_up=True,
)
MODELLED = Field(
    "seconds",
    "modelled_seconds",
    "Modelled time of all calls of the same instructions, without overlap.",
    label="modelled s",
    nullable=True,
    adds_up=True,
)
RATIO = Field(
    "number", "ratio", "Measured time divided by modelled time.", label="measured/modelled",
    nullable=True,
)  # fmt: skip
OF_CALLS = MEASURED.replace(
    doc="Measured time of all calls in a step, from the profile of the context.", nullable=True
)
OF_CALLS_EXPOSED = OF_CALLS.replace(
    name="measured_exposed_seconds",
    doc="The part of the measured time of all calls in which nothing computes.",
    label="measured exposed s",
)
SHARE = Field("ratio", "share", "Share of all measured time in the table.", nullable=True)
STEP_SHARE = Field("ratio", "share", "Share of the step.", nullable=True)
PARTS = (
    Field("word", "part", "Compute, exposed communication, copies, other or idle."),
    Field("axes", "axes", "Mesh axes of the exposed collectives.", nullable=True),
    MEASURED.replace(doc="Seconds of the step in this part."),
    STEP_SHARE,
    MODELLED.replace(doc="Modelled seconds of the step in this part.", adds_up=False),
)
AXES = (
    Field("axes", "axes", "The mesh axes.", nullable=True),
    Field("seconds", "seconds", "Time in which a collective along the axes runs."),
    Field("seconds", "exposed_seconds", "The exposed part, which no computation hides.",
          label="exposed s", adds_up=True),
    Field("seconds", "hidden_seconds", "The hidden part, during which the device computes.",
          label="hidden s"),
    Field("ratio", "share", "Exposed time as a share of the step.", nullable=True),
    Field("seconds", "modelled_exposed_seconds", "Modelled exposed time along the axes.",
          label="modelled exposed s", nullable=True),
)  # fmt: skip
CALLS = Field("number", "calls", "Events of the instruction in the step.")
LEAST = Field("seconds", "least_seconds", "The shortest sum of one run.", label="min s")
MEDIAN = Field("seconds", "median_seconds", "The median of the sums of all runs.", label="median s")
MOST = Field("seconds", "most_seconds", "The longest sum of one run.", label="max s")
FLOPS = Field(
    "flop_rate", "flops_per_second", "FLOPs of all calls over the measured time.", label="FLOP/s",
    nullable=True,
)  # fmt: skip
BYTES = Field(
    "byte_rate",
    "bytes_per_second",
    "Bytes read and written by all calls over the measured time.",
    label="B/s",
    nullable=True,
)
ROOFLINE = Field(
    "ratio",
    "roofline_share",
    "Roofline time (at peak FLOP/s or full bandwidth) divided by measured time.",
    label="roofline share",
    nullable=True,
)
WIRE_RATE = Field(
    "byte_rate", "wire_bytes_per_second", "Bytes sent by a device over the measured time.",
    label="wire B/s", nullable=True,
)  # fmt: skip
DEVICES = (
    Field("name", "host", "The host.", nullable=True),
    Field("name", "device", "The device."),
    Field("count", "runs", "Number of runs of the program."),
    Field("seconds", "least_seconds", "The shortest run.", label="min s"),
    Field("seconds", "median_seconds", "The run of median length.", label="median s"),
    Field("seconds", "most_seconds", "The longest run.", label="max s"),
    Field("seconds", "idle_seconds", "Idle time of the median run.", label="idle s"),
    Field("seconds", "exposed_seconds", "Exposed communication of the median run.",
          label="exposed s"),
    Field("seconds", "gap_seconds", "Median time between runs.", label="gap s", nullable=True),
)  # fmt: skip
