"""The plan of single values to rematerialise, of `Remat`: its tables, outcome and notes."""

from __future__ import annotations

from hlofast import _remat_fields as fields
from hlofast._memory import SPACES
from hlofast._remat_statements import step_text, what_to_do
from hlofast._result import Note, Section
from hlofast.table import Table, of_rows

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterator

    from hlofast._remat import Remat

_FOLLOW = "follow a checkpoint policy; "
_HIDDEN = (
    "a plan of single values to recompute is left out: hlofast remat --plan shows it (Remat.steps "
    "and Remat.candidates in Python)"
)
_BESIDE = (
    "the checkpoint policies and the plan of single values are two ways to lower the same peak: a "
    "policy covers all layers and is code for the program, the plan changes one value of the text "
    "at a time"
)


def sections(remat: Remat) -> tuple[Section, ...]:
    """The plan in one row, its steps, and all candidates."""
    plan, at = remat._planned(), remat.peak_at
    space = plan.space()
    name = next((own for own, number in SPACES.items() if number == space), f"S({space})")
    row = (
        remat.peak,
        None if at is None else at.row,
        remat.hbm,
        remat.peak_after,
        None if remat.fits is None else "yes" if remat.fits else "no",
        outcome(remat),
        remat.rule,
        remat._rule is None,
        "device",
        name,
        "program" if remat.rule == "xla" else "last_use",
        getattr(remat.device, "name", None),
    )
    candidates = list(remat.candidates)
    order = [at for at, own in enumerate(candidates) if own["chosen"] is not None]
    order.sort(key=lambda at: int(candidates[at]["chosen"]))
    steps, shown = [], []
    for number, (at_, peak) in enumerate(zip(order, remat.steps, strict=True), 1):
        own = candidates[at_]
        steps.append((number, at_, own["name"], peak, own["change"]))
        shown.append((f"{number}. {step_text(own, peak)}", what_to_do(own)))
    described = [own for own in remat.candidates._described() if own[0].name != "residual"]
    return (
        Section("plan", "Plan", of_rows(fields.PLAN, [row]), fields.SHOWN_PLANNED),
        Section("steps", "Steps", of_rows(fields.STEPS, steps), paragraphs=shown),
        Section(
            "candidates", "Candidates", Table(described), fields.SHOWN_CANDIDATES, figure="saved"
        ),
    )


def outcome(remat: Remat) -> str:
    """What the plan reaches, in words."""
    refusal = remat._planned().refusal()
    if refusal is not None and not remat.fits:
        return f"no values are planned: {refusal}"
    chosen = None if remat.policies is None else remat.policies.chosen
    is_policy_enough = chosen is not None and chosen.fits
    if remat.fits and not remat.steps:
        if not is_policy_enough:
            return "the peak fits as it is; nothing to recompute"
        return "the peak fits as it is; a checkpoint policy makes the step faster"
    if remat.fits is None:
        return "the peak is lower" if remat.steps else "no candidate lowers the peak by 0.1 %"
    if remat.fits:
        return "fits"
    text = "does not fit" if remat.steps else "no candidate lowers the peak, and it does not fit"
    return f"{text}; a checkpoint policy does" if is_policy_enough else text


def notes(remat: Remat) -> Iterator[Note]:
    """Why no values are planned; where policies were read, that they are what to follow."""
    plan, known = remat._plan, remat._policies
    has_policies = known is not None and not isinstance(known, str)
    if plan is not None and plan.refusal() is not None:
        text = (
            f"no values are planned: {plan.refusal()}; peaks of candidates are those of "
            "the text in its order; plan on the scheduled module (after_optimizations), or "
            "recompute in the program with jax.checkpoint"
        )
        if has_policies:
            text += "; the peak to use is that of the policies, modelled for one device"
        yield Note("plan-unscheduled", text)
    if known is None and plan is None and len(remat.residuals):
        text = (
            "checkpoint policies are not shown: give --device NAME or --hbm 16GiB to model them "
            "(Remat.policies in Python)"
        )
        yield Note("policies-left-out", text)
    if known is not None and not isinstance(known, str):
        chosen = known.chosen
        is_way = chosen is not None and chosen.fits
        text = _HIDDEN if plan is None else _BESIDE
        yield Note("plan-of-values", f"{_FOLLOW}{text}" if is_way else text)
