"""`Summary`: compilation stage, parameters and results, and contents of a module."""

from __future__ import annotations

from hlofast import _fragment
from hlofast._core import Field
from hlofast._result import Fact, Note, Result, Section
from hlofast.errors import ParseError
from hlofast.table import Table, of_rows

TYPE_CHECKING = False  # The command line summarises; importing typing would slow its start.
if TYPE_CHECKING:
    from typing import Any

    from hlofast._core import Instruction, Sharding
    from hlofast._module import Module

WHOLE = ("unoptimised", "annotated")
"""Stages before partitioning."""
UNFUSED = (*WHOLE, "partitioned")
"""Stages before fusion."""
_BY_HAND = 100
"""Texts of fewer instructions may be written by hand: nobody misses names in them."""

_INSTRUCTIONS = Field("count", "instructions", "Instructions of the text.", adds_up=True)
_SHAPE = Field("shape", "shape", "The shape and its layout.")
_BYTES = Field("bytes", "bytes", "Bytes of one array, unpadded.", nullable=True)
_NUMBER = Field("index", "number", "Position, from 0.")
_IN_ENTRY = Field(
    "count",
    "entry_instructions",
    "Instructions of the entry.",
    label="entry instructions",
    adds_up=True,
)
_FIELDS: dict[str, tuple[Field, ...]] = {
    "parameters": (
        _NUMBER,
        Field("name", "instruction", "The instruction's name.", label="name", nullable=True),
        _SHAPE,
        _BYTES.replace(adds_up=True),
        Field("flag", "donated", "Whether the parameter is donated, so that a result may take its "
                                 "buffer."),
        Field("scope", "op_name", "The framework's name.", label="argument", nullable=True),
    ),
    "outputs": (
        _NUMBER,
        Field(
            "name", "instruction", "The instruction that computes the result.", label="computed by",
            nullable=True,
        ),
        _SHAPE,
        _BYTES.replace(adds_up=True),
        Field(
            "index", "aliased_parameter", "The parameter whose buffer the result takes.",
            label="aliased parameter", nullable=True,
        ),
    ),
    "opcodes": (Field("word", "opcode", "The opcode."), _INSTRUCTIONS, _IN_ENTRY),
    "shapes": (
        _SHAPE,
        _BYTES,
        _INSTRUCTIONS,
        Field("name", "instruction", "The first instruction of this shape.", label="first"),
    ),
    "fusions": (Field("word", "kind", "The kind of fusion."), _INSTRUCTIONS),
    "custom_calls": (Field("name", "target", "The target of the custom call."), _INSTRUCTIONS),
    "computations": (
        Field("name", "name", "The computation.", label="computation"),
        _INSTRUCTIONS,
        Field("word", "role", "Role of the computation in its callers."),
        Field("count", "callers", "Instructions that call the computation."),
    ),
}  # fmt: skip
_TITLES = {
    "parameters": ("Parameters by size", "bytes"),
    "outputs": ("Results by size", "bytes"),
    "opcodes": ("Opcodes", ""),
    "shapes": ("Largest shapes outside fusions", ""),
    "fusions": ("Fusions", ""),
    "custom_calls": ("Custom calls", ""),
    "computations": ("Computations by size", "instructions"),
}
"""Heading and sort column of each table."""
_OPTIONAL = ("fragment", "status_reason", "backend_reason", "devices_together", "replicated_bytes")
"""Facts that are left out if unknown."""


def sharding_of(instruction: Instruction) -> Sharding | None:
    """Returns the sharding of an instruction; None if it is absent or cannot be read."""
    try:
        return instruction.sharding
    except ParseError:
        return None


class Summary(Result):
    """Compilation stage, parameters, results and contents of a module: `Module.summary()`.

    The status is derived from the text: `unoptimised` (as the framework wrote it), `annotated`
    (with shardings), `partitioned` (one device's program), `optimised` (with fusions or library
    calls), `scheduled` (text order is execution order). Sizes are unpadded. Counts leave out
    instructions that the text only implies.
    """

    __slots__ = ("_record", "_tables", "module")

    VERB = "summary"
    FACTS = (
        Field("text", "fragment", "What is missing, if the text has only pieces of a program.",
              label="fragment lacks"),
        Field("word", "status", "Compilation stage of the module."),
        Field("text", "status_reason", "Evidence for the status.", label="status from"),
        Field("word", "backend", "Backend of the compiler."),
        Field("text", "backend_reason", "Evidence for the backend.", label="backend from"),
        Field("flag", "is_scheduled", "Whether text order is execution order.",
              label="scheduled"),
        Field("count", "num_partitions", "Devices that share the program.", label="partitions"),
        Field("count", "devices_together",
              "Number of devices that the shapes cover together, before partitioning.",
              label="shapes cover devices"),
        Field("count", "replica_count", "Replicas that run the program.", label="replicas"),
        Field("bytes", "text_bytes", "Bytes of the text.", label="text size"),
        Field("count", "computations", "Computations, including implied ones."),
        Field("count", "instructions", "Instructions in the text."),
        Field("count", "implicit_instructions", "Instructions that the text only implies.",
              label="implied"),
        Field("count", "distinct_shapes", "Distinct shapes.", label="shapes"),
        Field("name", "entry", "The entry computation."),
        Field("count", "entry_instructions", "Instructions of the entry.",
              label="entry instructions"),
        Field("bytes", "parameter_bytes", "Bytes of all parameters.", label="parameters"),
        Field("bytes", "replicated_bytes", "Bytes of replicated parameters.",
              label="replicated"),
        Field("bytes", "output_bytes", "Bytes of all results.", label="results"),
        Field("count", "aliases", "Results that take the buffer of a parameter."),
        Field("count", "must_alias", "Aliases that the compiler must keep.", label="must alias"),
        Field("bytes", "aliased_bytes", "Bytes of aliased results.", label="aliased"),
        Field("count", "buffer_donors", "Parameters donated without an alias.",
              label="buffer donors"),
    )  # fmt: skip

    def __init__(self, module: Module) -> None:
        self.module = module
        """The module."""
        self._record: dict[str, Any] = module._summary()
        self._tables: dict[str, Table] = {}

    @property
    def status(self) -> str:
        """Compilation stage of the module."""
        return str(self._record["status"])

    @property
    def is_whole(self) -> bool:
        """Whether the partitioner has not run."""
        return self.status in WHOLE

    @property
    def devices_together(self) -> int:
        """Number of devices that the shapes cover together.

        1 if they are the shapes of one device.
        """
        from hlofast._shares import devices_together

        return devices_together(self.module)

    @property
    def is_unfused(self) -> bool:
        """Whether the module comes before fusion."""
        return self.status in UNFUSED

    @property
    def _fewer_bytes(self) -> str:
        """What the bytes of a module before fusion are worth, as a note."""
        return (
            f"the module is {self.status}, not fused yet: the fused program moves several times "
            "fewer bytes"
        )

    @property
    def _no_names(self) -> str | None:
        """What is unknown without operation names and how to get them, as a note.

        None if the text has names, is a piece of a program, or is as short as one written by hand.
        """
        is_short = self.values["instructions"] < _BY_HAND
        if is_short or self.module.op_names or _fragment.lacks(self.module) is not None:
            return None
        unknown = "no instruction has an op_name, so phases, layers and source lines are unknown"
        remedy = "; lowered.as_text('hlo', debug_info=True) writes it"
        return unknown + (remedy if self.is_whole else "")

    @property
    def backend(self) -> str | None:
        """Backend of the compiler; None without evidence."""
        backend: str | None = self._record["backend"]
        return backend

    @property
    def values(self) -> dict[str, Any]:
        """The value of each of `FACTS` by name; None for unknown values."""
        record = self._record
        values = {**record, **record["counts"], **record["donation"]}
        values["fragment"] = _fragment.lacks(self.module)
        values["replicated_bytes"] = self._replicated_bytes()
        together = self.devices_together
        values["devices_together"] = together if together > 1 else None
        return {field.name: values[field.name] for field in self.FACTS}

    def _replicated_bytes(self) -> int | None:
        """Bytes of replicated parameters; None if no parameter has a sharding."""
        columns = (self.parameters.values(name) for name in ("number", "bytes"))
        sizes = dict(zip(*columns, strict=True))
        total = None
        for parameter in self.module.entry.parameters:
            sharding = sharding_of(parameter)
            if sharding is not None:
                size = sizes.get(parameter.parameter_number) if sharding.is_replicated else None
                total = (total or 0) + (size or 0)
        return total

    @property
    def facts(self) -> tuple[Fact, ...]:
        """Status, backend, counts, bytes of parameters and results, donation."""
        values = self.values
        facts = tuple(
            Fact(field, values[field.name])
            for field in self.FACTS
            if values[field.name] is not None or field.name not in _OPTIONAL
        )
        from hlofast._shares import labelled

        return labelled(self.module, facts, ("bytes",), ("text_bytes",))

    @property
    def notes(self) -> tuple[Note, ...]:
        """A note if the text has pieces of a program."""
        return _fragment.notes(self.module)

    def sections(self) -> tuple[Section, ...]:
        """Parameters, results, opcodes, shapes, fusions, custom calls, computations."""
        return tuple(self._section(name) for name in _TITLES)

    def _section(self, name: str) -> Section:
        title, order = _TITLES[name]
        table = self._table(name)
        return Section(name, title, table.sort_by(order, descending=True) if order else table)

    @property
    def parameters(self) -> Table:
        """Parameters of the entry computation."""
        return self._table("parameters")

    @property
    def outputs(self) -> Table:
        """Results of the entry computation."""
        return self._table("outputs")

    @property
    def opcodes(self) -> Table:
        """Instructions by opcode."""
        return self._table("opcodes")

    @property
    def shapes(self) -> Table:
        """Shapes outside fusions, largest first."""
        return self._table("shapes")

    @property
    def fusions(self) -> Table:
        """Fusions by kind."""
        return self._table("fusions")

    @property
    def custom_calls(self) -> Table:
        """Custom calls by target."""
        return self._table("custom_calls")

    @property
    def computations(self) -> Table:
        """The computations written in the text, with their roles."""
        return self._table("computations")

    def _table(self, name: str) -> Table:
        if name not in self._tables:
            rows = self.module._summary_rows(name)
            fields = _FIELDS[name]
            self._tables[name] = of_rows(fields, [[row[f.name] for f in fields] for row in rows])
        return self._tables[name]

    def __reduce__(self) -> tuple[object, ...]:
        return Summary, (self.module,)

    def __repr__(self) -> str:
        values = self.values
        return (
            f"<Summary of {self.module.name}: {self.status}, {values['instructions']:,} "
            f"instructions in {values['computations']:,} computations>"
        )
