"""The part of `hlofast._core` that counts costs; a stub only, the code is in `_core`."""

from typing import Any, Final, final

from hlofast import _module
from hlofast._core import Column, Field, Mesh, Module, TextColumn, TimeData

_Columns = list[tuple[Field, Column | TextColumn]]

def _cost(
    module: Module,
    *,
    xla: bool = False,
    backend: str | None = None,
    float32: bool = False,
    custom_calls: list[tuple[int, int | None, int | None, int | None, int | None]] | None = None,
    rules: list[tuple[str, str]] | None = None,
) -> CostData:
    """Counts the cost of `module`. What is not given is that of its context."""

@final
class CostData:
    """The cost of a module, as counted by `Module.cost`."""

    backend: Final[str]
    """Whose sizes of shapes were counted: cpu, gpu or tpu."""
    optimal_seconds: Final[int]
    """XLA's `optimal_seconds` of a client without a device: -1 per custom call."""
    is_merged: Final[bool]
    """Whether some computation had too many call sites to tell their scopes apart."""
    has_scopes: Final[bool]
    """Whether any instruction has a scope."""
    def totals(self) -> tuple[int, int, int, int, int, int]:
        """FLOPs, transcendentals, bytes read and written in memory space 0, then in the others."""
    def float32_totals(self) -> tuple[float, float, float, float] | None:
        """FLOPs, transcendentals, bytes accessed, optimal seconds as 32-bit floats, if asked
        for.
        """
    def operand_sums(self) -> list[tuple[str, float]] | None:
        """XLA's sums by operand and by result; None if there would be too many."""
    def column(self, name: str) -> Column:
        """The column over instructions called `name`."""
    def scopes(self) -> list[str]:
        """The texts that the column `scope` numbers; empty for scopes that no row is in."""
    def group(self, key: str, depth: int) -> _Columns:
        """Totals by `key`; `depth` is that of scopes."""
    def computations(self) -> _Columns:
        """One execution of each computation, and how often the totals count it."""
    def loops(self) -> _Columns:
        """The loops and how often they run."""
    def branches(self) -> _Columns:
        """The branches of conditionals, what one execution of each costs, and which is counted."""
    def unpriced(self) -> _Columns:
        """Custom calls whose FLOPs are not known, by target."""
    def unknown_rows(self) -> Column:
        """Instructions whose bytes are not known, and others than custom calls whose FLOPs are
        not.
        """
    def unknown_products(self) -> Column:
        """Matrix products and convolutions whose size is not known."""
    def dead_rows(self) -> Column:
        """Instructions whose results nothing needs."""
    def memory_spaces(self) -> _Columns:
        """Bytes by memory space."""
    def explain(self) -> _Columns:
        """Where executed cost departs from XLA's, and how many instructions that concerns."""
    def flops_by_provenance(self) -> list[tuple[str, int]]:
        """FLOPs of executions by provenance; those inside loops of unknown trip count apart."""
    def collective_flops(self) -> tuple[int, int]:
        """FLOPs of reductions between devices: all, and those of recomputation."""
    def matmuls(self) -> _Columns:
        """The matrix products and convolutions, and how often each is executed."""
    def lint(
        self, mesh: Mesh | None = None, **options: float
    ) -> tuple[list[dict[str, Any]], _Columns]:
        """The findings, those with most at stake first."""
    def collectives(self, mesh: Mesh | None = None) -> CollectivesData:
        """The collectives, how often each is executed, and where on a mesh it goes."""
    def remat(self, mesh: Mesh | None = None) -> RematData:
        """What is recomputed, and what is kept instead."""
    def stages(self, most_moved: float | None = None) -> StagesData:
        """Pipeline stages; `most_moved` is the share of FLOPs that a cheaper cut may move."""

@final
class CollectivesData:
    """The collectives of a module."""

    mesh: Final[Mesh | None]
    """The mesh, given or derived."""
    def __len__(self) -> int: ...
    def columns(self) -> _Columns:
        """Names and columns of the table: one row per collective and phase."""
    def pieces(self) -> _Columns:
        """Names and columns of the table of the arrays that collectives move."""
    def members(self) -> _Columns:
        """Names and columns of the table of all instructions that collectives are written as."""
    def axis_numbers(self) -> list[list[int]]:
        """By row of the table: the numbers of the axes, each once."""
    def mismatches(self) -> list[str]:
        """By row of the table: why there are no axes, empty where there are."""
    def host_transfers(self) -> list[int]:
        """Rows that send to the host or receive from it."""
    def alpa_counters(self, ignore_scalars: bool) -> tuple[int, int, int, int, int]:
        """Alpa's counters: total, all-reduce, all-gather, reduce-scatter, all-to-all."""
    def grad_sync_channel_ids(self) -> str:
        """The channels of gradient synchronisation, in Alpa's form."""

def _lint_options() -> dict[str, float]:
    """From where on something is a finding, by name."""

def _lint_rules() -> list[tuple[str, str]]:
    """The names of all findings, and what each is."""

@final
class RematData:
    """What a module recomputes and keeps."""

    def recomputed(self) -> _Columns:
        """Names and columns of the table of instructions that are executed again."""
    def residuals(self) -> _Columns:
        """Names and columns of the table of what is kept from forward to backward."""
    def gathers(self) -> _Columns:
        """Names and columns of the table of all-gathers."""
    def instructions(self) -> list[tuple[str, int]]:
        """Written instructions by phase."""
    def marks(self) -> tuple[list[int], list[int], list[int]]:
        """Rows where JAX marks named or saved values, of barriers around residuals, and of sharding
        constraints in code under `jax.checkpoint`.
        """
    def places(self, rows: list[int]) -> list[tuple[str, str, int]]:
        """Of `rows`: operation name, source file and line, as far as they are known."""
    def parameters_read(self, rows: list[int]) -> list[int] | None:
        """The entry's parameters that `rows` depend on; None if there is too much to follow."""
    def plan(
        self,
        budget: int | None = None,
        time: TimeData | None = None,
        *,
        rule: str | None = None,
        table_bytes: int | None = None,
    ) -> PlanData:
        """What to compute again so that at most `budget` bytes are needed at the peak, or as few as
        possible. Without `rule`, peaks are counted as users compare them; `table_bytes` is what a
        device rounds the pointer tables of tuples to, if that is known.
        """

@final
class PlanData:
    """A plan, and the module it makes."""

    def peaks(self) -> tuple[int, int]:
        """Bytes at the peak: as it is, and with what was chosen."""
    def at(self) -> int:
        """The row that runs at the peak; -1 without one."""
    def rule(self) -> str:
        """The rule by which peaks are counted."""
    def space(self) -> int:
        """The number of the memory space that is fullest at the peak."""
    def steps(self) -> list[int]:
        """Bytes at the peak after each of the chosen ones."""
    def fits(self) -> bool | None:
        """Whether the budget is met; None without one."""
    def module(self) -> _module.Module | None:
        """The new module; None if nothing was chosen."""
    def again(self) -> list[list[int]]:
        """Of each candidate: the rows that run again."""
    def candidates(self) -> _Columns:
        """Names and columns of the table of candidates."""
    def apply(self, numbers: list[int]) -> tuple[_module.Module, int]:
        """The module in which these candidates are computed again, and its bytes at the peak. A
        ValueError says what is in the way.
        """

@final
class StagesData:
    """The pipeline stages of a module."""

    def markers(self) -> _Columns:
        """Names and columns of the table of markers."""
    def marker_sizes(self) -> list[list[int] | None]:
        """By marker: the sizes that its configuration says."""
    def sections(self) -> _Columns:
        """Names and columns of the table of sections."""
    def stash(self) -> _Columns:
        """Names and columns of the table of what stays from forward to backward."""
    def cross_mesh(self) -> _Columns:
        """Names and columns of the table of reductions over meshes."""
    def divisions(self) -> _Columns:
        """Names and columns of the table of divisions by the number of micro-batches."""
    micro_batches: Final[int | None]
    """How many micro-batches a step has; None if unknown."""
    def boundary(self) -> dict[str, Any] | None:
        """What the first forward section gets, and the cheapest cut nearby; None without one."""
    def memory(self) -> tuple[int, int, int, int | None] | None:
        """Bytes of state, stash, copies of weights in that, and the peak of a micro-batch without
        the state; None if memory cannot be analysed.
        """
