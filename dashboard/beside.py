"""Measured and modelled accounts of one step laid over each other: by how much the model has to move."""

from dashboard.index import Band, TimelineIndex


def shift_between(measured: TimelineIndex, modelled: TimelineIndex, at: str = "") -> int:
    """Picoseconds to add to the model so that both begin the step, or the band `at`, at the same time.

    Args:
        measured: a core of a trace; its first step counts.
        modelled: the same program simulated.
        at: "layer 3", the name of a phase, or "" for the begin of the step; what one of them lacks is "".
    """
    first, second = _begin(measured, at), _begin(modelled, at)
    if first is None or second is None:
        first, second = _step(measured), _step(modelled)
    return first - second


def anchors(measured: TimelineIndex, modelled: TimelineIndex, limit: int = 300) -> list[str]:
    """Names of the layers and phases that both accounts have, in time order."""
    known = {band.label for band in (*modelled.layers, *modelled.phases)}
    names = (band.label for band in (*measured.layers, *measured.phases))
    return [name for name in dict.fromkeys(names) if name in known][:limit]


def _begin(index: TimelineIndex, at: str) -> int | None:
    return next((band.start for band in (*index.layers, *index.phases) if at and band.label == at), None)


def _step(index: TimelineIndex) -> int:
    """Begin of the step: of its first band, since what comes before is not the kernel's."""
    bands: tuple[Band, ...] = (*index.layers[:1], *index.phases[:1])
    return min((band.start for band in bands), default=index.start)
