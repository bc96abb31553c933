"""Executes the scalar program of a kernel and models the engines around it."""

from analyzer.simulate.result import LoopTrips, ScenarioRecord, Simulation
from analyzer.simulate.scenario import Assumption, Draw, Scenario
from analyzer.simulate.scenario_file import ScenarioFile, read_scenario
from analyzer.simulate.simulator import Simulator, simulate

__all__ = [
    "Assumption",
    "Draw",
    "LoopTrips",
    "Scenario",
    "ScenarioFile",
    "ScenarioRecord",
    "Simulation",
    "Simulator",
    "read_scenario",
    "simulate",
]
