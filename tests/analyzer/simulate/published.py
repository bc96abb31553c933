"""Times published for TPU7x microkernels (8 cores, 4 chips), in microseconds, and how to time ours."""

# kernel, options, published time; ranges are given by their middle
CASES = [
    ("stream", {"mib": 400}, 128.0),
    ("stream", {"mib": 200}, 68.0),
    ("remote_copy", {"kib": 256, "distance": 1}, 2.60),
    ("remote_copy", {"kib": 16384, "distance": 1}, 27.5),
    ("remote_copy", {"kib": 256, "distance": 2}, 7.8),
    ("remote_copy", {"kib": 16384, "distance": 2}, 367.0),
    ("all_gather", {"rows": 8, "columns": 1024}, 3.9),
    ("all_gather", {"rows": 8, "columns": 512}, 3.7),
    ("all_gather", {"rows": 16, "columns": 1024}, 4.9),
    ("all_reduce", {"rows": 8, "columns": 8192, "wire": "f32"}, 9.4),
    ("all_reduce", {"rows": 8, "columns": 8192, "wire": "bf16"}, 7.3),
    ("all_reduce", {"rows": 64, "columns": 4096, "wire": "f32"}, 25.4),
    ("all_reduce", {"rows": 64, "columns": 4096, "wire": "bf16"}, 14.5),
]


def op_time_us(result):
    """Longest time a core spends in phase `op`."""
    timeline = result.timeline
    region = timeline[(timeline["track"] == "region") & (timeline["phase"] == "op")]
    return region["duration_ps"].max() / 1e6
