"""`Statement`: what the verdict and pages say to change."""

from __future__ import annotations

from hlofast import _text as output
from hlofast._verdict_figures import short, short_bytes

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable

    from hlofast._verdict import Verdict

LEAST_GAIN = 0.01
"""The share of the step that another checkpoint policy must save to be named."""
LEAST_SHARE = 0.001
"""The share of the step that a finding must cost to be named; `lint` lists every finding."""
_OF_CHECKPOINTS = frozenset(("recomputed-collectives", "recomputed-twice"))
"""Findings of what checkpoints recompute, part of which another policy would keep."""


class Statement:
    """A piece of advice: a fact to know or a change to make."""

    __slots__ = ("code", "lines", "place", "proof", "remedy", "seconds", "stake", "text", "verb")

    def __init__(
        self,
        code: str,
        text: str = "",
        *,
        lines: Iterable[tuple[str, str]] = (),
        stake: str = "",
        seconds: float | None = None,
        remedy: str = "",
        place: str = "",
        proof: Iterable[tuple[int, str]] = (),
        verb: str = "",
    ) -> None:
        self.code = code
        self.text = text
        self.lines = tuple(lines)
        """Labels with texts, if the advice has several parts."""
        self.stake = stake
        self.seconds = seconds
        """Seconds of the step at stake; None if unknown."""
        self.remedy = remedy
        self.place = place
        self.proof = tuple(proof)
        """Rows and names of the instructions that are the evidence."""
        self.verb = verb
        """The verb that also lists the advice."""

    def __repr__(self) -> str:
        stake = f" ({self.stake})" if self.stake else ""
        return f"<Statement {self.code}{stake}: {self.remedy or self.text}>"


def statements_of(verdict: Verdict) -> tuple[Statement, ...]:
    """Returns a peak that does not fit, findings of `lint`, policies, and advice from `remat`.

    Those with seconds at stake come first, largest first.
    """
    known = verdict.findings.counts()
    advice = [
        statement
        for statement in remat_statements(verdict)
        if statement.remedy and statement.code not in known
    ]
    findings, policies = _findings(verdict), _recomputed(verdict)
    for other in policies:
        for own in findings:
            if own.code in _OF_CHECKPOINTS and own.remedy:
                own.remedy = f"an alternative to {other.code}: {own.remedy}"
    found = [*findings, *policies, *advice]
    found.sort(key=lambda statement: -(statement.seconds or 0.0))
    return (*_too_large(verdict), *found)


def remat_statements(verdict: Verdict) -> list[Statement]:
    """Returns the statements of `remat`."""
    statements = []
    for statement in verdict.remat.statements:
        proof = list(zip(statement.instructions, statement.names, strict=True))[:4]
        remedy = statement.advice or ""
        statements.append(
            Statement(statement.code, statement.text, remedy=remedy, proof=proof, verb="remat")
        )
    return statements


def _too_large(verdict: Verdict) -> list[Statement]:
    """A statement if the peak exceeds the memory of the device."""
    peak = next(figure.value for figure in verdict.figures if figure.key == "peak")
    if peak is None or verdict.hbm is None or peak <= verdict.hbm:
        return []
    over = short_bytes(int(peak - verdict.hbm))
    is_scheduled = verdict.module.is_scheduled
    what = "bytes allocated in HBM" if is_scheduled else "modelled bytes at the peak of one device"
    return [
        Statement(
            "does-not-fit",
            f"the {what} exceed the device memory of {short_bytes(int(verdict.hbm))} by {over}",
            stake=f"{over} over",
            remedy=_policy(verdict)
            or "rematerialise residuals (hlofast remat chooses them), shard or offload more, "
            "or use a smaller batch",
            verb="remat",
        )
    ]


def has_unknown_policies(verdict: Verdict) -> bool:
    """Whether the step keeps values for its backward pass, but its policies are not modelled."""
    return verdict.remat.policies is None and len(verdict.remat.residuals) > 0


def _policy(verdict: Verdict) -> str | None:
    """The checkpoint policy that fits, with what it needs and costs, or what fits besides policies.

    None if neither is known.
    """
    policies = verdict.remat.policies
    chosen = None if policies is None else policies.chosen
    if policies is None or chosen is None:
        return None
    if not chosen.fits:
        return policies.way_out
    before, after = policies.step_seconds, chosen.step_seconds
    step = ""
    if before is not None and after is not None:
        now, then = output.seconds(before), output.seconds(after)
        step = f" and a step of {then}{', as now' if now == then else f' instead of {now}'}"
    from hlofast._policy_units import shared_names

    shared, names = shared_names(policies), ""
    if shared is not None:
        other = short_bytes(shared[1].peak)
        names = (
            "; the names must differ by stack of layers: with the same names in all, about "
            f"{other} at the peak"
        )
    return (
        f"put the {policies.iteration}s under jax.checkpoint with {chosen.counted}: about "
        f"{short_bytes(chosen.peak)} at the peak{step} (modelled); hlofast remat prints the code"
        f"{names}"
    )


def _recomputed(verdict: Verdict) -> list[Statement]:
    """A statement if another checkpoint policy makes a step faster that fits as it is."""
    step = next(figure.value for figure in verdict.figures if figure.key == "step")
    if step is None or verdict.hbm is None:
        return []
    policies = verdict.remat.policies
    if policies is None or policies.peak > verdict.hbm:
        return []
    chosen = policies.chosen
    now = policies.as_compiled.added_seconds
    own = None if chosen is None else chosen.added_seconds
    if chosen is None or now is None or own is None or now - own < LEAST_GAIN * step:
        return []
    free, gain = short_bytes(int(verdict.hbm) - policies.peak), output.seconds(now - own)
    after = (
        f"{chosen.counted}: about {short_bytes(chosen.peak)} at the peak, {gain} less per step "
        "(modelled); hlofast remat prints the code"
    )
    if not policies.is_checkpointed:
        return [
            Statement(
                "stored-for-longer",
                "storing values for the backward pass and running short of memory costs more time "
                "than recomputing part of the values",
                stake=gain,
                seconds=now - own,
                remedy=f"put the {policies.iteration}s under jax.checkpoint with {after}",
                verb="remat",
            )
        ]
    return [
        Statement(
            "room-to-save",
            f"the {policies.iteration}s recompute {output.seconds(now)} of work, and {free} of "
            "device memory is free",
            stake=gain,
            seconds=now - own,
            remedy=f"switch to {after}",
            verb="remat",
        )
    ]


def _findings(verdict: Verdict) -> list[Statement]:
    """Returns the findings of `lint` that cost a part of the step that matters, most costly first.

    A remedy stands at its first finding.
    """
    statements = []
    said: set[str] = set()
    step = next(figure.value for figure in verdict.figures if figure.key == "step")
    for finding in verdict.findings:
        if finding.seconds is not None and finding.seconds < LEAST_SHARE * (step or 0.0):
            continue
        stakes = []
        if finding.peak_bytes is not None:
            stakes.append(f"{short_bytes(finding.peak_bytes)} at the peak")
        elif finding.bytes is not None:
            words = {
                "wire": "sent",
                "payload": "in collectives",
                "memory": "of memory",
                "traffic": "moved",
            }
            stakes.append(
                f"{short_bytes(finding.bytes)} {words.get(finding.bytes_are or '', '')}".strip()
            )
        if finding.flops is not None:
            stakes.append(short(finding.flops, "FLOP"))
        if finding.seconds is not None:
            stakes.append(output.seconds(finding.seconds))
        stake = ", ".join(stakes)
        if stake and finding.is_lower_bound:
            stake = f"at least {stake}"
        proof = list(zip(finding.instructions, finding.shown_names, strict=True))[:4]
        statements.append(
            Statement(
                finding.code,
                finding.message,
                stake=stake,
                seconds=finding.seconds,
                remedy="" if finding.remedy in said else finding.remedy,
                place=finding.place,
                proof=proof,
                verb="lint",
            )
        )
        said.add(finding.remedy)
    return statements
