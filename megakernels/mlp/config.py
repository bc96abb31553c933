"""Sizes of the MLP stack and everything that follows from them."""

from dataclasses import dataclass

MATRICES = ("w_gate", "w_up", "w_down")
BF16_BYTES = 2
F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class MlpConfig:
    """A stack of RMSNorm + SwiGLU MLP layers with a residual, decoded tensor-parallel. Default: the demo.

    Every weight matrix is cut into square blocks, and `pack` consecutive blocks make a tile, the unit that is
    copied from HBM. A tile holds consecutive input rows of w_gate and w_up, consecutive output columns of
    w_down.

    Attributes:
        hidden: Width of the residual stream.
        ffn: Width between the matrices, over all cores; each core holds `ffn / cores` of it.
        layers: Layers in the stack.
        batch: Rows decoded together.
        cores: TensorCores the weights are sharded over.
        block: Side of a square weight block, a multiple of 128.
        pack: Blocks in a tile.
        ring_depth: VMEM banks that tiles stream through.
        prefetch_distance: Tiles requested ahead of the one in use; None means `ring_depth`, the most there is
            room for. 1 requests a tile only once the one before it is used up: HBM idles in between.
        epsilon: Added to the mean square in RMSNorm.

    Raises:
        ValueError: The sizes do not divide, or the distance does not fit the ring.
    """

    hidden: int = 8192
    ffn: int = 28672
    layers: int = 16
    batch: int = 8
    cores: int = 8
    block: int = 512
    pack: int = 4
    ring_depth: int = 18
    prefetch_distance: int | None = None
    epsilon: float = 1e-6

    def __post_init__(self) -> None:
        """Refuse sizes the kernel cannot tile, naming the option to change."""
        for name in ("hidden", "ffn", "layers", "batch", "cores", "block", "pack", "ring_depth"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} is {getattr(self, name)}; it must be at least 1")
        self._require_multiple("block", self.block, 128)
        self._require_multiple("hidden", self.hidden, self.block * self.pack)
        self._require_multiple("ffn", self.ffn, self.block * self.cores)
        self._require_multiple("hidden", self.hidden, self.cores * 128)
        wide, narrow = sorted((self.tile_columns, self.columns_per_core), reverse=True)
        self._require_multiple("the larger of block * pack and hidden / cores", wide, narrow)
        if not 1 <= self.distance <= self.ring_depth:
            raise ValueError(
                f"prefetch_distance is {self.distance}; it must be from 1 to ring_depth ({self.ring_depth})"
            )

    @staticmethod
    def _require_multiple(name: str, value: int, unit: int) -> None:
        if value % unit:
            raise ValueError(f"{name} is {value}; it must be a multiple of {unit}")

    @property
    def distance(self) -> int:
        """Tiles requested ahead of the one in use."""
        return self.ring_depth if self.prefetch_distance is None else self.prefetch_distance

    @property
    def ffn_per_core(self) -> int:
        """Columns of w_gate and w_up, rows of w_down, on one core."""
        return self.ffn // self.cores

    @property
    def ffn_blocks(self) -> int:
        """Blocks along this core's part of the ffn width."""
        return self.ffn_per_core // self.block

    @property
    def hidden_packs(self) -> int:
        """Tiles along the hidden width."""
        return self.hidden // self.tile_columns

    @property
    def tile_columns(self) -> int:
        """Hidden columns (or rows) one tile covers."""
        return self.block * self.pack

    @property
    def columns_per_core(self) -> int:
        """Residual columns each core reduces in the all-reduce."""
        return self.hidden // self.cores

    @property
    def tiles_per_matrix(self) -> int:
        """Tiles of one matrix, layer and core."""
        return self.ffn_blocks * self.hidden_packs

    @property
    def tiles_per_layer(self) -> int:
        """Tiles of one layer and core."""
        return len(MATRICES) * self.tiles_per_matrix

    @property
    def tiles(self) -> int:
        """Tiles of a whole step on one core."""
        return self.layers * self.tiles_per_layer

    @property
    def tile_bytes(self) -> int:
        """Bytes of one tile."""
        return self.pack * self.block * self.block * BF16_BYTES

    @property
    def tile_shape(self) -> tuple[int, int, int]:
        """Shape of one tile."""
        return (self.pack, self.block, self.block)
