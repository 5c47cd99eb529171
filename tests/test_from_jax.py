"""Modules from what JAX returns: stand-ins everywhere, JAX itself in the oracle tier."""

import pytest

import hlofast

TEXT = "HloModule jit_f\n\nENTRY main {\n  ROOT p = f32[2]{0} parameter(0)\n}\n"


class Computation:
    def as_hlo_text(self) -> str:
        return TEXT


class Lowered:
    def as_text(self) -> str:
        return "module @jit_f {}"  # StableHLO, as JAX gives it by default.

    def compiler_ir(self, dialect: str | None = None) -> Computation:
        assert dialect == "hlo"
        return Computation()


class Compiled:
    def __init__(self, text: str | None) -> None:
        self.text = text

    def as_text(self) -> str | None:
        return self.text

    def runtime_executable(self) -> object:
        return object()


class XlaModule:
    def to_string(self) -> str:
        return TEXT


class Jitted:
    def lower(self, *arguments: object) -> Lowered:
        return Lowered()


@pytest.mark.parametrize("stage", [Lowered(), Compiled(TEXT), Computation(), XlaModule()])
def test_stages(stage: object) -> None:
    module = hlofast.from_jax(stage)
    assert isinstance(module, hlofast.Module)
    assert (module.name, module.text, module.entry.name) == ("jit_f", TEXT, "main")


def test_the_first_of_several_partitions() -> None:
    module = hlofast.from_jax(Compiled(TEXT + "\n\n" + TEXT.replace("jit_f", "other")))
    assert module.name == "jit_f"


def test_what_cannot_be_read_is_said() -> None:
    with pytest.raises(TypeError, match=r"lower\(arguments\)"):
        hlofast.from_jax(Jitted())
    with pytest.raises(ValueError, match="backend"):
        hlofast.from_jax(Compiled(None))
    with pytest.raises(TypeError, match="got int"):
        hlofast.from_jax(7)
    with pytest.raises(TypeError, match="loads"):
        hlofast.from_jax(TEXT)
    with pytest.raises(hlofast.ParseError):
        hlofast.from_jax(Compiled("HloModule broken\n\nENTRY main {"))
    for text, kind in (("", "no-module"), ("module @jit_f {}", "not-hlo")):
        with pytest.raises(hlofast.ParseError) as caught:
            hlofast.from_jax(Compiled(text))
        assert caught.value.kind == kind


@pytest.mark.oracle
@pytest.mark.filterwarnings("default")
def test_jax_itself() -> None:
    import jax
    import jax.numpy as jnp

    def step(x: jax.Array) -> jax.Array:
        return jnp.tanh(x @ x).sum()

    lowered = jax.jit(step).lower(jax.ShapeDtypeStruct((4, 4), jnp.float32))
    before, after = hlofast.from_jax(lowered), hlofast.from_jax(lowered.compile())
    for module in (before, after):
        assert module.name == "jit_step"
        (parameter,) = module.entry.parameters
        assert parameter.shape.dimensions == (4, 4)
    assert "dot" in before.opcodes()
    assert (before.is_scheduled, after.is_scheduled) == (False, True)
    with pytest.raises(TypeError, match="lower"):
        hlofast.from_jax(jax.jit(step))
