"""Shows recomputation, residuals and all-gathers of a step, and what to change."""

from __future__ import annotations

from hlofast import _text
from hlofast._memory import RULES
from hlofast._remat import Remat
from hlofast.cli import DONE, FINDINGS, UNREADABLE, USAGE, inputs, pages, policies, results

TYPE_CHECKING = False
if TYPE_CHECKING:
    import argparse

    from hlofast._policy import Policy

EXAMPLES = """\
examples:
  hlofast remat module_0042.jit_train_step.after_optimizations.txt
  hlofast remat --mesh data=2,model=4 step.txt
  hlofast remat --top 0 step.txt                 every residual
  hlofast remat --hbm 16GiB --device tpu-v5e step.txt     the checkpoint policy that fits
  hlofast remat --plan step.txt                  single values to rematerialise
  hlofast remat --hbm 16GiB --device tpu-v5e --frontier step.txt
  hlofast remat --policy nothing_saveable step.txt
  hlofast remat --save model.py:88 --offload mlp/dot_general step.txt
  hlofast remat --hbm 16GiB --apply -o less.txt step.txt
  hlofast remat --json step.txt | jq '.results[].tables.statements[] | {code, advice}'

Residuals are values that the forward pass computes and the backward pass reads. Recomputed values
are computed a second time, by jax.checkpoint or by the compiler. They are recognised by their
operation names, or by an earlier instruction that computes the same value. A gathered array counts
as kept if it, or a copy of it, is a residual.

--hbm shows the memory and time of the step under other checkpoint policies of its layers: JAX's
policies, the policy given by --policy, --save and --offload, the fastest policy that fits (as
code), and the best policies for other amounts of memory (without --hbm, use --frontier). These
figures are modelled from the text, which may be a text before optimisation. VALUE is an
instruction's name, a source line or part of an operation name.

Where no policy can be modelled, hlofast plans single values to rematerialise instead; --plan shows
this plan in any case. Each candidate is applied to the module, and the peak of the result is
measured: as compiled.memory_analysis() reports it for scheduled TPU programs (--rule xla), as live
bytes for other programs (--rule in_place). --apply writes the module with the whole plan applied: a
text to measure and compare, not a program to run. Checkpoint policies are code for your program;
--apply does not apply them.
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments."""
    parser.epilog = EXAMPLES
    results.add_usual(parser)
    plan = parser.add_argument_group("checkpoint policies, and a plan of single values")
    plan.add_argument(
        "--plan",
        action="store_true",
        help="choose single values to rematerialise, to lower the peak (default with --hbm where "
        "checkpoint policies cannot be modelled)",
    )
    policies.add_policy(plan)
    plan.add_argument(
        "--frontier",
        action="store_true",
        help="show the best checkpoint policies, memory against time",
    )
    plan.add_argument(
        "--rule",
        choices=RULES,
        help="how to count the peak, see `hlofast memory --help` (default: xla for scheduled TPU "
        "programs, else in_place)",
    )
    plan.add_argument(
        "--apply",
        action="store_true",
        help="write the rewritten module to -o OUT, for measuring only",
    )
    plan.add_argument("-o", "--output", metavar="OUT", help="output file of --apply")


def run(arguments: argparse.Namespace) -> int:
    """Reports on every module."""
    if arguments.apply != (arguments.output is not None):
        inputs.complain("--apply needs -o OUT, and -o needs --apply")
        return USAGE
    # Before the plan, which may have nothing to write.
    if arguments.apply and (code := pages.check_place(arguments.output, arguments.files)) != DONE:
        return code
    own = (arguments.policy, arguments.save, arguments.offload)
    given = (arguments.hbm, arguments.device, arguments.rule, *own)
    is_plan = arguments.plan or arguments.apply or arguments.frontier
    is_plan = is_plan or any(value is not None for value in given)
    # Beside checkpoint policies the plan of single values is a second answer: only if asked for.
    is_asked = arguments.plan or arguments.apply or arguments.rule is not None
    wants_values = True if is_asked or arguments.json else None
    reader = inputs.Reader(arguments, inputs.read_context(arguments))
    shower = results.Shower(Remat, arguments)
    code = 0
    modules = list(reader) if arguments.apply else reader
    if isinstance(modules, list) and len(modules) > 1:
        inputs.complain("--apply takes one module: choose it with --module NAME")
        return USAGE
    for loaded in modules:
        remat = loaded.module.remat(rule=arguments.rule)
        sections = remat.sections()
        if is_plan:
            try:
                policy = _policy(remat, *own, is_asked=arguments.frontier)
                sections = remat.sections(
                    plan=True, policy=policy, frontier=arguments.frontier, values=wants_values
                )
            except ValueError as error:
                reader.refused(loaded.path, f"{loaded.path}: {loaded.module.name}: {error}")
        if arguments.apply:
            try:
                code = code if _apply(remat, arguments.output) else FINDINGS
            except OSError as error:
                inputs.complain(f"{arguments.output}: {error.strerror or error}")
                code = UNREADABLE
        shower.show(remat, sections, loaded)
    shower.end(reader.errors)
    return reader.exit_code() or code


def _policy(
    remat: Remat,
    name: str | None,
    save: list[str] | None,
    offload: list[str] | None,
    *,
    is_asked: bool,
) -> Policy | None:
    """The policy of the options; None without one.

    Raises `ValueError` if it, or if `is_asked` any policy, cannot be modelled.
    """
    is_own = name is not None or save or offload
    if not is_own and not is_asked:
        return None
    if remat.policies is None:
        raise ValueError(remat.no_policies)
    return remat.policies.policy(name, save=save or (), offload=offload or ()) if is_own else None


def _apply(remat: Remat, path: str) -> bool:
    """Writes the rewritten module to `path` atomically; returns False if there is none to write.

    Raises `OSError` if it cannot be written.
    """
    from hlofast._files import replacing

    try:
        text = remat.apply().to_text()
    except ValueError as error:
        inputs.complain(f"{error}; nothing was written")
        return False
    with replacing(path) as file:
        file.write(text.encode("utf-8", "surrogateescape"))
    applied = _text.counted(len(remat.steps), "step")
    peaks = f"peak {remat.peak_after:,} B, before {remat.peak:,} B"
    results.note_to_measure(path, f"the module with {applied} of the plan applied ({peaks})")
    if remat.policies is not None:
        inputs.complain(
            "note: no checkpoint policy is applied to it; policies are code for the program"
        )
    return True
