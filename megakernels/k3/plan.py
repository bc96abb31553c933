"""How the mixers are split over ranks and cut into tiles: every size the kernels and the packer agree on.

Each rank has whole heads, an equal share of them. Its share of a weight matrix is streamed in tiles of whole
columns through one ring of VMEM banks.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from megakernels.common.gemv import LANES, MXU_COLUMNS
from megakernels.k3.config import BF16_BYTES, F32_BYTES, K3Config
from megakernels.k3.dspark import VERIFY_ROWS

ROWS = 8  # sublanes: activations are padded to this many rows
HISTORY_ROWS = 16  # convolution inputs kept by a verify step, 3 + 8, in whole tiles of 8


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple not below value."""
    return -(-value // multiple) * multiple


@dataclass(frozen=True, slots=True)
class Matrix:
    """One rank's share of a weight matrix `[k, n]`, cut into tiles of whole columns.

    n includes padding columns. A tile is `[k, columns]`, stored as `[rows, 128]` (see common/gemv.py).
    """

    name: str
    k: int
    n: int
    columns: int

    @property
    def tiles(self) -> int:
        """Tiles of one layer's matrix."""
        return self.n // self.columns

    @property
    def rows(self) -> int:
        """Stored rows of 128 elements in a tile."""
        return self.columns // LANES * self.k

    @property
    def bytes(self) -> int:
        """Bytes of one layer's matrix, bfloat16."""
        return self.k * self.n * BF16_BYTES


def widest(name: str, k: int, n: int, bank_rows: int) -> Matrix:
    """Cut `[k, n]` into the widest tiles that a bank holds and that divide n."""
    pairs = n // MXU_COLUMNS
    fit = max(1, bank_rows // (2 * k))
    width = max(w for w in range(1, min(fit, pairs) + 1) if pairs % w == 0)
    return Matrix(name, k, n, width * MXU_COLUMNS)


def check_split(config: K3Config, cores: int, batch: int, verify: bool) -> None:
    """Refuse sizes that no mixer can be built for.

    Raises:
        ValueError: Names the size.
    """
    if config.heads % cores:
        raise ValueError(f"{config.name} has {config.heads} heads, which do not split over {cores} ranks")
    if batch not in {1, 2, 4, 8} or (verify and batch != 1):
        raise ValueError(f"batch {batch}: choose 1, 2, 4 or 8, and 1 with verify")
    if config.hidden % MXU_COLUMNS:
        raise ValueError(f"{config.name}: hidden must be a multiple of {MXU_COLUMNS}")


@dataclass(frozen=True)
class KdaPlan:
    """Sizes of one build of a stack of KDA mixers.

    Attributes:
        config: The model.
        layers: Mixers in the stack.
        cores: Ranks, one TensorCore each.
        batch: Sequences, each at its own position.
        verify: Rows are 8 consecutive tokens of one sequence instead of one token of each.
        ring_depth: Weight tiles in flight.

    Raises:
        ValueError: The model does not split so, or has other head sizes than the vector layout needs.
    """

    config: K3Config
    layers: int = 1
    cores: int = 1
    batch: int = 1
    verify: bool = False
    ring_depth: int = 4

    def __post_init__(self) -> None:
        """Refuse what the kernel cannot lay out."""
        check_split(self.config, self.cores, self.batch, self.verify)
        if (self.config.head_dim, self.config.decay_rank) != (LANES, LANES):
            raise ValueError(f"{self.config.name}: KDA heads and the decay's rank must be {LANES} wide")

    @property
    def rows(self) -> int:
        """Live rows of activations."""
        return VERIFY_ROWS if self.verify else self.batch

    @property
    def heads(self) -> int:
        """Heads of a rank."""
        return self.config.heads // self.cores

    @property
    def gated_width(self) -> int:
        """Width of a rank's mixer output, before the output projection."""
        return self.heads * LANES

    @property
    def conv_blocks(self) -> int:
        """A rank's convolution channels in blocks of 128: q heads, k heads, v heads."""
        return 3 * self.heads

    @cached_property
    def kda_in(self) -> Matrix:
        """q | k | v | output gate of the rank's heads, then the decay's first factor, then beta, padded."""
        return Matrix("kda_in", self.config.hidden, (4 * self.heads + 2) * LANES, MXU_COLUMNS)

    @cached_property
    def mixer_out(self) -> Matrix:
        """The rank's rows of the output projection, in the widest tiles a bank of `kda_in` holds."""
        return widest("mixer_out", self.gated_width, self.config.hidden, self.kda_in.rows)

    @property
    def matrices(self) -> tuple[Matrix, ...]:
        """Matrices of a layer in the order they are used."""
        return self.kda_in, self.mixer_out

    @property
    def bank_rows(self) -> int:
        """Rows of 128 elements in a ring bank."""
        return max(matrix.rows for matrix in self.matrices)

    @cached_property
    def constants(self) -> dict[str, tuple[int, int]]:
        """Where each small float32 vector of a layer lies in its constants row: name -> (first, width)."""
        taps = [(f"tap{t}", self.conv_blocks * LANES) for t in range(self.config.conv_taps)]
        vectors = [*taps, ("rate", self.gated_width), ("dt_bias", self.gated_width), ("out_norm", LANES)]
        starts = accumulate((width for _, width in vectors), initial=0)
        return {name: (first, width) for (name, width), first in zip(vectors, starts, strict=False)}

    @cached_property
    def constants_width(self) -> int:
        """Elements of a constants row."""
        return sum(width for _, width in self.constants.values())

    @property
    def correction_blocks(self) -> int:
        """What a verified row leaves per layer, in blocks of 128: keys, decays and errors of the heads."""
        return 3 * self.heads

    @property
    def conv_shape(self) -> tuple[int, ...]:
        """A layer's convolution inputs on a rank; see kda_state.py."""
        if self.verify:
            return (self.conv_blocks, HISTORY_ROWS, LANES)
        return (self.config.conv_taps - 1, self.batch, self.conv_blocks * LANES)

    @property
    def recurrent_shape(self) -> tuple[int, ...]:
        """A layer's states on a rank."""
        return (self.batch, self.heads, LANES, LANES)

    def bytes_per_rank(self) -> dict[str, int]:
        """HBM bytes a rank reads in a step, by operand; of the state also the bytes it writes."""
        matrices = {m.name: self.layers * m.bytes for m in self.matrices}
        state = self.layers * self.batch * self.heads * LANES * LANES * F32_BYTES
        return {
            **matrices,
            "decay_out": self.layers * LANES * self.gated_width * BF16_BYTES,
            "constants": self.layers * self.constants_width * F32_BYTES,
            "recurrent": state,
        }
