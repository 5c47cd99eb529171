"""The analyses of a compiled program, computed once and shared by all comparisons."""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property

from hlofast._check.declaration import Declaration, DeclaredParameter, path_of
from hlofast._collectives import collectives
from hlofast._context import hbm_for, rules_for
from hlofast._remat import remat

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from hlofast import Collectives, Memory, Mesh, Module, Remat
    from hlofast._core import Instruction, Sharding


@dataclass(frozen=True)
class Parameter:
    """A parameter of the entry computation."""

    row: int
    number: int
    path: str
    name: str
    """The `op_name`, or the instruction's name."""
    dimensions: tuple[int, ...]
    """Dimensions on one device."""
    bits: int
    """Bits per element."""
    element_type: str
    sharding: Sharding | None
    declared: DeclaredParameter | None

    @property
    def bytes(self) -> int:
        """Bytes on one device, without padding."""
        return -(-math.prod(self.dimensions) * self.bits // 8)


class Program:
    """A module together with its declaration."""

    def __init__(self, declaration: Declaration, module: Module) -> None:
        self.declaration = declaration
        self.module = module
        self.is_partitioned = not module.summary().is_whole
        """Whether shapes are the shapes of one device."""

    @cached_property
    def mesh(self) -> Mesh | None:
        """The declared mesh, otherwise the mesh of the context, which may come from the text."""
        return self.declaration.mesh or self.module.context.mesh

    @property
    def available(self) -> int | None:
        """Bytes that the program may take: the context's budget, otherwise the declared one."""
        budget = hbm_for(self.module, None)
        return self.declaration.available if budget is None else int(budget)

    @cached_property
    def parameters(self) -> tuple[Parameter, ...]:
        """The array parameters of the entry computation."""
        parameters = []
        for instruction in self.module.entry.instructions:
            if instruction.opcode == "parameter" and instruction.shape.is_array:
                parameter = self._parameter(instruction)
                if parameter is not None:
                    parameters.append(parameter)
        return tuple(parameters)

    def _parameter(self, instruction: Instruction) -> Parameter | None:
        metadata = instruction.metadata
        name = (metadata.op_name if metadata is not None else None) or instruction.name
        path = path_of(name)
        shape = instruction.shape
        sizes = [size for size in shape.dimensions if size is not None]
        if len(sizes) != len(shape.dimensions) or shape.bytes is None:
            return None
        count = math.prod(sizes)
        bits = round(8 * shape.bytes / count) if count else 8
        sharding = instruction.sharding
        if not self.is_partitioned and sharding is not None and sharding.tile_dimensions:
            tiles = sharding.tile_dimensions
            sizes = [-(-size // tile) for size, tile in zip(sizes, tiles, strict=False)]
        declared = self.declaration.parameter(path)
        number = -1 if instruction.parameter_number is None else instruction.parameter_number
        return Parameter(
            instruction.row,
            number,
            path,
            name,
            tuple(sizes),
            bits,
            shape.element_type or "",
            sharding,
            declared,
        )

    @cached_property
    def collectives(self) -> Collectives:
        """The collectives of the module, by mesh axes."""
        return collectives(self.module, self.mesh, rules_for(self.module, None))

    @cached_property
    def remat(self) -> Remat:
        """The residuals and recomputation of the module."""
        return remat(self.module, None, None, self.mesh, rules_for(self.module, None), None)

    def memory(self, space: str = "hbm") -> Memory:
        """Live values in a memory space; contradictions in the text become its notes."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return self.module.memory(space=space)

    @cached_property
    def undonated(self) -> dict[int, int]:
        """Bytes of the parameters that could be donated and are not, by row."""
        return self.memory().undonated

    @cached_property
    def peak(self) -> tuple[int, int | None, str]:
        """The peak of a device's main memory in bytes, the row at the peak, and how it is counted.

        Scheduled TPU programs use the peak of HBM in XLA's own count, without fragmentation.
        """
        memory = self.memory()
        at = None if memory.at is None else memory.at.row
        if memory.backend == "tpu" and self.module.is_scheduled:
            return memory.hbm_peak, at, "as XLA counts it"
        if memory.peak_before is not None:
            return memory.peak_before.peak, None, "modelled before XLA has scheduled the module"
        return memory.live_peak, at, "live ranges, modelled"

    @cached_property
    def needed(self) -> tuple[int, str]:
        """Bytes to compare with the memory of a device, and how they are counted."""
        memory = self.memory()
        if memory.allocated_in_hbm is not None:
            is_told = memory.allocated is not None and memory.allocated.default_bytes is not None
            how = "from XLA's file" if is_told else "with fragmentation, modelled"
            return memory.allocated_in_hbm, f"allocated in HBM {how}"
        return self.peak[0], self.peak[2]

    @cached_property
    def loops(self) -> list[dict[str, Any]]:
        """The loops with their trip counts."""
        return self.module.cost().loops.to_pylist()

    @cached_property
    def axis_sizes(self) -> dict[str, int]:
        """Sizes of the mesh axes by name."""
        return {} if self.mesh is None else self.mesh.shape

    def shards(self, axes: tuple[str, ...]) -> int:
        """Number of shards into which `axes` divide a dimension."""
        return math.prod(self.axis_sizes.get(axis, 1) for axis in axes)

    def split(self, axes: tuple[str, ...]) -> tuple[str, ...]:
        """The axes of `axes` with more than one device."""
        return tuple(axis for axis in axes if self.axis_sizes.get(axis, 1) > 1)

    def sizes(self, parameter: Parameter) -> tuple[int, ...]:
        """The sizes of a parameter over all devices; includes padding if a sharding is uneven."""
        if parameter.declared is not None and parameter.declared.shape is not None:
            return parameter.declared.shape
        return self._over_all_devices(parameter)

    def compiled_sizes(self, parameter: Parameter) -> tuple[int, ...] | None:
        """Like `sizes`, from the compiled sharding alone; None if the text does not give it."""
        if parameter.sharding is None and self.module.num_partitions > 1:
            return None
        return self._over_all_devices(parameter)

    def _over_all_devices(self, parameter: Parameter) -> tuple[int, ...]:
        tiles: tuple[int, ...] = ()
        if parameter.sharding is not None and not parameter.sharding.is_replicated:
            tiles = parameter.sharding.tile_dimensions or ()
        padded = (*tiles, *[1] * len(parameter.dimensions))
        return tuple(size * tile for size, tile in zip(parameter.dimensions, padded, strict=False))


def percent(part: float, whole: float) -> str:
    """`part` as a percentage of `whole`."""
    return "-" if not whole else f"{100 * part / whole:.1f} %"
