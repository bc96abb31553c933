"""A made-up timeline with the shape of a tensor-parallel MLP decode step, for tests and for speed.

Not a model of any chip: it has a ring of outstanding copies, exposed all-reduces and the bubbles they cause,
so that every lane, wait and bubble of the figures has something to show. Same arguments, same table.
"""

import numpy as np
import pandas as pd

from analyzer import timeline as tl
from analyzer.timeline import Kind, Provenance, Track

TILE_BYTES = 2 << 20
TILE_PS = 666_000  # at 3.15 TB/s
LATENCY_PS = 700_000
CYCLE_PS = 571
PEAK_BYTES_PER_S = 3.70e12
MATRICES = ("gate", "up", "down")


def make(
    *, layers: int = 16, tiles: int = 28, ring: int = 12, detail: int = 4, cores: int = 1, seed: int = 0
) -> pd.DataFrame:
    """A step of `layers` layers, three matrices of `tiles` 2 MiB tiles each.

    Args:
        layers: decoder layers.
        tiles: copies per matrix and layer.
        ring: outstanding copies.
        detail: matrix and vector spans per tile; 250 with the defaults gives about a million spans.
        cores: cores, all with their own jitter.
        seed: of the jitter.
    """
    parts = [
        _core(core, layers, tiles, ring, detail, random=np.random.default_rng(seed + core))
        for core in range(cores)
    ]
    frame = pd.concat(parts, ignore_index=True)
    frame["span"] = np.arange(len(frame))
    return tl.conform(frame)


def _core(
    core: int, layers: int, tiles: int, ring: int, detail: int, *, random: np.random.Generator
) -> pd.DataFrame:
    rows: list[dict[str, object]] = []
    blocks: list[tuple[int, int, int, str, int]] = []  # start, end, layer, phase, bundle
    total = layers * 3 * tiles
    freed = [0] * ring
    link_free = now = 0
    issued_until = 0
    arrivals: list[int] = []

    def add(track: Track, kind: Kind, name: str, start: int, end: int, **more: object) -> int:
        rows.append(
            {
                "core": core,
                "track": track,
                "kind": kind,
                "name": name,
                "step": 0,
                "start_ps": start,
                "duration_ps": end - start,
                "queue": "",
                "provenance": Provenance.MODELLED,
                "span": len(rows),
                **more,
            }
        )
        return len(rows) - 1

    def issue(when: int) -> None:
        nonlocal link_free, issued_until
        if issued_until >= total:
            return
        layer, rest = divmod(issued_until, 3 * tiles)
        matrix = MATRICES[rest // tiles]
        slot = issued_until % ring
        start = max(when + LATENCY_PS, link_free)
        link_free = start + TILE_PS
        where = {"bundle_first": 0x80 + 0x40 * (rest // tiles), "bundle_last": 0x80 + 0x40 * (rest // tiles)}
        span = add(
            Track.HBM_READ,
            Kind.TRANSFER,
            f"w_{matrix}[{layer},{rest % tiles}]",
            start,
            link_free,
            layer=layer,
            phase=matrix,
            bytes=TILE_BYTES,
            queue="hbm",
            issued_ps=when,
            free_ps=freed[slot],
            source="mlp.py:31",
            operand=2 + rest // tiles,
            **where,
        )
        arrivals.append(span)
        issued_until += 1

    for _ in range(ring):
        issue(now)
        now += 20 * CYCLE_PS
    tile = 0
    for layer in range(layers):
        begin = now
        length = 1_500_000 + int(random.integers(0, 80_000))
        blocks.append((now, now + length, layer, "norm", 0x40))
        add(
            Track.REGION,
            Kind.VECTOR,
            "norm",
            now,
            now + length,
            layer=layer,
            phase="norm",
            source="mlp.py:38",
        )
        now += length
        for number, matrix in enumerate(MATRICES):
            phase_start = now
            for _ in range(tiles):
                span = arrivals[tile]
                arrived = int(rows[span]["start_ps"]) + TILE_PS  # type: ignore[call-overload]
                bundle = 0x90 + 0x40 * number
                if arrived > now:
                    add(
                        Track.WAIT,
                        Kind.WAIT,
                        f"wait w_{matrix}",
                        now,
                        arrived,
                        layer=layer,
                        phase=matrix,
                        cause=span,
                        source="mlp.py:46",
                        bundle_first=bundle,
                        bundle_last=bundle,
                    )
                    now = arrived
                length = 520_000 + int(random.integers(0, 60_000))
                blocks.append((now, now + length, layer, matrix, bundle))
                now += length
                freed[tile % ring] = now
                issue(now)
                tile += 1
            add(
                Track.REGION,
                Kind.MATRIX,
                matrix,
                phase_start,
                now,
                layer=layer,
                phase=matrix,
                source=f"mlp.py:{44 + 8 * number}",
            )
        now = _all_reduce(add, core, layer, now, random)
        add(
            Track.REGION, Kind.MATRIX, f"layer {layer}", begin, now, layer=layer, phase="", source="mlp.py:36"
        )
    add(
        Track.HBM_WRITE,
        Kind.TRANSFER,
        "out",
        now + LATENCY_PS,
        now + LATENCY_PS + 45_000,
        bytes=131_072,
        queue="hbm",
        issued_ps=now,
        source="mlp.py:90",
        operand=5,
        phase="",
        bundle_first=0x300,
        bundle_last=0x300,
    )
    add(
        Track.WAIT,
        Kind.WAIT,
        "wait out",
        now,
        now + LATENCY_PS + 45_000,
        cause=len(rows) - 1,
        source="mlp.py:90",
    )
    return pd.concat([pd.DataFrame(rows), _units(core, blocks, detail)], ignore_index=True).reindex(
        columns=list(tl.COLUMNS)
    )


def _all_reduce(add, core: int, layer: int, now: int, random: np.random.Generator) -> int:  # type: ignore[no-untyped-def]
    start = now
    last = -1
    end = now
    for peer in range(1, 8):
        sent = now + 100_000 * peer
        took = (1_600_000 if peer == 1 else 5_900_000) + int(random.integers(0, 300_000))
        where = {"layer": layer, "phase": "all-reduce", "source": "mlp.py:71", "bundle_first": 0x200}
        add(
            Track.ICI_SEND,
            Kind.COLLECTIVE,
            f"partial to core {peer}",
            sent,
            sent + took,
            bytes=32_768,
            queue=f"ici:{(core + peer) % 8}",
            bundle_last=0x204,
            issued_ps=sent,
            **where,
        )
        last = add(
            Track.ICI_RECV,
            Kind.COLLECTIVE,
            f"partial from core {peer}",
            sent + 200_000,
            sent + took,
            bytes=32_768,
            queue=f"ici:{(core + peer) % 8}",
            bundle_last=0x204,
            **where,
        )
        end = max(end, sent + took)
    add(
        Track.WAIT,
        Kind.COLLECTIVE,
        "wait all-reduce",
        now + 760_000,
        end,
        layer=layer,
        phase="all-reduce",
        cause=last,
        source="mlp.py:78",
        bundle_first=0x220,
        bundle_last=0x220,
    )
    add(
        Track.REGION,
        Kind.COLLECTIVE,
        "all-reduce",
        start,
        end,
        layer=layer,
        phase="all-reduce",
        source="mlp.py:70",
    )
    return end


def _units(core: int, blocks: list[tuple[int, int, int, str, int]], detail: int) -> pd.DataFrame:
    """Matrix and vector spans inside the busy blocks: `detail` of each per block, interleaved."""
    start = np.array([b[0] for b in blocks], np.int64)
    end = np.array([b[1] for b in blocks], np.int64)
    count = len(blocks)
    width = (end - start) // detail
    begins = (start[:, None] + width[:, None] * np.arange(detail)).ravel()
    widths = np.repeat(width, detail)
    layer = np.repeat([b[2] for b in blocks], detail)
    phase = np.repeat(np.array([b[3] for b in blocks], object), detail)
    bundle = np.repeat([b[4] for b in blocks], detail)
    norm = phase == "norm"
    frames = []
    for track, kind, offset, share in (
        (Track.MXU, Kind.MATRIX, 0.0, 0.72),
        (Track.VECTOR, Kind.VECTOR, 0.66, 0.30),
    ):
        keep = ~norm if track == Track.MXU else np.ones(count * detail, bool)
        at = np.where(norm, 0.0, offset)
        long = np.where(norm, 0.95, share)
        frames.append(
            pd.DataFrame(
                {
                    "core": core,
                    "track": str(track),
                    "kind": str(kind),
                    "name": "vmatmul" if track == Track.MXU else "vadd.f32",
                    "step": 0,
                    "layer": layer[keep],
                    "phase": phase[keep],
                    "start_ps": (begins + widths * at).astype(np.int64)[keep],
                    "duration_ps": np.maximum(widths * long, 1).astype(np.int64)[keep],
                    "queue": "",
                    "bundle_first": bundle[keep],
                    "bundle_last": bundle[keep] + 0x1F,
                    "source": "mlp.py:49",
                    "provenance": str(Provenance.MODELLED),
                }
            )
        )
    return pd.concat(frames, ignore_index=True)


def bubbles(timeline: pd.DataFrame, core: int = 0) -> pd.DataFrame:
    """HBM-idle intervals of at least 50 ns in the synthetic step: start_ps, duration_ps, cause ..."""
    mine = timeline[(timeline["core"] == core)]
    moves = mine[mine["track"].isin([Track.HBM_READ, Track.HBM_WRITE])].sort_values("start_ps")
    start = moves["start_ps"].to_numpy(np.int64)
    end = start + moves["duration_ps"].to_numpy(np.int64)
    lows = np.r_[0, np.maximum.accumulate(end)]
    highs = np.r_[start, mine["start_ps"].max()]
    phases = mine[(mine["track"] == Track.REGION) & (mine["phase"] != "")]
    out = []
    for low, high in zip(lows, highs, strict=True):
        if high - low < 50_000:
            continue
        middle = (low + high) // 2
        ran = phases[(phases["start_ps"] <= middle) & (phases["start_ps"] + phases["duration_ps"] > middle)]
        what = str(ran["phase"].iloc[0]) if len(ran) else ""
        layer = ran["layer"].iloc[0] if len(ran) else pd.NA
        out.append(
            {
                "start_ps": int(low),
                "duration_ps": int(high - low),
                "layer": layer,
                "phase": what,
                "cause": "all ring slots full, core in " + what
                if what
                else "ramp: first copy not issued yet",
                "source": "mlp.py:78",
                "bundle_first": 0x200,
                "bundle_last": 0x240,
                "core": core,
            }
        )
    return pd.DataFrame(out)
