"""Machine data: one TOML file per chip, read into a `Machine`."""

from analyzer.machine.model import Machine, Parameter, Peaks, known_chips, load_machine

__all__ = ["Machine", "Parameter", "Peaks", "known_chips", "load_machine"]
