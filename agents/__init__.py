"""Megascope for coding agents: a skill to install, and the verbs as tools of the Model Context Protocol."""
