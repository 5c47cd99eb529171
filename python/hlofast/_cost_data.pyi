"""The part of `hlofast._core` that counts costs; a stub only, the code is in `_core`."""

from typing import Any, Final, final

from hlofast import _module
from hlofast._core import Column, Field, Mesh, Module, TextColumn, TimeData

_Columns = list[tuple[Field, Column | TextColumn]]
_DeviceParts = tuple[str, str, str | None, list[tuple[str, float]], list[tuple[str, float]]]

def _cost(
    module: Module,
    *,
    xla: bool = False,
    backend: str | None = None,
    float32: bool = False,
    custom_calls: list[tuple[int, int | None, int | None, int | None, int | None]] | None = None,
    rules: list[tuple[str, str]] | None = None,
) -> CostData:
    """Counts the cost of `module`; omitted options come from its context."""

@final
class CostData:
    """The cost of a module, as counted by `Module.cost`."""

    backend: Final[str]
    """The backend whose shape sizes were counted: cpu, gpu or tpu."""
    optimal_seconds: Final[int]
    """XLA's `optimal_seconds` for a client without a device: -1 per custom call."""
    is_merged: Final[bool]
    """Whether the scopes of some computation were merged because it has too many call sites."""
    has_scopes: Final[bool]
    """Whether any instruction has a scope."""
    def totals(self) -> tuple[int, int, int, int, int, int]:
        """Returns FLOPs, transcendentals and bytes read and written in memory space 0, then bytes
        read and written in the other spaces.
        """
    def float32_totals(self) -> tuple[float, float, float, float] | None:
        """Returns FLOPs, transcendentals, bytes accessed and optimal seconds as XLA's 32-bit
        floats; None unless requested.
        """
    def operand_sums(self) -> list[tuple[str, float]] | None:
        """Returns XLA's sums by operand and by result; None if there are too many."""
    def column(self, name: str) -> Column:
        """Returns the per-instruction column `name`."""
    def scopes(self) -> list[str]:
        """Returns the scopes by the codes of column `scope`; empty for scopes without
        instructions.
        """
    def group(self, key: str, depth: int) -> _Columns:
        """Returns a table of totals by `key`; `depth` limits the depth of scopes."""
    def computations(self) -> _Columns:
        """Returns a table of computations: the cost of one execution, and the call count in the
        totals.
        """
    def loops(self) -> _Columns:
        """Returns a table of loops with their trip counts."""
    def endless_loops(self) -> list[str]:
        """The names of the loops of unknown trip count."""
    def branches(self) -> _Columns:
        """Returns a table of branches of conditionals: the cost of one execution, and whether the
        totals count the branch.
        """
    def unpriced(self) -> _Columns:
        """Returns a table of custom calls with unknown FLOPs, by target."""
    def unknown_rows(self) -> Column:
        """Returns the rows with unknown bytes, and rows other than custom calls with unknown
        FLOPs.
        """
    def unknown_products(self) -> Column:
        """Returns the rows of matmuls and convolutions of unknown size."""
    def dead_rows(self) -> Column:
        """Returns the rows whose results are not used."""
    def repeated_products(self) -> Column:
        """Returns the rows of products in fusions that repeat another product."""
    def memory_spaces(self) -> _Columns:
        """Returns a table of bytes by memory space."""
    def explain(self) -> _Columns:
        """Returns a table of the differences between executed cost and XLA's, with instruction
        counts.
        """
    def flops_by_provenance(self) -> list[tuple[str, int]]:
        """Returns executed FLOPs by provenance; FLOPs inside loops of unknown trip count are
        separate.
        """
    def flops_by_peak(self, device: _DeviceParts) -> list[tuple[float, int, int, int, int]] | None:
        """Returns FLOPs by the peak of their types on one JAX device: the peak, then FLOPs of
        matmuls, of those that run again, of all operations, of those that run again. None if the
        bfloat16 peak is unknown.
        """
    def collective_flops(self) -> tuple[int, int]:
        """Returns the FLOPs of reductions between devices: in total, and in recomputation."""
    def matmuls(self) -> _Columns:
        """Returns a table of matmuls and convolutions with their call counts."""
    def lint(
        self, mesh: Mesh | None = None, device: _DeviceParts | None = None, **options: float
    ) -> tuple[list[dict[str, Any]], _Columns]:
        """Returns the findings, largest stake first: in seconds on `device` if it is given."""
    def collectives(self, mesh: Mesh | None = None) -> CollectivesData:
        """Returns the collectives with their call counts and mesh axes."""
    def remat(self, mesh: Mesh | None = None) -> RematData:
        """Returns the recomputed instructions and the residuals."""
    def stages(self, most_moved: float | None = None) -> StagesData:
        """Returns the pipeline stages; `most_moved` is the largest share of FLOPs that a cheaper
        cut may move to the previous stage.
        """

@final
class CollectivesData:
    """The collectives of a module."""

    mesh: Final[Mesh | None]
    """The mesh, given or derived; None if there is neither."""
    def __len__(self) -> int: ...
    def columns(self) -> _Columns:
        """Fields and columns of the table: one row per collective and phase."""
    def pieces(self) -> _Columns:
        """Fields and columns of the table of the arrays that collectives exchange."""
    def members(self) -> _Columns:
        """Fields and columns of the table of all instructions that implement collectives."""
    def axis_numbers(self) -> list[list[int]]:
        """The axis numbers of each row of the table, without duplicates."""
    def mismatches(self) -> list[str]:
        """For each row of the table, the reason why it has no axes; empty if it has axes."""
    def host_transfers(self) -> list[int]:
        """Rows that send to or receive from the host."""
    def alpa_counters(self, ignore_scalars: bool) -> tuple[int, int, int, int, int]:
        """Alpa's counters: total, all-reduce, all-gather, reduce-scatter, all-to-all."""
    def grad_sync_channel_ids(self) -> str:
        """The channel ids of gradient synchronisation, in Alpa's format."""

def _lint_options() -> dict[str, float]:
    """Returns the default thresholds, by name."""

def _lint_rules() -> list[tuple[str, str]]:
    """Returns the name and description of each lint rule."""

@final
class RematData:
    """The recomputation and the residuals of a module."""

    def recomputed(self) -> _Columns:
        """Fields and columns of the table of recomputed instructions."""
    def residuals(self) -> _Columns:
        """Fields and columns of the table of residuals."""
    def gathers(self) -> _Columns:
        """Fields and columns of the table of all-gathers."""
    def instructions(self) -> list[tuple[str, int]]:
        """Number of instructions in the text, by phase."""
    def marks(self) -> tuple[list[int], list[int], list[int]]:
        """Rows of JAX's marks for named or saved values, of barriers around residuals, and of
        sharding constraints in code under `jax.checkpoint`.
        """
    def places(self, rows: list[int]) -> list[tuple[str, str, int]]:
        """Operation name, source file and source line of each of `rows`; empty if unknown."""
    def policies(
        self,
        time: TimeData | None = None,
        host: tuple[float, int | None] | None = None,
        apart: bool = False,
        device: tuple[str, str] | None = None,
    ) -> PolicyData:
        """The scans over layers, and what they need under other checkpoint policies; `time` gives
        the seconds of recomputed work. `host` are the bytes per second between a device and its
        host in one direction, and the bytes of host memory for a device, if known. With `apart`,
        each function of a layer without a loop is taken by itself, if the text does not tell how
        they are checkpointed. `device` is the name of the device and its backend, whose compiler
        may write other values.

        Raises `ValueError` with a word that says why if the model covers no layers.
        """
    def parameters_read(self, rows: list[int]) -> list[int] | None:
        """The entry parameters that `rows` depend on; None if there are too many instructions to
        follow.
        """
    def plan(
        self,
        budget: int | None = None,
        time: TimeData | None = None,
        *,
        rule: str | None = None,
        table_bytes: int | None = None,
    ) -> PlanData:
        """Plans which values to recompute so that the peak fits `budget` bytes, or is as low as
        possible.

        Without `rule`, peaks are counted as users compare them. `table_bytes` is the size to which
        a device rounds the pointer tables of tuples, if known. Raises `ValueError` if memory cannot
        be counted.
        """

@final
class PolicyData:
    """The layers of a module."""

    def loops(self) -> list[tuple[int, int]]:
        """Row and iterations of each forward loop."""
    def units(self) -> tuple[list[tuple[int, str, str, int, str]], bool]:
        """The functions of layers without a loop, in order: kind of layers, name, the file and line
        of the call, and the file of the function, as far as known. Then whether several are taken
        as one layer because the text does not tell how they are checkpointed.
        """
    def weights(self) -> list[int | None]:
        """By value of layers without a loop: the number of the parameter that its product in one
        layer multiplies by. Empty for loops.
        """
    def pressure_seconds(self) -> float | None:
        """Seconds that the step loses for lack of memory; None without a device."""

    def peak(self) -> int:
        """Bytes at the peak of the module as it is."""
    def kept(self) -> int:
        """Bytes that the module as it is keeps from forward to backward loops."""
    def is_checkpointed(self) -> bool:
        """Whether layers are checkpointed in the module as it is."""
    def iteration(self) -> str:
        """What an iteration of the forward loops is: `layer`, `time step`, `pipeline tick`."""
    def has_loops(self) -> bool:
        """Whether a loop of the program runs in each layer."""
    def checkpoints_in_loops(self) -> bool:
        """Whether such a loop is under `jax.checkpoint` inside."""
    def grouped(self) -> str:
        """How layers are scanned in groups: `no`, `yes`, `checkpointed` (the groups themselves)."""

    def is_modelled(self) -> bool:
        """Whether the module is not scheduled, so that its own bytes are modelled too."""
    def savable(self) -> _Columns:
        """Fields and columns of the table of values that a policy could save."""
    def as_is(self) -> list[int]:
        """The fate of each savable value in the module as it is."""
    def outcome(self, fates: list[int]) -> dict[str, Any]:
        """What the step needs if the savable values have these fates: 0 recomputed, 1 saved, 2
        moved to host memory.

        Raises `ValueError` for another fate.
        """
    def choose(
        self, budget: int, offloads: bool = True, most_tried: int | None = None
    ) -> list[int]:
        """The policy that takes least time and fits `budget` bytes, otherwise the one with the
        lowest peak: the fate of each savable value. Without `offloads`, no value is moved to host
        memory. `most_tried` limits the policies that are tried.
        """
    def frontier(self, budget: int | None = None) -> list[list[int]]:
        """The policies that no other one beats in both peak and time, by ascending peak; with the
        best one within `budget` bytes.
        """

@final
class PlanData:
    """A plan, and the rewritten module."""

    def peaks(self) -> tuple[int, int]:
        """Bytes at the peak, originally and with the chosen candidates."""
    def at(self) -> int:
        """The row that runs at the peak; -1 if there is none."""
    def rule(self) -> str:
        """The rule by which peaks are counted."""
    def space(self) -> int:
        """The number of the memory space that is fullest at the peak."""
    def steps(self) -> list[int]:
        """Bytes at the peak after each chosen candidate."""
    def fits(self) -> bool | None:
        """Whether the plan meets the budget; None without a budget."""
    def refusal(self) -> str | None:
        """Why the plan chooses nothing, whatever candidates save; None if it may choose."""

    def module(self) -> _module.Module | None:
        """The rewritten module; None if nothing was chosen."""
    def again(self) -> list[list[int]]:
        """The recomputed rows of each candidate."""
    def candidates(self) -> _Columns:
        """Fields and columns of the table of candidates."""
    def apply(self, numbers: list[int]) -> tuple[_module.Module, int]:
        """Returns the module in which these candidates are recomputed, and its bytes at the peak.

        Raises `IndexError` for a number without a candidate, and `ValueError` if the rewrite is
        impossible, with the reason.
        """

@final
class StagesData:
    """The pipeline stages of a module."""

    def markers(self) -> _Columns:
        """Fields and columns of the table of markers."""
    def marker_sizes(self) -> list[list[int] | None]:
        """The sizes in the configuration of each marker."""
    def sections(self) -> _Columns:
        """Fields and columns of the table of sections."""
    def stash(self) -> _Columns:
        """Fields and columns of the table of values kept from forward to backward."""
    def cross_mesh(self) -> _Columns:
        """Fields and columns of the table of reductions over meshes."""
    def divisions(self) -> _Columns:
        """Fields and columns of the table of divisions by the number of micro-batches."""
    micro_batches: Final[int | None]
    """Number of micro-batches per step; None if unknown."""
    def boundary(self) -> dict[str, Any] | None:
        """The values that the first forward section receives, and the cheapest cut nearby; None
        without such a section.
        """
    def memory(self) -> tuple[int, int, int, int | None] | None:
        """Bytes of state, of stash, of weight copies in the stash, and of the peak of a micro-batch
        without the state; None if memory cannot be analysed.
        """
