"""The verbs of the kernels themselves: `vmem`, `weights`, `run`, `route`."""

import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from megakernels.k3.route_cli import route_verb

Model = Annotated[str, typer.Argument(help="The kernel: qwen or k3.")]
WEIGHED = ("qwen", "k3")


def register(app: typer.Typer) -> None:
    """Add the kernels' verbs to the application."""
    app.command("vmem")(vmem_verb)
    app.command("weights")(weights_verb)
    app.command("run")(run_verb)
    app.command("route")(route_verb)


def vmem_verb(
    kernel: Annotated[str, typer.Argument(help="The kernel: qwen, k3 or mlp.")],
    *,
    batch: Annotated[int | None, typer.Option(help="Sequences.")] = None,
    cores: Annotated[int | None, typer.Option(min=1, help="TensorCores.")] = None,
    verify: Annotated[bool, typer.Option("--verify", help="Speculative verify.")] = False,
    fp8: Annotated[bool, typer.Option("--fp8", help="Float8 weights.")] = False,
    report_format: Annotated[str, typer.Option("--format", help="text or json.")] = "text",
) -> None:
    """Say what a kernel keeps in VMEM, array by array."""
    import json

    from analyzer.errors import UsageError
    from megakernels.registry import KERNELS

    if report_format not in ("text", "json"):
        raise UsageError(f"--format {report_format}", "no such format", "Formats: text, json.")
    if kernel not in KERNELS:
        raise UsageError(kernel, "no such kernel", f"Kernels: {', '.join(KERNELS)}.")
    quiet_jax()
    named = {"batch": batch, "cores": cores, "verify": verify or None, "fp8": fp8 or None}
    try:
        facts = KERNELS[kernel](**{n: v for n, v in named.items() if v is not None}).facts
    except (TypeError, ValueError) as error:
        raise UsageError(kernel, str(error), "See `megascope vmem --help`.") from None
    arrays = dict(sorted(facts["vmem"].items(), key=lambda item: -item[1]))
    used, capacity = sum(arrays.values()), 64 << 20
    if report_format == "json":
        found = {"used_bytes": used, "capacity_bytes": capacity, "arrays": arrays}
        print(json.dumps(found | {"ring_plan": facts.get("ring_plan")}, indent=1))
        return
    for name, size in arrays.items():
        print(f"{size / 2**20:9.3f} MiB  {100 * size / capacity:5.1f} %  {name}")
    print(f"{used / 2**20:9.3f} MiB  {100 * used / capacity:5.1f} %  of {capacity >> 20} MiB")
    if "ring_plan" in facts:
        from megakernels.k3.vmem_plan import as_text

        print(f"\nring.banks over layer {facts['ring_plan']['layer']}: when each tile is requested and used")
        print(as_text(facts["ring_plan"]["tiles"]))


def weights_verb(
    kernel: Model,
    *,
    to: Annotated[Path, typer.Option("--to", help="Folder to write.")],
    source: Annotated[
        Path | None, typer.Option("--from", help="Folder of a Hugging Face checkpoint (safetensors).")
    ] = None,
    random: Annotated[int | None, typer.Option(help="Make random weights from this seed instead.")] = None,
    model: Annotated[
        str | None, typer.Option(help="With --random: a model of the kernel, the small one by default.")
    ] = None,
    cores: Annotated[
        int | None,
        typer.Option(min=1, help="TensorCores the weights are laid out for: 8, or 32 for kimi-k3."),
    ] = None,
    fp8: Annotated[bool, typer.Option("--fp8", help="qwen with --random: float8 with block scales.")] = False,
    hosts: Annotated[int | None, typer.Option(min=1, help="k3: hosts of the slice; 8 cores each.")] = None,
    width_ranks: Annotated[
        int | None,
        typer.Option(min=1, help="k3: cores that share an expert by width; 4 where it splits so."),
    ] = None,
    ranks: Annotated[
        str | None, typer.Option(help="k3: only these cores' files, such as 8-15: those of one host.")
    ] = None,
    jobs: Annotated[
        int | None, typer.Option(min=1, help="k3: pieces of work at a time, one per processor.")
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Afterwards compare all with its checksums.")
    ] = False,
) -> None:
    """Lay a checkpoint out for a kernel; taken up where it stopped if it was stopped."""
    from analyzer.errors import InputError, UsageError

    _only(kernel, *WEIGHED)
    if (source is None) == (random is None):
        raise UsageError("weights", "one source is needed", "Give --from FOLDER or --random SEED.")
    foreign: dict[str, dict[str, Any]] = {
        "qwen": {"--hosts": hosts, "--width-ranks": width_ranks, "--ranks": ranks, "--jobs": jobs},
        "k3": {"--fp8": fp8},
    }
    for option in [name for name, value in foreign[kernel].items() if value]:
        raise UsageError(option, f"means nothing for {kernel}", "Leave it out.")
    quiet_jax()
    from megakernels.common import weight_files
    from megakernels.common.safetensors import CheckpointError

    try:
        with Bar() as bar:
            if kernel == "qwen":
                manifest = _qwen_weights(
                    to, bar, source=source, seed=random, model=model, cores=cores, fp8=fp8
                )
            else:
                from megakernels.k3.weights_cli import make

                split = {"cores": cores, "hosts": hosts, "width_ranks": width_ranks}
                manifest = make(
                    to, bar, source=source, seed=random, model=model, split=split, ranks=ranks, jobs=jobs
                )
        if source is not None:
            weight_files.copy_tokenizer(source, to)
        if check:
            with Bar() as bar:
                weight_files.verify(to, manifest, bar)
    except CheckpointError as error:
        raise InputError(error.where, error.fault, error.cure) from None
    except ValueError as error:
        raise UsageError("weights", str(error), "See `megascope weights --help`.") from None
    size = sum(about["bytes"] for about in manifest["files"].values())
    laid = manifest["layout"].get("cores") or manifest["layout"]["hosts"] * manifest["layout"]["members"]
    print(f"{to}: {size / 1e9:.3f} GB in {len(manifest['files'])} files for {laid} cores")


def _qwen_weights(
    to: Path,
    bar: "Bar",
    *,
    source: Path | None,
    seed: int | None,
    model: str | None,
    cores: int | None,
    fp8: bool,
) -> dict[str, Any]:
    """Convert or make weights of Qwen; gives the manifest."""
    from megakernels.qwen import checkpoint, weights
    from megakernels.qwen.config import CONFIGS
    from megakernels.qwen.plan import Plan

    if source is not None:
        opened = checkpoint.open_checkpoint(source)
    else:
        config = CONFIGS[known_model(model or "qwen-small", CONFIGS)]
        opened = checkpoint.random_source(config, seed or 0, fp8)
    plan = Plan(config=opened.config, cores=cores or 8, fp8=opened.fp8)
    return weights.convert(opened, plan, to, bar)


def known_model(name: str, models: Any) -> str:
    """The name, if there is such a model.

    Raises:
        UsageError: There is none.
    """
    from analyzer.errors import UsageError

    if name not in models:
        raise UsageError(f"--model {name}", "no such model", f"Models: {', '.join(models)}.")
    return name


def run_verb(
    kernel: Model,
    *,
    prompt: Annotated[
        list[str] | None, typer.Option(help="What to continue; k3 takes several, a sequence each.")
    ] = None,
    tokens: Annotated[int, typer.Option(help="Tokens to generate.")] = 4,
    weights: Annotated[Path | None, typer.Option(help="Folder made by `megascope weights`.")] = None,
    capacity: Annotated[int | None, typer.Option(min=1, help="Tokens the KV cache holds.")] = None,
    record: Annotated[
        Path | None, typer.Option(help="qwen: write a capture of the last steps, with their trace (a TPU).")
    ] = None,
    temperature: Annotated[float, typer.Option(help="k3: 0 takes the likeliest token.")] = 0.0,
    top_p: Annotated[float, typer.Option(help="k3: draw from the likeliest tokens up to this sum.")] = 1.0,
    seed: Annotated[int, typer.Option(help="k3: of the draws.")] = 0,
    per_call: Annotated[
        int | None, typer.Option(min=1, help="k3: decode steps in a device call; 8 by default.")
    ] = None,
    speculate: Annotated[
        bool, typer.Option("--speculate", help="k3: draft from the text itself, verify 8 rows at a time.")
    ] = False,
    stop: Annotated[int | None, typer.Option(help="k3: a token that ends a text.")] = None,
    distributed: Annotated[
        bool, typer.Option("--distributed", help="k3: one of several processes, found as the slice says.")
    ] = False,
    coordinator: Annotated[
        str | None, typer.Option(help="k3: host:port of process 0, where the slice does not say.")
    ] = None,
    processes: Annotated[int | None, typer.Option(help="k3: with --coordinator, how many.")] = None,
    process: Annotated[int | None, typer.Option(help="k3: with --coordinator, which this is.")] = None,
) -> None:
    """Generate text with a kernel: on a TPU, or a small model in interpret mode on a CPU."""
    from analyzer.errors import InputError, UsageError

    _only(kernel, *WEIGHED)
    prompts = tuple(prompt or ["Hello"])
    if not _has_tpu():
        quiet_jax()
    flags = os.environ.get("XLA_FLAGS", "")
    if "host_platform_device_count" not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} --xla_force_host_platform_device_count=8".strip()
    from megakernels.common.safetensors import CheckpointError

    try:
        if kernel == "qwen":
            from megakernels.qwen import generate as qwen

            sampled = temperature != 0 or top_p != 1 or seed != 0
            given = any(option is not None for option in (per_call, stop, coordinator, processes, process))
            if len(prompts) > 1 or sampled or given or speculate or distributed:
                raise UsageError("run qwen", "continues one prompt, greedily", "Leave the options of k3 out.")
            if record is not None:
                from megakernels.qwen.recording import Recording
                from megakernels.qwen.recording import record as run_recorded

                recording = Recording(prompts[0], tokens, weights, record, capacity)
                texts = [run_recorded(recording, note=_say)]
            else:
                texts = [qwen.generate(prompts[0], tokens, weights, capacity, note=_say)]
        else:
            if record is not None:
                raise UsageError("run k3", "cannot record", "Use megascope record k3.")
            from megakernels.k3 import generate as k3

            k3.join(coordinator, processes, process, asked=distributed)
            request = k3.Request(
                prompts=prompts,
                count=tokens,
                weights=weights,
                capacity=capacity,
                sampling=k3.Sampling(temperature, top_p),
                seed=seed,
                per_call=per_call or k3.STEPS_PER_CALL,
                speculate=speculate,
                stop=stop,
            )
            texts = k3.generate(request, note=_say)
    except CheckpointError as error:
        raise InputError(error.where, error.fault, error.cure) from None
    except ValueError as error:
        raise UsageError("run", str(error), "See `megascope run --help`.") from None
    for text in texts:
        print(text)


def _only(kernel: str, *kernels: str) -> None:
    from analyzer.errors import UsageError

    if kernel not in kernels:
        said = f"Kernels: {', '.join(kernels)}."
        raise UsageError(kernel, "has no weights of its own to convert or run", said)


def _has_tpu() -> bool:
    """Whether a TPU is attached; asking libtpu instead prints pages where there is none."""
    devices = Path("/dev")
    return bool([*devices.glob("accel[0-9]*"), *devices.glob("vfio/[0-9]*")])


def quiet_jax() -> None:
    """Sizes and layouts need no accelerator: do not let JAX look for one."""
    os.environ.setdefault("JAX_PLATFORMS", "cpu")
    os.environ.setdefault("TPU_SKIP_MDS_QUERY", "1")


class Bar:
    """Progress of a conversion on stderr: a bar on a terminal, a line now and then elsewhere."""

    def __enter__(self) -> "Bar":
        from rich.console import Console
        from rich.progress import Progress

        self._console = Console(stderr=True)
        self._progress = Progress(console=self._console, disable=not self._console.is_terminal)
        self._progress.start()
        self._task = self._progress.add_task("", total=None)
        self._tenth = -1
        return self

    def __exit__(self, *_: Any) -> None:
        self._progress.stop()

    def __call__(self, done: int, total: int, unit: str) -> None:
        """Show that so many units are done, and which is next."""
        self._progress.update(self._task, completed=done, total=total, description=unit)
        tenth = 10 * done // max(total, 1)
        if not self._console.is_terminal and tenth != self._tenth:
            self._tenth = tenth
            _say(f"{done} of {total}: {unit}")


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
