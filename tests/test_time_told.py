"""What libtpu wrote about the algorithm of a collective, as hostile text."""

import pytest

import hlofast

TEXT = """HloModule m, is_scheduled=true, num_partitions=16

add {{
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT s = f32[] add(a, b)
}}

ENTRY e {{
  p = f32[1048576]{{0}} parameter(0)
  ROOT r = f32[1048576]{{0}} all-reduce(p), replica_groups={{{{0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15}}}}, to_apply=add, backend_config={{"collective_algorithm_config":{{"emitter":"x","strategy":"StrategyND{{{told}}}","debug":"StrategyND{{{told}}}"}}}}
}}
"""


@pytest.mark.parametrize(
    "told",
    [
        "colors:18446744073709551615 cores:{18446744073709551615 18446744073709551615}",
        "colors:2 cores:{3 12297829382473034416}",
        "active_dims:111 dim_sizes:18446744073709551615,18446744073709551615",
        "cores:{2 2 2 2}",
        "cores:{4 4}",
    ],
)
def test_no_algorithm_makes_it_faster_than_its_links(told: str) -> None:
    time = hlofast.loads(TEXT.format(told=told)).time("v5e")
    device = hlofast.devices.get("v5e")
    (row,) = time.collectives
    lanes = device.value("link_count") * device.value("link_bandwidth")
    assert row["seconds"] >= row["wire_bytes"] / lanes
