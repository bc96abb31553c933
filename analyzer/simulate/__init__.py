"""Executes the scalar program of a kernel and models the engines around it."""

from analyzer.simulate.result import LoopTrips, ScenarioRecord, Simulation
from analyzer.simulate.scenario import Assumption, Scenario
from analyzer.simulate.simulator import Simulator, simulate

__all__ = ["Assumption", "LoopTrips", "Scenario", "ScenarioRecord", "Simulation", "Simulator", "simulate"]
