"""Rewrite the [peaks] table of every machine file from what JAX states about the chip.

Run as `python -m analyzer.machine.record_peaks` with JAX installed. The analyzer itself never imports
JAX; tests/analyzer/machine checks that the recorded values still agree.
"""

import re
from pathlib import Path

CHIPS = {"tpu7x": "7x", "v6e": "v6e", "v5p": "v5p", "v5e": "v5e"}


def jax_peaks(version: str) -> dict[str, int | str]:
    """Peaks of one TensorCore of JAX's chip `version`; a rate of 0 (the chip lacks it) is left out."""
    import jax
    from jax.experimental.pallas import tpu as pltpu

    info = pltpu.get_tpu_info_for_chip(pltpu.ChipVersion(version), 1)
    peaks: dict[str, int | str] = {
        "source": f"jax {jax.__version__} jax.experimental.pallas.tpu.get_tpu_info_for_chip({version!r}, 1)",
        "hbm_bytes": info.hbm_capacity_bytes,
        "hbm_bytes_per_s": info.mem_bw_bytes_per_second,
        "vmem_bytes": info.vmem_capacity_bytes,
        "smem_bytes": info.smem_capacity_bytes,
        "bf16_flops": info.bf16_ops_per_second,
        "fp8_flops": info.fp8_ops_per_second,
        "int8_ops": info.int8_ops_per_second,
        "mxu_count": info.num_mxus,
        "mxu_columns": info.mxu_column_size,
        "lanes": info.num_lanes,
        "sublanes": info.num_sublanes,
    }
    return {name: value for name, value in peaks.items() if value != 0}


def table(peaks: dict[str, int | str]) -> str:
    """The [peaks] table as TOML text."""
    lines = [f"{name} = {value!r}" for name, value in peaks.items()]
    return "[peaks]\n" + "\n".join(lines).replace("'7x'", "7x").replace("'v", "v") + "\n"


def main() -> None:
    """Rewrite the files in place."""
    for chip, version in CHIPS.items():
        path = Path(__file__).parent / f"{chip}.toml"
        peaks = jax_peaks(version)
        peaks["source"] = str(peaks["source"]).replace("'", "")
        text = re.sub(r"\[peaks\]\n(?:[^\[\n].*\n)*", table(peaks), path.read_text(), count=1)
        temporary = path.with_suffix(".tmp")
        temporary.write_text(text)
        temporary.rename(path)


if __name__ == "__main__":
    main()
