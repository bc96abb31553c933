"""Names of slices."""

import pytest

from analyzer.errors import UsageError
from profiler.topology import parse_topology, shapes_with


@pytest.mark.parametrize(
    ("text", "chip", "name", "devices"),
    [
        (None, None, "tpu7x:2x2x1", 8),
        ("2x2x1", None, "tpu7x:2x2x1", 8),
        ("tpu7x:2x2x4", None, "tpu7x:2x2x4", 32),
        ("TPU7x:1x1x1", None, "tpu7x:1x1x1", 2),
        ("ironwood:2x2x1", "tpu7x", "tpu7x:2x2x1", 8),
        (None, "v6e", "v6e:2x2", 4),
        ("v5litepod:4x4", None, "v5e:4x4", 16),
        (None, "v5p", "v5p:2x2x1", 4),
    ],
)
def test_names(text: str | None, chip: str | None, name: str, devices: int) -> None:
    topology = parse_topology(text, chip)
    assert (topology.name, topology.devices) == (name, devices)


@pytest.mark.parametrize(
    ("text", "chip", "said"),
    [
        ("banana", None, "not a slice shape"),
        ("2x0x1", None, "not a slice shape"),
        ("2x2x2x2", None, "not a slice shape"),
        ("", "h100", "Known chips: tpu7x, v6e, v5p, v5e"),
        ("v4:2x2x1", None, "Known chips"),
        ("v6e:2x2", "tpu7x", "names another chip"),
    ],
)
def test_refused(text: str, chip: str | None, said: str) -> None:
    with pytest.raises(UsageError, match=said):
        parse_topology(text, chip)


def test_shapes_for_messages_have_that_many_devices() -> None:
    for chip in ("tpu7x", "v6e", "v5p", "v5e"):
        for devices in (1, 2, 4, 8, 16, 32, 64, 128):
            for shape in shapes_with(chip, devices):
                assert parse_topology(shape, chip).devices == devices
    assert shapes_with("tpu7x", 8) == ["2x2x1"]
    assert shapes_with("tpu7x", 3) == []
