"""The columns of the tables of `hlofast.Policies`, and the texts of its notes."""

from __future__ import annotations

from hlofast._core import Field

TYPE_CHECKING = False
if TYPE_CHECKING:
    from hlofast._policies import Policies
    from hlofast.table import Table

_OUTCOME = (
    Field(
        "bytes",
        "peak",
        "Peak bytes of device memory: modelled, but counted for the policy as compiled.",
    ),
    Field(
        "word",
        "fits",
        "Whether the step fits: yes, no, or tight (a modelled peak that leaves less than the "
        "margin for the model's error).",
        nullable=True,
    ),
    Field("bytes", "kept", "Bytes kept from the forward to the backward loops over layers."),
    Field("bytes", "on_host", "Bytes kept in host memory.", label="on host", nullable=True),
    Field(
        "flops",
        "recomputed_flops",
        "FLOPs of matmuls and kernels that a step recomputes.",
        label="recomputed FLOP",
        nullable=True,
    ),
    Field(
        "bytes",
        "recomputed_wire_bytes",
        "Bytes that each device sends per step for recomputation, assuming rings.",
        label="recomputed wire B",
        nullable=True,
    ),
    Field(
        "seconds",
        "recomputed_seconds",
        "Modelled time of recomputation per step, without transfers that nothing waits for.",
        label="recomputation time",
        nullable=True,
    ),
    Field(
        "seconds",
        "waiting_seconds",
        "Modelled time per step spent waiting for values that move to or from host memory.",
        label="waiting for host",
        nullable=True,
    ),
    Field(
        "seconds",
        "storing_seconds",
        "Modelled time per step for storing kept values; negative where the step as compiled "
        "stores more.",
        label="storing",
        nullable=True,
    ),
    Field(
        "seconds",
        "relief_seconds",
        "Modelled time per step saved by lower memory use: XLA recomputes fewer values by itself "
        "and starts transfers earlier.",
        label="memory relief",
        nullable=True,
    ),
    Field(
        "seconds",
        "step_seconds",
        "Modelled step time, including recomputation, waiting for the host, storing (if known) and "
        "memory relief.",
        label="step time",
        nullable=True,
    ),
)
POLICIES = (
    Field("word", "policy", "The checkpoint policy of the layers."),
    *_OUTCOME,
    Field(
        "instruction",
        "at",
        "The instruction that runs at the peak.",
        label="peak at",
        nullable=True,
    ),
    Field(
        "text",
        "same_as",
        "Other policies under which the same values are kept.",
        label="same as",
        nullable=True,
    ),
)
FRONTIER = (
    Field("index", "number", "The policy's number, by ascending peak."),
    *_OUTCOME,
    Field("text", "saved", "The values kept in device memory.", nullable=True),
    Field("text", "offloaded", "The values moved to host memory.", nullable=True),
    Field("text", "policy", "The policy's name: one of JAX's, chosen, or smallest.", nullable=True),
)
FATE = Field(
    "word",
    "fate",
    "What the policy does with the value: recomputed, saved, offloaded, or not needed.",
    nullable=True,
)
CODE = (Field("index", "number", "The line's number."), Field("text", "code", "A line of code."))
AGAIN = (
    Field("text", "axes", "The mesh axes that a collective runs along.", nullable=True),
    Field("word", "kind", "What the collective does."),
    Field("count", "collectives", "Number of recomputed collectives."),
    Field(
        "bytes",
        "wire_bytes",
        "Bytes that each device sends per step, assuming rings.",
        nullable=True,
    ),
)
ERROR = (
    "peaks under other policies are modelled: on 64 scanned programs compiled for TPUs under five "
    "or six policies each the median error is 1.2 %, 91 % are within 5 %, 99.7 % within 12 %, and "
    "the worst is 21 %; on 18 programs whose devices exchange scores of attention it is 2.4 %, and "
    "the worst is 14 %; of 60 peaks of 20 train steps that the model had not seen 72 % were within "
    "5 % and 90 % within 12 %"
)
ACCEPTED = (
    "a policy marked tight may be faster and may not fit; of 1,214 policies compiled for TPUs XLA "
    "accepted 98 % where the modelled peak left 10 % free, 92 % where it left 5 %, and 50 % where "
    "it left nothing"
)
ACCEPTED_BEFORE = (
    "a policy marked tight may be faster and may not fit; of 624 policies compiled for TPUs XLA "
    "accepted 97 % where the modelled peak left 15 % free, 91 % where it left 5 %, and 46 % where "
    "it left nothing"
)
ERROR_CHECKPOINTED = (
    "peaks under other policies are modelled: on 52 texts of scanned programs whose layers are "
    "checkpointed, compiled for TPUs under five other policies each, the median error is 1.3 %, "
    "92 % are within 5 %, 99 % within 12 %, and the worst is 19 %"
)
ERROR_UNROLLED = (
    "peaks under other policies are modelled: on 21 programs without scans compiled for TPUs under "
    "up to six policies each the median error is 1.5 %, 91 % are within 5 %, 98 % within 12 %, and "
    "the worst is 19 % too high, also where no scope numbers the layers"
)
ERROR_UNROLLED_CHECKPOINTED = (
    "peaks under other policies are modelled: on 6 texts of checkpointed layers without scans, "
    "compiled for TPUs under up to five other policies each, the median error is 1.7 %, 61 % are "
    "within 5 %, 82 % within 12 %, and the worst is 16 %"
)
ERROR_OFFLOADING = (
    "peaks under other policies are modelled: on 12 texts of scanned programs that move values to "
    "host memory, compiled for TPUs under seven other policies each, the median error is 1.6 %, "
    "92 % are within 5 %, and all within 10 %"
)
ERROR_GROUPS = (
    "peaks under other policies are modelled: on 9 programs whose layers are scanned in groups, "
    "compiled for TPUs under five policies each, the median error is 1.9 %, 91 % are within 5 %, "
    "and all within 9 %; where the groups are checkpointed too (3 programs) it is 4.1 %, 56 % are "
    "within 5 %, and the worst is 12 %"
)
GROUPS_ON_HOST = (
    "the layers are scanned in groups, where moving values to host memory is not modelled: XLA for "
    "TPUs refuses 8 of 9 programs that were compiled so"
)
MOVING = (
    "a value that moves to or from host memory is assumed to do so while one layer runs, as XLA on "
    "TPU schedules it, at the bandwidth between a chip and its host ({bandwidth:.3g} B/s, "
    "{source}); the wait is the time beyond half of the layer, and at least 2 % of the transfer "
    "time, because transfers use HBM bandwidth"
)
ERROR_BEFORE = (
    "XLA has not scheduled the module, so all peaks are modelled from its graph: the arguments, "
    "the values that the layers keep, and one layer and the head at work; on 43 scanned programs "
    "compiled for TPUs under six policies each the median error is 1.1 %, 90 % are within 5 %, "
    "98 % within 12 %, and the worst is 20 %; of 60 peaks of 20 train steps that the model had not "
    "seen 72 % were within 5 % and 88 % within 12 %"
)
ERROR_UNROLLED_BEFORE = (
    "XLA has not scheduled the module, so all peaks are modelled from its graph: the arguments, "
    "the values that the layers keep, and one layer and the head at work; on 14 programs without "
    "scans compiled for TPUs under up to six policies each the median error is 1.6 %, 80 % are "
    "within 5 %, 91 % within 12 %, and the worst is 41 % too low, also where no scope numbers the "
    "layers"
)
ERROR_GROUPS_BEFORE = (
    "XLA has not scheduled the module, so all peaks are modelled from its graph: the arguments, "
    "the values that the layers keep, and one layer and the head at work; on 9 programs whose "
    "layers are scanned in groups, compiled for TPUs under five policies each, the median error is "
    "1.0 %, 91 % are within 5 %, and all within 8 %; where the groups are checkpointed too (3 "
    "programs) it is 2.1 %, 63 % are within 5 %, 93 % within 12 %, and the worst is 14 %"
)
ERROR_LOOPS = (
    "peaks under other policies are modelled; a loop runs in each layer: on 4 programs with such "
    "loops compiled for TPUs with nothing saved, the errors are 0 %, 3 %, 9 % and "
    "10 %; with matmuls saved 12 % on one"
)
ERROR_LOOPS_BEFORE = (
    "XLA has not scheduled the module, so all peaks are modelled from its graph, and a loop runs "
    "in each layer: on 4 programs with such loops compiled for TPUs, the peak as compiled is off "
    "by at most 2.3 %, with nothing saved by 1, 3 and 5 %, and 18 % too low where attention and a "
    "loop over experts are in one layer; with matmuls saved by 11 % on one"
)
STEPS = (
    "a policy changes the step time by recomputation, waiting for the host, storing, and memory "
    "relief: the time that a step short of memory loses to XLA's own rematerialisation and to late "
    "transfers"
)
NO_STEPS = (
    "step times under a policy are unknown: they need the HBM bandwidth of the device, and the "
    "time and number of executions of all work"
)
_STEPS_ERROR = (
    "compared with the time model on texts that were compiled under the policy, the median error "
    "of step times is "
)
STEPS_ERROR = _STEPS_ERROR + (
    "3.7 % and the worst 21 %, on 35 scanned programs; on 12 policies that move values to host "
    "memory 3.5 % and 18 %; on 30 policies of ten train steps that it had not seen 8.8 % and 20 %, "
    "27 of them too short, and 3.2 % and 17 % after the changes that they led to"
)
STEPS_ERROR_CHECKPOINTED = _STEPS_ERROR + (
    "2.9 % and the worst 13 %, on 31 policies chosen from texts whose scanned layers are "
    "checkpointed"
)
STEPS_ERROR_UNROLLED = _STEPS_ERROR + (
    "2.5 % and the worst 12 %, on 6 programs without scans; three policies of one that led to "
    "changes are 3 to 10 % too short"
)
STEPS_ERROR_GROUPS = _STEPS_ERROR + (
    "4.5 % and the worst 17 %, on 12 programs whose layers are scanned in groups"
)
STEPS_ERROR_GROUPS_CHECKPOINTED = _STEPS_ERROR + (
    "2.2 % and the worst 11 %, on 66 changes of policy from texts whose layers are scanned in "
    "groups and checkpointed; on 30 that were held out 1.1 % and 6 %"
)
STEPS_ERROR_GPU = (
    "on an H100, 10 modelled changes of the step time under another policy are 5.9 points from "
    "measured ones at the median, and 7.1 at most"
)
STEPS_ERROR_GPU_CHECKPOINTED = (
    "on an H100, 20 modelled changes of the step time under another policy than that of the text "
    "are 1.1 points from measured ones at the median, and 2.9 at most"
)
STEPS_NOT_JUDGED = "no step times were compared from texts like this one, so their error is unknown"
NO_SCHEDULE = (
    "step times under a policy are unknown: they need a scheduled text (after_optimizations)"
)
NO_DEVICE = (
    "step times need a device (--device NAME), and fit checks need a device or --hbm SIZE; without "
    "a device, the policy with the fewest recomputed FLOPs is chosen"
)
NO_KERNELS = (
    "FLOPs that a policy recomputes are unknown where it recomputes kernels (custom calls) whose "
    "FLOPs are unknown: --rules FILE can give them"
)
WIRE_BYTES = (
    "recomputed wire bytes count the collectives of this text; under another policy XLA may choose "
    "other collectives: 15 of 26 programs that were compiled under a policy send within 5 % of the "
    "bytes that this predicts for a step"
)
NO_WIRE_BYTES = (
    "bytes that a policy sends for recomputation are unknown where a recomputed collective has "
    "unknown device groups, or runs an unknown number of times"
)
UNDER_VMAP = (
    "{policy} cannot be modelled: it does not save matmuls with batch dimensions, and the text "
    "does not tell whether those under jax.vmap ({count}) have one, as each device has one element "
    "of the mapped dimension"
)
BETWEEN = "its peak is {low:,} B if it saves none of them, {high:,} B if it saves all"
NOT_EVERYTHING = (
    "everything_saveable cannot be modelled from a text whose layers are checkpointed: the text "
    "does not show the elementwise values that JAX would keep; give a text compiled without "
    "checkpointing, whose figures are those of everything_saveable"
)
NOT_EVERYTHING_INSIDE = (
    "everything_saveable cannot be modelled from a text with jax.checkpoint in a loop of its "
    "layers: JAX would also keep the elementwise values in there, which the text does not show"
)
OTHER_FLOPS = (
    "of the {whole:,} FLOP that this text recomputes, {own:,} are matmuls and kernels of layers "
    "under jax.checkpoint, the only ones that policies count"
)
OTHER_FLOPS_TOGETHER = (
    "the {whole:,} FLOP that this text recomputes are those of all {devices:,} devices; policies "
    "count the matmuls and kernels of layers under jax.checkpoint on one device, {own:,} FLOP"
)
OVER_TIME = (
    "the scan runs over time steps, not over layers: all {trips:,} iterations of {loop} multiply "
    "with the same weights. The policies are those of one time step: put the function of a step "
    "under jax.checkpoint"
)
OVER_TICKS = (
    "the scan runs over the ticks of a pipeline, not over layers: all {trips:,} iterations of "
    "{loop} multiply with the same weights and hand their results on. The policies are those of "
    "one tick: put the function of a tick under jax.checkpoint; what a loop over layers in it "
    "recomputes by itself is part of every policy"
)
NO_COLLECTIVES = (
    "the partitioner has not run, so the collectives that a policy recomputes are unknown, and so "
    "is their time"
)


def known_columns(table: Table) -> list[str]:
    """The columns in which a figure is known and not zero everywhere."""
    return [own for own in table.columns if any(table.values(own)) or own == "number"]


def error_of(policies: Policies) -> str:
    """How far the peaks are from what XLA needs, measured on programs of the same kind."""
    error = _error_of(policies)
    if policies.is_modelled and not policies.module.summary().is_unfused:
        return error + OPTIMISED
    return error


def _error_of(policies: Policies) -> str:
    if policies.has_loops and policies.backend == "tpu":
        return ERROR_LOOPS_BEFORE if policies.is_modelled else ERROR_LOOPS
    if policies.backend == "gpu":
        return ERROR_BEFORE_GPU if policies.is_modelled else ERROR_GPU
    if policies.is_modelled:
        if not policies.is_scanned:
            return ERROR_UNROLLED_BEFORE
        return ERROR_GROUPS_BEFORE if policies.is_grouped else ERROR_BEFORE
    if not policies.is_scanned:
        return ERROR_UNROLLED_CHECKPOINTED if policies.is_checkpointed else ERROR_UNROLLED
    if policies.is_grouped:
        return ERROR_GROUPS
    if policies.as_compiled.on_host:
        return ERROR_OFFLOADING
    return ERROR_CHECKPOINTED if policies.is_checkpointed else ERROR


def steps_error_of(policies: Policies) -> str:
    """How far step times are off, measured on programs of the same kind.

    The figures are those of `benches/policy_accuracy.py`, on GPUs of `benches/h100_steps.py`.
    """
    is_checkpointed = policies.is_checkpointed
    if policies.backend == "gpu":
        return STEPS_ERROR_GPU_CHECKPOINTED if is_checkpointed else STEPS_ERROR_GPU
    if policies.backend != "tpu":
        return STEPS_NOT_JUDGED
    if policies.has_loops:
        return STEPS_NOT_JUDGED
    if policies.is_grouped:
        return STEPS_ERROR_GROUPS_CHECKPOINTED if is_checkpointed else STEPS_ERROR_GROUPS
    if not policies.is_scanned:
        return STEPS_NOT_JUDGED if is_checkpointed else STEPS_ERROR_UNROLLED
    if policies.as_compiled.on_host:
        return STEPS_NOT_JUDGED
    return STEPS_ERROR_CHECKPOINTED if is_checkpointed else STEPS_ERROR


ERROR_GPU = (
    "peaks under other policies are modelled: on 22 texts of 12 programs compiled for an H100 "
    "under up to six other policies each, the median error is 2.7 %, 78 % are within 5 %, 97 % "
    "within 12 %, and the worst, with values in host memory, is 24 %"
)
ERROR_BEFORE_GPU = (
    "peaks are modelled: on texts before optimisation of 10 programs compiled for an H100 under up "
    "to six other policies each, the median error is 4.0 %, 60 % are within 5 %, 91 % within 12 %, "
    "and the worst, of layers 8192 tokens long, is 26 %"
)

OPTIMISED = "; this text is optimised already, for which the error is unknown"

REASONS = {
    "no-layers": (
        "the module has no scan over layers (a forward loop with a known number of iterations "
        "whose stacked values a backward loop reads) and no layers of one kind without a loop, "
        "known by numbers in their scopes (`layer_0`) or by matmuls that depend on each other and "
        "stem from one line, so no policy can be modelled"
    ),
    "nested": (
        "the layers are scanned in groups (a scan over layers inside a scan), and the stacks of "
        "the loop `{}` do not pair it with one of the other pass, so the model of policies does "
        "not cover it: give a text whose layers are in one scan"
    ),
    "offloaded": (
        "scheduled loops of the module have values in host memory that are not stacks as TPU "
        "programs write and fetch them, such as weights, or the module moves values of layers "
        "without a loop there before optimisation: give the text before optimisation if there is a "
        "scan, or a text compiled without offloading"
    ),
    "other-layers": (
        "the {} that the model finds are not those of the program: if they saved nothing, they "
        "would keep more bytes than the step keeps as it is, so no policy can be modelled"
    ),
    "memory": "the memory of the module cannot be counted, so no policy can be modelled",
}
"""Why no policy can be modelled, by the words of `NoPolicies` and `policies_of`."""
