"""A recorded generation: the decode steps of a prompt are the steps of a capture.

`megascope record qwen` runs one step on made-up operands again and again. Here the recorded program decodes:
real weights, the prompt fed token by token (what comes before the traced steps is the warm-up), each step fed
with what the one before gave. Nothing else runs on the devices meanwhile, prefill by verify blocks included,
so that the trace and the dump are of the one program.
"""

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from megakernels.common.running import no_weights
from megakernels.qwen.generate import CAPACITY, until, vocabulary
from megakernels.qwen.plan import VERIFY_ROWS, WINDOW, Plan
from megakernels.qwen.weights import open_weights
from profiler.device_layer import TpuLayer
from profiler.record import RecordRequest, record_kernel
from profiler.topology import parse_topology, shapes_with

TRACED_STEPS = 5
DRIVER = "megakernels.qwen.recording:layer"
# Of the arguments of the decode form the first are tokens, positions, accepted, the last the state.
SCALARS, STATES = 3, 3


class DecodeLayer(TpuLayer):
    """Decodes with the compiled step that is recorded; each run is a step.

    Args:
        request: The child's: `options` of the build, `driver_options` with the folder of `weights` and the
            prompt's `tokens`.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        super().__init__(request.get("distributed"))
        from megakernels.qwen.build import plan_of

        self._plan = plan_of(**request["options"])
        self._folder = Path(request["driver_options"]["weights"])
        self._waiting = [int(token) for token in request["driver_options"]["tokens"]]
        self._position = 0
        self._made: list[int] = []
        self._state: tuple[Any, ...] = ()  # after the last step

    def put(self, arguments: tuple[Any, ...], values: Mapping[int, Sequence[int]]) -> tuple[Any, ...]:
        """Weights and an empty state; the scalars are put in by every step."""
        del values
        self._state = tuple(self.empty(shape) for shape in arguments[-STATES:])
        weights = self.weights_on(arguments[SCALARS].sharding.mesh)
        return (*arguments[:SCALARS], *weights, *self._state)

    def run(self, compiled: Any, arrays: tuple[Any, ...]) -> None:
        """One decode step: of the next token of the prompt, or of the token the last step gave."""
        token = self._waiting.pop(0) if self._waiting else self._made[-1]
        scalars = [np.asarray([value], np.int32) for value in (token, self._position, 0)]
        weights = arrays[SCALARS:-STATES]
        chosen, _, *state = self.execute(compiled, (*scalars, *weights, *self._state))
        self._state = tuple(state)
        self._position += 1
        token = int(np.asarray(chosen)[0, 0])
        if not self._waiting:
            self._made.append(token)

    def outcome(self) -> dict[str, Any]:
        """What was generated: JSON values."""
        return {"tokens": list(self._made), "positions": self._position}

    def weights_on(self, mesh: Any) -> list[Any]:
        """The weight operands, on the devices."""
        from megakernels.qwen.run import place_weights

        return place_weights(self._plan, open_weights(self._folder)[2], mesh)

    def empty(self, shape: Any) -> Any:
        """An array of zeros on the devices."""
        import jax.numpy as jnp

        return self._jax.jit(lambda: jnp.zeros(shape.shape, shape.dtype), out_shardings=shape.sharding)()

    def execute(self, compiled: Any, arrays: tuple[Any, ...]) -> Any:
        """Run the compiled step; returns when it is complete."""
        return self._jax.block_until_ready(compiled(*arrays))


def layer(request: Mapping[str, Any]) -> DecodeLayer:
    """The layer of a request."""
    return DecodeLayer(request)


@dataclasses.dataclass(frozen=True, slots=True)
class Recording:
    """A generation to be recorded.

    Attributes:
        prompt: Text to continue.
        count: Tokens to generate.
        weights: Folder of weights.
        out: Folder of the capture.
        capacity: Tokens of the KV cache.
        force: Replace a capture that is there.
        device_layer: `file.py:function` in place of the TPUs (tests).
    """

    prompt: str
    count: int
    weights: Path | None
    out: Path
    capacity: int | None = None
    force: bool = False
    device_layer: str | None = None


def record(asked: Recording, note: Callable[[str], None]) -> str:
    """Continue a prompt greedily, the last steps under the profiler; gives the text, writes the capture.

    Args:
        asked: What.
        note: Told what is being done.

    Raises:
        CheckpointError: The weights cannot be used.
        ValueError: Prompt and tokens do not fit the cache.
        MegascopeError: There is no TPU, or the recording fails.
    """
    if asked.weights is None:
        raise no_weights("qwen", "run --record")
    config, layout, _ = open_weights(asked.weights)
    plan = Plan(config=config, capacity=asked.capacity or CAPACITY, **layout)
    words, stop = vocabulary(asked.weights, config, note)
    tokens = words.encode(asked.prompt)
    room = plan.capacity - WINDOW - VERIFY_ROWS
    if not tokens or asked.count < 1 or len(tokens) + asked.count > room:
        raise ValueError(
            f"a prompt of {len(tokens)} tokens and {asked.count} more; the cache has room for 1 to {room}"
        )
    steps = len(tokens) - 1 + asked.count
    traced = max(1, min(TRACED_STEPS, steps // 2))
    request = RecordRequest(
        target="qwen",
        topology=parse_topology(f"tpu7x:{shapes_with('tpu7x', max(plan.cores, 2))[0]}", None),
        steps=traced,
        warmup=max(0, steps - 2 * traced),
        options={"model": dataclasses.asdict(config), "capacity": plan.capacity, **layout},
        driver=DRIVER,
        driver_options={"weights": str(asked.weights.absolute()), "tokens": tokens},
        device_layer=asked.device_layer,
    )
    manifest = record_kernel(request, asked.out, force=asked.force, progress=note)
    note(f"the last {traced} steps are in {asked.out}: megascope report {asked.out}")
    made = manifest["record"]["outcome"]["tokens"][: asked.count]
    return words.decode(until(stop, made))
