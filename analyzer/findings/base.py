"""What a rule is, what it looks at, and what it hands back."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from analyzer import replay
from analyzer.bubbles import Bubble
from analyzer.findings.code import Code
from analyzer.llo.program import Program
from analyzer.llo.reader import FileProgram
from analyzer.metrics import CoreTime, Hbm, Ici, Phase
from analyzer.replay import Edit, Replayer
from analyzer.view import CoreStep
from analyzer.waits import ExposedWait

REPLAYED = "replayed without the fault"
BOUND = "at most the time it takes now"
NOT_ESTIMATED = "not estimated"

HIGH, MEDIUM, LOW = "high", "medium", "low"


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing worth a look, with its price on the step and the reasons to doubt it.

    Attributes:
        time_ps: what it takes of the step now; None if the timeline cannot tell.
        saving_ps: how much shorter the step would be without it; None if not estimated. Savings of different
            findings overlap and are never added up.
        saving_basis: REPLAYED, BOUND, NOT_ESTIMATED, or a sentence that states another bound.
        confidence: HIGH, MEDIUM or LOW.
        provenance: of time_ps and saving_ps (measured | modelled | counted | assumed).
        count: how often it happens in the step; None if it makes no sense.
        evidence: lines with numbers.
        doubt: why this might be wrong. advice: what to try. verify: a command or a check.
    """

    rule: str
    title: str
    time_ps: int | None
    saving_ps: int | None
    saving_basis: str
    confidence: str
    provenance: str
    source: str
    bundles: tuple[int, int] | None
    phase: str
    layers: tuple[int | None, ...]
    count: int | None
    evidence: tuple[str, ...]
    doubt: str
    advice: str
    verify: str

    @property
    def rank(self) -> tuple[bool, int, int, str, str]:
        """Sort key: largest saving first; what has no estimate comes last, by its time."""
        return (self.saving_ps is None, -(self.saving_ps or 0), -(self.time_ps or 0), self.rule, self.source)


@dataclass(frozen=True)
class Context:
    """Everything a rule may look at. Parts that the input does not have are None, and rules stay silent.

    Attributes:
        core: the core that sets the step time. others: the other cores of the timeline.
        executed: int64[B], how often each bundle ran on that core. cycle_ps: length of a cycle.
        operand_bytes: HBM operand index -> (bytes read, bytes written) on that core.
        stays: table of analyzer/residency.py of that core; None where nothing tells.
        parameters: values of the machine model by name, in SI units.
        facts: free facts of the capture (manifest `facts`, identical recompiles, VMEM figures).
        target: what the user pointed at, for commands in `verify`.
    """

    core: CoreStep
    hbm: Hbm
    ici: Ici
    time: CoreTime
    phases: Sequence[Phase]
    bubbles: Sequence[Bubble]
    waits: Sequence[ExposedWait]
    others: Sequence[CoreStep] = ()
    program: Program | None = None
    executed: NDArray[np.int64] | None = None
    cycle_ps: float | None = None
    hbm_rate: float | None = None
    operand_bytes: dict[int, tuple[int, int]] | None = None
    vmem_used: int | None = None
    vmem_capacity: int | None = None
    parameters: Mapping[str, float] = field(default_factory=dict)
    stays: pd.DataFrame | None = None
    facts: dict[str, Any] = field(default_factory=dict)
    target: str = "CAPTURE"

    @cached_property
    def replayer(self) -> Replayer:
        """The replay of this core, prepared once for all rules."""
        return replay.replayer(self.core)

    @cached_property
    def _baseline(self) -> int:
        return self.replayer.run()

    @cached_property
    def code(self) -> Code | None:
        """The compiled program with how often its bundles ran; None where either is unknown."""
        if not isinstance(self.program, FileProgram) or self.executed is None or not self.cycle_ps:
            return None
        return Code(self.program, self.executed, self.cycle_ps, self.core, self.parameters)

    @property
    def provenance(self) -> str:
        """Where the times of this timeline come from."""
        return str(self.core.spans["provenance"].iloc[0]) if len(self.core.spans) else "unknown"

    def priced(self, edit: Edit) -> tuple[int | None, str]:
        """Saving in picoseconds and its basis."""
        saving = self.replayer.saving(edit, self._baseline)
        return (saving, REPLAYED) if saving is not None else (None, NOT_ESTIMATED)

    def significant(self, time_ps: int) -> bool:
        """Whether a time is worth a line: a thousandth of the step."""
        return time_ps * 1000 >= self.core.window_ps > 0


@dataclass(frozen=True, slots=True)
class Rule:
    """One rule: what it sees in words (its page is generated from this) and the function that looks.

    Attributes:
        identifier: "MS101"; never reused. family: heading in the catalogue.
        sees: what in the timeline or the program makes it fire. costs: why that takes time.
        example: a few lines of kernel code that show the fault.
        advice, verify, doubt: as in Finding; a finding may say it more precisely.
    """

    identifier: str
    title: str
    family: str
    sees: str
    costs: str
    example: str
    advice: str
    verify: str
    doubt: str
    look: Callable[[Context, "Rule"], Iterable[Finding]]

    def finding(self, context: Context, **parts: Any) -> Finding:
        """A finding of this rule; texts come from the rule where the finding does not bring its own."""
        texts = {
            "rule": self.identifier,
            "title": self.title,
            "provenance": context.provenance,
            "source": "",
            "bundles": None,
            "phase": "",
            "layers": (),
            "count": None,
            "doubt": self.doubt,
            "advice": self.advice,
            "verify": self.verify.replace("CAPTURE", context.target),
        }
        return Finding(**(texts | parts))
