"""Times and sizes in words. Inputs are picoseconds and bytes."""


def duration(time_ps: float) -> str:
    """A time in words: "12.3 us", "840 ns", "1.24 ms"."""
    magnitude = abs(time_ps)
    if magnitude >= 1e9:
        return f"{time_ps / 1e9:.3g} ms" if magnitude < 1e11 else f"{time_ps / 1e9:.0f} ms"
    if magnitude >= 1e6:
        return f"{time_ps / 1e6:.3g} us" if magnitude < 9.995e8 else f"{time_ps / 1e6:.0f} us"
    return f"{time_ps / 1e3:.3g} ns"


def size(count: float) -> str:
    """A size in words, decimal units: "1.41 GB", "512 kB", "96 B"."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if abs(count) >= scale:
            return f"{count / scale:.3g} {unit}" if count / scale < 1000 else f"{count / scale:.0f} {unit}"
    return f"{count:.0f} B"


def rate(bytes_per_s: float) -> str:
    """A bandwidth in words: "3.7 TB/s"."""
    return f"{bytes_per_s / 1e12:.3g} TB/s" if bytes_per_s >= 1e12 else f"{size(bytes_per_s)}/s"
