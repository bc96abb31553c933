"""The environment a compile needs: libtpu's flags, and what keeps libtpu quiet on a machine without a TPU.

libtpu reads LIBTPU_INIT_ARGS once, when its backend first starts in a process, so every compile with
its own flags is its own process.
"""

import os
from collections.abc import Mapping, Sequence
from pathlib import Path

LEVELS = ("off", "regions")

# What the analyzer reads. Without a label filter libtpu writes about 125 passes per program.
PASSES = ("final_bundles", "trace-markers", "final_hlo-static-per-bundle-utilization")
REGION_TRACE = "--xla_enable_custom_call_region_trace=true"


def libtpu_flags(
    dump: Path, level: str, keep_all_passes: bool = False, extra: Sequence[str] = ()
) -> list[str]:
    """Flags for LIBTPU_INIT_ARGS.

    Args:
        dump: Folder for the dump; its path holds no white space (libtpu splits the flags at it).
        level: "off" or "regions": whether named scopes become markers in the bundles.
        keep_all_passes: Write every compiler pass, not only those that the analyzer reads.
        extra: More flags, put last so that they win.
    """
    flags = [
        f"--xla_jf_dump_to={dump}",
        "--xla_jf_dump_llo_text=true",
        "--xla_mosaic_enable_llo_source_annotations=true",
    ]
    if not keep_all_passes:
        flags.append(f"--xla_jf_dump_llo_pass_label_regex=({'|'.join(PASSES)})")
    if level == "regions":
        flags.append(REGION_TRACE)
    return [*flags, *extra]


def compile_environment(flags: Sequence[str], base: Mapping[str, str] | None = None) -> dict[str, str]:
    """The child's environment: `base` (this process's where None) with what a compile without a TPU needs."""
    env = dict(os.environ if base is None else base)
    # A hit in JAX's compilation cache compiles nothing and writes no dump.
    env.pop("JAX_COMPILATION_CACHE_DIR", None)
    env |= {
        "LIBTPU_INIT_ARGS": " ".join(flags),
        "TPU_SKIP_MDS_QUERY": "1",
        "JAX_PLATFORMS": "cpu",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
        "JAX_ENABLE_COMPILATION_CACHE": "false",
        "PYTHONUNBUFFERED": "1",
    }
    return env
