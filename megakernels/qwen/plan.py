"""How the model is split over cores and cut into tiles: every size the kernel and the packer agree on.

Per core: whole heads of both mixers and an equal share of the FFN and of the vocabulary (tensor parallel).
With more cores than KV heads, neighbouring cores share a KV head and each keeps a copy of it.

Both kinds of layer have an input projection and an output projection; the narrower input projection is
padded with zero columns to the width of the wider, so that every layer has the same tiles. In the real model
on 8 cores both are 2048 wide and nothing is padded.
"""

import math
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

from megakernels.common.gemv import LANES, MXU_COLUMNS
from megakernels.qwen.config import QWEN3_8_27B, QwenConfig

BF16_BYTES, F32_BYTES = 2, 4
VMEM_BYTES = 64 << 20
ROWS = 8  # sublanes: activations are padded to this many rows
VERIFY_ROWS = 8  # one anchor and seven proposals
HISTORY_ROWS = 16  # convolution inputs kept by a verify step, 3 + 8, in whole tiles of 8
WINDOW = 32  # tokens around the write position that are read, changed and written back
WINDOW_ALIGN = 16  # bf16 rows that share a tile of memory


def round_up(value: int, multiple: int) -> int:
    """The smallest multiple not below value."""
    return -(-value // multiple) * multiple


def _places(vectors: list[tuple[str, int]]) -> dict[str, tuple[int, int]]:
    """Vectors one after another, each from a multiple of 128: name -> (first, width)."""
    starts = accumulate((round_up(width, LANES) for _, width in vectors), initial=0)
    return {name: (first, width) for (name, width), first in zip(vectors, starts, strict=False)}


@dataclass(frozen=True, slots=True)
class Matrix:
    """One core's share of a weight matrix `[k, n]`, cut into tiles of whole columns.

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


@dataclass(frozen=True)
class Plan:
    """Sizes of one build of the kernel.

    Attributes:
        config: The model.
        cores: TensorCores it is split over.
        batch: Sequences, each at its own position.
        verify: Rows are 8 consecutive tokens of one sequence instead of one token of each.
        capacity: Tokens the KV cache holds, a multiple of kv_tile.
        kv_tile: Tokens per copy of the KV cache.
        kv_slots: KV tiles in flight.
        fp8: Layer weights are float8 with a scale per 128 x 128 block; lm_head stays bfloat16.
        ring_depth: Weight tiles in flight.
        head_depth: With fp8, lm_head tiles in flight in their own ring.
        bank_rows: Rows of 128 elements in a ring bank; 0 takes the least that holds one column pair of
            every matrix.
        message_bytes: A share of a sum over cores leaves in messages of about this size.
    """

    config: QwenConfig = QWEN3_8_27B
    cores: int = 8
    batch: int = 1
    verify: bool = False
    capacity: int = 4096
    kv_tile: int = 512
    kv_slots: int = 4
    fp8: bool = False
    ring_depth: int = 16
    head_depth: int = 8
    bank_rows: int = 0
    message_bytes: int = 20480

    def __post_init__(self) -> None:
        c = self.config
        for label, count in (
            ("key heads", c.key_heads),
            ("query heads", c.attention_heads),
            ("vocabulary", c.vocab),
            ("FFN columns / 128", c.intermediate // LANES),
        ):
            if count % self.cores:
                raise ValueError(f"{c.name} does not split over {self.cores} cores: {count} {label}")
        if c.kv_heads % self.cores and self.cores % c.kv_heads:
            raise ValueError(f"{c.name} does not split over {self.cores} cores: {c.kv_heads} KV heads")
        if self.batch not in {1, 2, 4, 8} or (self.verify and self.batch != 1):
            raise ValueError(f"batch {self.batch}: choose 1, 2, 4 or 8, and 1 with verify")
        if c.key_dim != LANES or c.value_dim != LANES or c.head_dim % LANES:
            raise ValueError(f"{c.name}: GDN heads must be 128 wide, attention heads a multiple of it")
        if c.gate_channels != c.attention_heads * c.head_dim:
            raise ValueError(f"{c.name}: both mixers must feed output projections of one width")
        if self.fp8 and not 0 < self.head_depth <= self.ring_depth:
            raise ValueError(f"head_depth {self.head_depth} must be from 1 to ring_depth {self.ring_depth}")
        if self.capacity % self.kv_tile or self.kv_tile % WINDOW_ALIGN:
            raise ValueError(
                f"capacity {self.capacity} must be a multiple of kv_tile {self.kv_tile}, that of 16"
            )

    @property
    def rows(self) -> int:
        """Live rows of activations."""
        return VERIFY_ROWS if self.verify else self.batch

    @property
    def key_heads(self) -> int:
        """GDN key heads of a core."""
        return self.config.key_heads // self.cores

    @property
    def value_heads(self) -> int:
        """GDN value heads of a core, consecutive; those of a key head stand together."""
        return self.config.value_heads // self.cores

    @property
    def values_per_key(self) -> int:
        """Value heads that share a key head."""
        return self.config.value_heads // self.config.key_heads

    @property
    def conv_channels(self) -> int:
        """Convolution channels of a core: q | k | v."""
        return self.config.conv_channels // self.cores

    @property
    def gate_channels(self) -> int:
        """Width a core's output projections read."""
        return self.config.gate_channels // self.cores

    @property
    def query_heads(self) -> int:
        """Attention query heads of a core."""
        return self.config.attention_heads // self.cores

    @property
    def kv_heads(self) -> int:
        """KV heads a core keeps."""
        return max(1, self.config.kv_heads // self.cores)

    @property
    def kv_blocks(self) -> int:
        """128-lane blocks of a cached token: K blocks of each KV head, then its V blocks."""
        return self.kv_heads * 2 * self.config.head_dim // LANES

    @property
    def ab_rows(self) -> int:
        """Rows of the stacked in_proj_a and in_proj_b: a from row 0, b from row ab_rows / 2."""
        return 2 * round_up(self.value_heads, ROWS)

    @property
    def vocab(self) -> int:
        """Logits of a core, without padding."""
        return self.config.vocab // self.cores

    @property
    def intermediate(self) -> int:
        """FFN columns of a core."""
        return self.config.intermediate // self.cores

    @cached_property
    def least_bank_rows(self) -> int:
        """Rows of the tallest column pair of any matrix."""
        return 2 * max(self.config.hidden, self.gate_channels, self.intermediate)

    @property
    def bank(self) -> int:
        """Rows of 128 elements in a ring bank."""
        return self.bank_rows or self.least_bank_rows

    def matrix(self, name: str, k: int, n: int, most: int = 1 << 20) -> Matrix:
        """Cut `[k, n]` into the widest tiles that fit a bank and divide n, of at most `most` column pairs."""
        pairs = round_up(n, MXU_COLUMNS) // MXU_COLUMNS
        fit = self.bank // (2 * k)
        if not fit:
            raise ValueError(f"bank_rows {self.bank} cannot hold a column pair of {name}: {2 * k} rows")
        width = max(w for w in range(1, min(fit, pairs, most) + 1) if pairs % w == 0)
        return Matrix(name, k, pairs * MXU_COLUMNS, width * MXU_COLUMNS)

    @cached_property
    def w_in(self) -> Matrix:
        """Input projection: GDN q | k | v | z, attention q | gate | k | v.

        In column pairs: rows as long as these, multiplied by several pairs, would be kept in registers and
        spilled.
        """
        attention = 2 * self.query_heads * self.config.head_dim + 2 * self.kv_heads * self.config.head_dim
        return self.matrix(
            "w_in", self.config.hidden, max(self.conv_channels + self.gate_channels, attention), most=1
        )

    @cached_property
    def w_out(self) -> Matrix:
        """Output projection of either mixer."""
        return self.matrix("w_out", self.gate_channels, self.config.hidden)

    @cached_property
    def w_gate_up(self) -> Matrix:
        """FFN gate and up: column pairs of 128 gate columns and the 128 up columns beside them."""
        return Matrix("w_gate_up", self.config.hidden, 2 * self.intermediate, MXU_COLUMNS)

    @cached_property
    def w_down(self) -> Matrix:
        """FFN down."""
        return self.matrix("w_down", self.intermediate, self.config.hidden)

    @cached_property
    def lm_head(self) -> Matrix:
        """lm_head."""
        return Matrix("lm_head", self.config.hidden, round_up(self.vocab, MXU_COLUMNS), MXU_COLUMNS)

    @cached_property
    def layer_matrices(self) -> tuple[Matrix, ...]:
        """The matrices of a layer in the order they are used."""
        return self.w_in, self.w_out, self.w_gate_up, self.w_down

    @cached_property
    def tiles_per_layer(self) -> int:
        """Tiles of one layer."""
        return sum(matrix.tiles for matrix in self.layer_matrices)

    @property
    def weight_bytes_per_element(self) -> int:
        """Of the layers' matrices."""
        return 1 if self.fp8 else BF16_BYTES

    @property
    def packed_rows(self) -> int:
        """Rows activations are multiplied in: with fp8, even and odd blocks of 128 lie in halves."""
        return 2 * ROWS if self.fp8 else ROWS

    def scale_rows(self, matrix: Matrix) -> tuple[int, int, int]:
        """Where a matrix's scales lie: first row, rows of a piece, tiles of a piece.

        A piece `[rows, 128]` holds the scales of consecutive tiles, row blocks on rows and column blocks on
        lanes; the pieces of all matrices of a layer are stacked.
        """
        first = 0
        for other in self.layer_matrices:
            rows, tiles = round_up(other.k // LANES, ROWS), LANES // (other.columns // LANES)
            if other.name == matrix.name:
                return first, rows, tiles
            first += rows * -(-other.tiles // tiles)
        raise ValueError(f"{matrix.name} is not a layer's matrix")

    @property
    def all_scale_rows(self) -> int:
        """Rows of the stacked scales of a layer."""
        last = self.layer_matrices[-1]
        first, rows, tiles = self.scale_rows(last)
        return first + rows * -(-last.tiles // tiles)

    def first_tile(self, matrix: Matrix) -> int:
        """Number of a matrix's first tile in its layer; 0 for lm_head, which is no layer's."""
        names = [m.name for m in self.layer_matrices]
        before = names.index(matrix.name) if matrix.name in names else 0
        return sum(m.tiles for m in self.layer_matrices[:before])

    def tiles_per_message(self, matrix: Matrix) -> int:
        """Finished tiles of a share that leave in one message to each other core.

        Several messages overlap with the tiles still to come, but each costs time of its own; a share small
        enough for its latency to dominate leaves in one.
        """
        messages = max(1, self.rows * matrix.n * BF16_BYTES // self.message_bytes)
        return max(
            n
            for n in range(1, matrix.tiles + 1)
            if matrix.tiles % n == 0 and n * messages <= max(matrix.tiles, messages)
        )

    @property
    def as_words(self) -> bool:
        """Whether shares of a sum travel as 32-bit words, see words.py: rows that fill no memory tile do."""
        return self.rows < ROWS

    @cached_property
    def constants(self) -> dict[str, tuple[int, int]]:
        """Where each small float32 vector of a layer lies in its constants row: name -> (first, width)."""
        c = self.config
        shared = [("input_norm", c.hidden), ("post_norm", c.hidden)]
        gdn = [(f"tap{t}", self.conv_channels) for t in range(c.conv_taps)]
        gdn += [("out_norm", c.value_dim), ("a", self.ab_rows // 2), ("dt_bias", self.ab_rows // 2)]
        attention = [("q_norm", c.head_dim), ("k_norm", c.head_dim)]
        return _places(shared + gdn) | _places(shared + attention)

    @cached_property
    def constants_width(self) -> int:
        """Elements of a constants row."""
        return max(first + round_up(width, LANES) for first, width in self.constants.values())

    @property
    def embedding_rows(self) -> int:
        """A token's embedding is stored as this many rows, so that one token is whole memory tiles."""
        return math.gcd(ROWS, self.config.hidden // LANES)

    @property
    def correction_blocks(self) -> int:
        """What a verified row leaves per GDN layer, in blocks of 128: keys, errors, decays."""
        return self.key_heads + self.value_heads + 1

    @property
    def conv_blocks(self) -> int:
        """Convolution channels in blocks of 128."""
        return self.conv_channels // LANES

    @property
    def max_kv_tiles(self) -> int:
        """KV tiles of all sequences at full capacity."""
        return self.batch * (self.capacity // self.kv_tile)

    def weight_bytes(self) -> dict[str, int]:
        """Bytes of each weight operand a core reads in a step."""
        layers = self.config.layers
        width = self.weight_bytes_per_element
        sizes = {m.name: layers * m.tiles * m.rows * LANES * width for m in self.layer_matrices}
        sizes["lm_head"] = self.lm_head.tiles * self.lm_head.rows * LANES * BF16_BYTES
        sizes["w_ab"] = self.config.gdn_layers * self.ab_rows * self.config.hidden * BF16_BYTES
        sizes["constants"] = (layers + 1) * self.constants_width * F32_BYTES
        if self.fp8:
            sizes["scales"] = layers * self.all_scale_rows * LANES * F32_BYTES
        return sizes

    def ideal_weight_bytes(self) -> float:
        """Bytes of a core's equal share of every weight, none padded, none kept twice."""
        from megakernels.qwen.parameters import is_fp8, tensor_shapes

        size = sum(
            math.prod(shape) * (1 if self.fp8 and is_fp8(name) else BF16_BYTES)
            for name, shape in tensor_shapes(self.config).items()
            if name != "model.embed_tokens.weight"
        )
        return size / self.cores
