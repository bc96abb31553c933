"""Colours of the dashboard: one per kind, distinguishable with colour-blind vision, light and dark.

The four kinds of the published diagrams (HBM->VMEM transfer, matrix work, vector work, collective) take
four hues of the Okabe-Ito palette; waits are grey because nothing happens in them, and HBM bubbles are
the one hatched vermilion mark, so that they also differ in print and for people who see no red.
"""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Theme:
    """Every colour a figure uses, as CSS strings.

    Attributes:
        name: "light" or "dark".
        colours: kind of mark -> colour; the keys are those of `lanes.MARKS`.
        bands: two alternating fills for layer and phase bands.
    """

    name: str
    paper: str
    panel: str
    text: str
    muted: str
    grid: str
    colours: dict[str, str]
    bands: tuple[str, str]
    heat: tuple[str, str, str]


LIGHT = Theme(
    name="light",
    paper="#ffffff",
    panel="#f6f7f9",
    text="#1b1f24",
    muted="#57606a",
    grid="#d8dee4",
    colours={
        "transfer": "#0072b2",
        "write": "#56b4e9",
        "matrix": "#e69f00",
        "vector": "#009e73",
        "collective": "#cc79a7",
        "wait": "#8c959f",
        "scalar": "#b8a97a",
        "bubble": "#d55e00",
        "peak": "#1b1f24",
        "achievable": "#57606a",
    },
    bands=("#e4e8ed", "#cfd6de"),
    heat=("#f6f7f9", "#56b4e9", "#003f6b"),
)

DARK = Theme(
    name="dark",
    paper="#14181d",
    panel="#1c2128",
    text="#e6edf3",
    muted="#9aa5b1",
    grid="#30363d",
    colours={
        "transfer": "#3b9fe0",
        "write": "#8fd0f5",
        "matrix": "#f0b429",
        "vector": "#1fbf92",
        "collective": "#e294c0",
        "wait": "#6e7781",
        "scalar": "#a8986a",
        "bubble": "#ff7a33",
        "peak": "#e6edf3",
        "achievable": "#9aa5b1",
    },
    bands=("#2a313a", "#39424d"),
    heat=("#1c2128", "#1f77b4", "#c6e6ff"),
)

THEMES = {"light": LIGHT, "dark": DARK}


def theme(name: str | None) -> Theme:
    """The theme called `name`; light for anything unknown."""
    return THEMES.get(name or "", LIGHT)
