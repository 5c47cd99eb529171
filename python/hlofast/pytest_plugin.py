"""A pytest fixture for tests of compiled programs; installing hlofast registers it.

    def test_step(hlofast_check):
        hlofast_check("step.txt", "expectations.toml", declaration="mesh.toml")

Nothing heavy is imported until a test uses the fixture.
"""

from __future__ import annotations

from os import PathLike

import pytest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from hlofast import Check, Declaration, Expectations, Module


@pytest.fixture(scope="session")
def hlofast_check() -> Callable[..., Check]:
    """Checks a program and fails the test with the findings that are errors.

    Arguments: the program (a `hlofast.Module`, the path of a dump, or a function that JAX lowered
    or compiled), optionally its expectations (`hlofast.Expectations`, a mapping or the path of a
    TOML file), and `declaration` (a `hlofast.Declaration` or the path of one). Returns the
    `hlofast.Check` if there are no errors.
    """

    def check(
        program: Module | str | PathLike[str] | Any,
        expected: Expectations | Mapping[str, Any] | str | PathLike[str] | None = None,
        *,
        declaration: Declaration | str | PathLike[str] | None = None,
    ) -> Check:
        __tracebackhide__ = True
        import hlofast

        try:
            if isinstance(program, str | PathLike):
                program = hlofast.load(program)
            elif not isinstance(program, hlofast.Module):
                program = hlofast.from_jax(program)
            declared = hlofast.Declaration() if declaration is None else declaration
            checked = hlofast.check(declared, program, expected)
        except (OSError, ValueError) as error:
            # The traceback is left out: the message explains the failure, and this package's lines
            # do not.
            fault = f"{type(error).__name__}: {error}"
        else:
            fault = ""
        if fault:
            pytest.fail(fault, pytrace=False)
        if not checked.ok:
            lines = [
                f"{finding.code}: {finding.subject}: declared {finding.declared}, "
                f"compiled {finding.compiled}; {finding.message}"
                for finding in checked.found()
                if finding.severity == "error"
            ]
            pytest.fail("\n".join(lines), pytrace=False)
        return checked

    return check
