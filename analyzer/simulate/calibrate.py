"""Fits machine parameters to measured times of small kernels.

Coordinate descent on the logarithm of the parameters, over the relative errors: no derivative, no
dependency, and a timing pass per evaluation. What the measurements do not determine keeps its value.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from analyzer.machine import Machine, Parameter
from analyzer.output import write_output

Predict = Callable[[Machine], Sequence[float]]
RECOVERED = 0.06  # relative error of a parameter that counts as found again
_UNDETERMINED = 1e-4  # change of the error by a 10 % change of a parameter below which it is not determined


@dataclass(frozen=True, slots=True)
class Fit:
    """machine: with fitted parameters; rms: of the relative errors; determined: parameters the data fixed."""

    machine: Machine
    rms: float
    determined: tuple[str, ...]
    evaluations: int


def fit(
    machine: Machine,
    names: Sequence[str],
    predict: Predict,
    measured: Sequence[float],
    *,
    step: float = 0.3,
    tolerance: float = 2e-4,
) -> Fit:
    """Change the parameters `names` until the predicted times are nearest to the measured ones.

    Args:
        machine: where to start.
        names: parameters to fit; those that start at 0 are left alone.
        predict: times of all cases under a machine, in the order and unit of `measured`.
        measured: measured times.
        step: first relative step of each parameter.
        tolerance: relative step at which to stop.
    """
    free = [name for name in names if machine[name] > 0]
    values = {name: machine[name] for name in free}
    evaluations = 0

    def error_of(trial: Mapping[str, float]) -> float:
        nonlocal evaluations
        evaluations += 1
        times = predict(machine.with_overrides(trial))
        errors = [math.log(t / m) for t, m in zip(times, measured, strict=True)]
        return math.sqrt(sum(e * e for e in errors) / len(errors))

    best = error_of(values)
    steps = dict.fromkeys(free, step)
    while steps and max(steps.values()) > tolerance:
        for name in free:
            moved = False
            for factor in (1 + steps[name], 1 / (1 + steps[name])):
                trial = values | {name: values[name] * factor}
                error = error_of(trial)
                if error < best:
                    best, values, moved = error, trial, True
                    break
            steps[name] *= 1.6 if moved else 0.5
    determined = tuple(
        name
        for name in free
        if abs(error_of(values | {name: values[name] * 1.1}) - best) > _UNDETERMINED
        or abs(error_of(values | {name: values[name] / 1.1}) - best) > _UNDETERMINED
    )
    kept = {name: values[name] if name in determined else machine[name] for name in free}
    return Fit(machine.with_overrides(kept), best, determined, evaluations)


def leave_one_out(
    machine: Machine, names: Sequence[str], predict: Predict, measured: Sequence[float]
) -> list[float]:
    """Relative error of each case under the machine fitted to all the others."""
    errors = []
    for left in range(len(measured)):
        others = [k for k in range(len(measured)) if k != left]

        def partial(trial: Machine, others: list[int] = others) -> list[float]:
            times = predict(trial)
            return [times[k] for k in others]

        fitted = fit(machine, names, partial, [measured[k] for k in others], tolerance=1e-3)
        errors.append(predict(fitted.machine)[left] / measured[left] - 1)
    return errors


def perturbed(machine: Machine, names: Sequence[str]) -> Machine:
    """Other values of `names`, 10 to 30 % away, the same ones every time: what a self-test puts in."""
    factors = (1.3, 0.8, 1.2, 0.75, 1.15, 0.85)
    return machine.with_overrides(
        {name: machine[name] * factors[k % len(factors)] for k, name in enumerate(names)}
    )


def as_measured(machine: Machine, names: Sequence[str], source: str) -> Machine:
    """The machine with `names` marked as measured by `source`."""
    changed: dict[str, Parameter] = dict(machine.parameters)
    for name in names:
        changed[name] = replace(changed[name], kind="measured", source=source, overridden=None)
    return replace(machine, parameters=MappingProxyType(changed))


def write_machine(machine: Machine, path: Path) -> None:
    """Write a machine file that `load_machine(chip, path)` reads."""
    lines = [f'chip = "{machine.chip}"', f"cores_per_chip = {machine.cores_per_chip}", "", "[peaks]"]
    lines.append(f'source = "{machine.peaks_source}"')
    for name in machine.peaks.__slots__:
        value = getattr(machine.peaks, name)
        if value is not None:
            lines.append(f"{name} = {value!r}")
    for name, parameter in machine.parameters.items():
        source = parameter.source.replace("\\", "\\\\").replace('"', '\\"')
        lines += [
            "",
            f"[parameters.{name}]",
            f"value = {parameter.value!r}",
            f'unit = "{parameter.unit}"',
            f'kind = "{parameter.kind}"',
            f'source = "{source}"',
        ]
    write_output(path, ("\n".join(lines) + "\n").encode())
