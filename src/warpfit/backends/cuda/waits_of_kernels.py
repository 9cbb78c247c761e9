"""No machine code is made of a kernel that would hang."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from warpfit.backends.cuda.resident_config import CONFIGS
from warpfit.backends.cuda.waits import Protocol, hang_of
from warpfit.backends.cuda.waits_by_layers import (
    protocol_by_layers,
    protocol_of_images,
    protocol_on_card,
)
from warpfit.backends.cuda.waits_in_groups import protocol_in_groups
from warpfit.backends.cuda.waits_of_many import (
    Trained,
    protocol_of_clusters,
    protocol_of_groups,
    protocol_of_tables,
)
from warpfit.backends.cuda.waits_specialized import specialized_protocol
from warpfit.errors import CompileError

# Two replicas stand for all, and two epochs, or four steps, for a run: rings come round thrice. Of
# many networks a cluster, or a group, trains two. A table's grid is that of an H100.
RUNS = (Trained(2, 2, 1), Trained(2, 1))
PROTOCOLS: dict[str, Callable[[Any], Protocol]] = {
    "one_launch": lambda config: specialized_protocol(config, 3, 2, min(2, config.replicas)),
    "one_launch_card": lambda config: protocol_on_card(
        config, [True, *[False] * 3 * config.validates] * 4
    ),
    "one_launch_images": lambda config: protocol_of_images(config, 4),
    "one_launch_layers": lambda config: protocol_by_layers(config, 4, 2, min(2, config.replicas)),
    "one_launch_small_sm90": lambda config: protocol_in_groups(config, 4),
    "many_networks_sm90": lambda config: protocol_of_clusters(config, [RUNS]),
    "many_small_networks_sm90": lambda config: protocol_of_groups([[RUNS] * config.groups]),
    "table_networks": lambda config: protocol_of_tables(config, 132, (3, 2)),
}


def check_waits(kernel: str, settings: Mapping[str, str]) -> None:
    """Raise CompileError if a kernel with these settings would hang, as far as it is known who
    waits for whom in it.
    """
    if kernel not in PROTOCOLS:
        return
    reason = hang_of(PROTOCOLS[kernel](CONFIGS[kernel].of(settings)))
    if reason is not None:
        raise CompileError(
            f"expected settings with which every wait of {kernel} ends, got some with which it "
            f"would hang: {reason}"
        )
