"""Tokens per second from a step time, beside what others published."""

from dataclasses import dataclass
from typing import Any

from dashboard import text
from dashboard.palette import Theme
from dashboard.summary import words_spec


@dataclass(frozen=True, slots=True)
class Reference:
    """A published decode rate in tokens per second over the whole batch.

    acceptance: mean tokens kept per step and sequence; 1 without speculative decoding.
    """

    model: str
    system: str
    batch: int
    acceptance: int
    tokens_per_s: float


# Inferact, "Open megakernels for TPU v7" (September 2026): its own kernels and vLLM on GB200.
REFERENCES: tuple[Reference, ...] = (
    *(
        Reference("kimi-k3", "megakernel, 16 TPU v7", b, 1, t)
        for b, t in ((1, 249), (2, 392), (4, 515), (8, 865))
    ),
    *(Reference("kimi-k3", "megakernel, 16 TPU v7", 1, a, t) for a, t in ((3, 350), (6, 709))),
    *(Reference("kimi-k3", "vLLM, 16 GB200", b, 1, t) for b, t in ((1, 127), (2, 227), (4, 373), (8, 636))),
    *(Reference("kimi-k3", "vLLM, 16 GB200", 1, a, t) for a, t in ((3, 229), (6, 452))),
    Reference("qwen3.8-27b", "megakernel, 4 TPU v7", 1, 6, 1515),
    Reference("qwen3.8-27b", "vLLM, GB200", 1, 6, 695),
)


def tokens_per_second(step_ps: int | None, batch: int | None, acceptance: float) -> float | None:
    """batch x acceptance length / step time; None if the step time or the batch is unknown."""
    if not step_ps or not batch:
        return None
    return batch * acceptance / (step_ps * 1e-12)


def family(model: str | None) -> str | None:
    """Which model of `REFERENCES` a capture's model is, if any."""
    name = (model or "").lower()
    if "k3" in name or "kimi" in name:
        return "kimi-k3"
    return "qwen3.8-27b" if "qwen" in name else None


def references(model: str | None, batch: int | None) -> list[Reference]:
    """Published rates for the same model and batch, whatever the acceptance length."""
    wanted = family(model)
    return [r for r in REFERENCES if r.model == wanted and r.batch == batch]


def _label(reference: Reference) -> str:
    accepted = f", {reference.acceptance} accepted" if reference.acceptance > 1 else ""
    return f"{reference.system}{accepted}"


def tokens_spec(report: dict[str, Any], acceptance: float, theme: Theme) -> dict[str, Any]:
    """Tokens per second of the capture and of the published systems for the same case."""
    capture, step = report.get("capture") or {}, report.get("step") or {}
    batch = capture.get("batch")
    mine = tokens_per_second(step.get("time_ps"), batch, acceptance)
    if mine is None:
        return words_spec(
            "Tokens per second need a step time and a batch size; the capture does not say them", theme
        )
    found = references(capture.get("model") or capture.get("kernel"), batch)
    names = [f"this capture ({step.get('provenance') or text.UNKNOWN})", *(_label(r) for r in found)]
    values = [mine, *(r.tokens_per_s for r in found)]
    colours = [theme.colours["transfer"], *(theme.bands[1] for _ in found)]
    return {
        "data": [
            {
                "type": "bar",
                "orientation": "h",
                "x": values,
                "y": names,
                "width": 0.6,
                "marker": {"color": colours},
                "text": [f"{v:,.0f}" for v in values],
                "textposition": "outside",
                "cliponaxis": False,
                "hovertemplate": "%{y}: %{x:,.0f} tokens/s<extra></extra>",
            }
        ],
        "layout": {
            **words_spec("", theme)["layout"],
            "annotations": [],
            "margin": {"l": 8, "r": 60, "t": 4, "b": 40},
            "xaxis": {
                "title": {"text": "tokens per second, whole batch", "standoff": 4},
                "fixedrange": True,
                "rangemode": "tozero",
                "gridcolor": theme.grid,
                "tickformat": ",",
            },
            "yaxis": {
                "fixedrange": True,
                "automargin": True,
                "autorange": "reversed",
                "ticklabelstandoff": 4,
            },
        },
    }
