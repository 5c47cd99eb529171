"""Networks in the time model: places on the torus, directions, queues, slices, unknown figures."""

import math
import re

import pytest

import hlofast
from hlofast import devices

MIB = 2**20
LATENCY = 1e-6
LINK = {"tpu-v5e": 45e9, "tpu-v5p": 90e9}


def gather(chips: int, groups: str, config: str = "", kind: str = "all-gather") -> str:
    """A program that gathers 64 MiB within `groups`."""
    size = chips if groups == "{}" else int(re.search(r",(\d+)\]", groups).group(1))
    shard, whole = 16 * MIB // size, 16 * MIB
    of, to = (shard, whole) if kind == "all-gather" else (whole, whole)
    rest = "dimensions={0}" if kind == "all-gather" else "to_apply=%add"
    return f"""HloModule m, is_scheduled=true, num_partitions={chips}

%add (a: f32[], b: f32[]) -> f32[] {{
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %s = f32[] add(%a, %b)
}}

ENTRY %e (p: f32[{of}]) -> f32[{to}] {{
  %p = f32[{of}]{{0}} parameter(0)
  ROOT %g = f32[{to}]{{0}} {kind}(%p), channel_id=1, replica_groups={groups}, use_global_device_ids=true, {rest}{config}
}}
"""


def seconds(text: str, device: str, mesh: object = None) -> float:
    (row,) = hlofast.loads(text).time(device, mesh=mesh).collectives
    return float(row["seconds"])


class TestTorus:
    def test_256_chips_lie_on_16_by_16(self) -> None:
        text = gather(256, "[1,256]<=[256]")
        expected = 255 / 256 * 64 * MIB / (4 * 45e9) + 16 * LATENCY
        assert seconds(text, "tpu-v5e", {"fsdp": 256}) == pytest.approx(expected)
        # One mesh axis or two: the links are the same.
        both = seconds(text, "tpu-v5e", {"x": 16, "y": 16})
        assert both == pytest.approx(expected)
        # An axis that fills one side uses its two directions.
        side = seconds(gather(256, "[16,16]<=[256]"), "tpu-v5e", {"x": 16, "y": 16})
        assert side == pytest.approx(15 / 16 * 64 * MIB / (2 * 45e9) + 8 * LATENCY)

    def test_every_side_that_is_a_multiple_wraps(self) -> None:
        v5p = devices.get("v5p")
        size = 448 * MIB
        rates = []
        for chips in (64, 128, 256, 512):
            time = v5p.collective_time("all-reduce", size, chips, axes=3)
            rates.append(time.bytes_per_second)
        assert rates == pytest.approx([6 * 90e9] * 4)
        # A side of 2 has no way round: 2x2x4 has two open sides and one closed.
        small = v5p.collective_time("all-reduce", size, 16, axes=3)
        assert small.bytes_per_second == pytest.approx(4 * 90e9)

    @pytest.mark.parametrize(("chips", "lanes"), [(128, 6), (256, 6), (512, 6)])
    def test_a_slice_of_the_program_has_the_shape_of_its_chips(
        self, chips: int, lanes: int
    ) -> None:
        text = gather(chips, f"[1,{chips}]<=[{chips}]")
        (row,) = hlofast.loads(text).time("tpu-v5p", mesh={"fsdp": chips}).collectives
        assert row["bytes_per_second"] == pytest.approx(lanes * 90e9)

    @pytest.mark.parametrize(
        ("groups", "mesh", "lanes"),
        [
            # 4x4x4 chips with six links each, which the two devices of a chip share.
            ("[1,128]<=[128]", {"x": 128}, 6),
            ("[1,128]<=[128]", {"x": 64, "core": 2}, 6),
            ("[2,64]<=[64,2]T(1,0)", {"x": 64, "core": 2}, 6),
            # The devices of one chip alone: the rate of their link is assumed to be a link's.
            ("[64,2]<=[128]", {"x": 64, "core": 2}, 1),
        ],
    )
    def test_the_devices_of_a_chip_add_no_link_between_chips(
        self, groups: str, mesh: dict[str, int], lanes: int
    ) -> None:
        time = hlofast.loads(gather(128, groups)).time("tpu-v7", mesh=mesh)
        assert time.collectives.row(0)["bytes_per_second"] == pytest.approx(lanes * 90e9)

    def test_a_tensor_axis_lies_on_the_side_of_its_length(self) -> None:
        # 128 chips are 4x4x8: the tensor axis of 8 fills the long side, fsdp the square.
        mesh = {"fsdp": 16, "tensor": 8}
        tensor = hlofast.loads(gather(128, "[16,8]<=[128]")).time("tpu-v5p", mesh=mesh)
        assert tensor.collectives.row(0)["bytes_per_second"] == pytest.approx(2 * 90e9)
        fsdp = hlofast.loads(gather(128, "[8,16]<=[16,8]T(1,0)")).time("tpu-v5p", mesh=mesh)
        assert fsdp.collectives.row(0)["bytes_per_second"] == pytest.approx(4 * 90e9)

    def test_the_compiler_says_how_a_group_goes_round(self) -> None:
        ring = (
            ', backend_config={"collective_algorithm_config":{"emitter":"RotatedPincerEmitter",'
            '"strategy":"StrategyRing","debug":"\\nStrategyRing{colors:1 phases:1 cores:{256} '
            'nophase0:0}"}}'
        )
        text = gather(256, "[1,256]<=[256]", ring, kind="all-reduce")
        expected = 2 * 255 / 256 * 64 * MIB / (2 * 45e9) + 2 * 128 * LATENCY
        assert seconds(text, "tpu-v5e", {"fsdp": 256}) == pytest.approx(expected)
        sides = ring.replace(
            "StrategyRing{colors:1 phases:1 cores:{256}",
            ("StrategyND{colors:2 phases:2 cores:{16 16},{16 16}"),
        ).replace('"StrategyRing"', '"StrategyND"')
        text = gather(256, "[1,256]<=[256]", sides, kind="all-reduce")
        expected = 2 * 255 / 256 * 64 * MIB / (4 * 45e9) + 2 * 16 * LATENCY
        assert seconds(text, "tpu-v5e", {"fsdp": 256}) == pytest.approx(expected)

    def test_a_group_that_fills_no_side_is_a_ring_of_neighbours(self) -> None:
        # 32 of 8x8x8 chips: a whole side and a part of another, which close to a ring.
        text = gather(512, "[16,32]<=[512]")
        (row,) = hlofast.loads(text).time("v4", mesh={"a": 16, "b": 32}).collectives
        assert row["bytes_per_second"] == pytest.approx(2 * 45e9)


PERMUTES = """HloModule m, is_scheduled=true, num_partitions=8

ENTRY %e (p: f32[4194304]) -> (f32[4194304], f32[4194304]) {
  %p = f32[4194304]{0} parameter(0)
  %s = (f32[4194304]{0}, f32[4194304]{0}) collective-permute-start(%p), channel_id=1, source_target_pairs=UP
  %t = (f32[4194304]{0}, f32[4194304]{0}) collective-permute-start(%p), channel_id=2, source_target_pairs=OTHER
  %a = f32[4194304]{0} collective-permute-done(%s)
  %b = f32[4194304]{0} collective-permute-done(%t)
  ROOT %r = (f32[4194304]{0}, f32[4194304]{0}) tuple(%a, %b)
}
"""


def pairs(by: int, count: int = 8) -> str:
    return "{" + ",".join(f"{{{i},{(i + by) % count}}}" for i in range(count)) + "}"


class TestDirections:
    ONE = 16 * MIB / 90e9 + LATENCY

    @pytest.mark.parametrize(("other", "times"), [(-1, 1), (1, 2)])
    def test_permutes_in_opposite_directions_share_no_links(self, other: int, times: int) -> None:
        text = PERMUTES.replace("UP", pairs(1)).replace("OTHER", pairs(other))
        time = hlofast.loads(text).time("tpu-v5p", mesh={"x": 8})
        assert time.step_seconds == pytest.approx(times * self.ONE)

    def test_a_permute_by_two_crosses_two_links(self) -> None:
        text = PERMUTES.replace("UP", pairs(1)).replace("OTHER", pairs(-2))
        # 8 chips of v6e are 2x4: along no side do 8 chips lie in a row.
        module = hlofast.loads(text)
        near, far = module.time("tpu-v6e", mesh={"x": 8}).collectives.values("seconds")
        assert near == far == pytest.approx(self.ONE)
        # 128 chips of v5p are 4x4x8.
        wide = text.replace("num_partitions=8", "num_partitions=128")
        for by in (1, -2):
            moves = [(16 * g + i, 16 * g + (i + by) % 8) for g in range(8) for i in range(8)]
            moves += [(source + 8, target + 8) for source, target in moves]
            spelled = "{" + ",".join(f"{{{s},{t}}}" for s, t in moves) + "}"
            wide = wide.replace(pairs(by), spelled)
        module = hlofast.loads(wide)
        mesh = {"fsdp": 16, "tensor": 8}
        near, far = module.time("tpu-v5p", mesh=mesh).collectives.values("seconds")
        assert near == pytest.approx(self.ONE)
        assert far == pytest.approx(2 * self.ONE)


QUEUE = """HloModule m, is_scheduled=true, num_partitions=4

ENTRY %e (p: f32[1048576], q: f32[65536]) -> (f32[1048576], f32[65536]) {
  %p = f32[1048576]{0} parameter(0)
  %q = f32[65536]{0} parameter(1)
  %s = (f32[1048576]{0}, f32[1048576]{0}) collective-permute-start(%p), channel_id=1, source_target_pairs={{0,1},{1,2},{2,3},{3,0}}
  %x = f32[65536]{0} all-to-all(%q), channel_id=2, replica_groups={{0,1,2,3}}, dimensions={0}
  %d = f32[1048576]{0} collective-permute-done(%s)
  ROOT %r = (f32[1048576]{0}, f32[65536]{0}) tuple(%d, %x)
}
"""


class TestQueues:
    def test_a_wait_for_links_belongs_to_who_occupies_them(self) -> None:
        time = hlofast.loads(QUEUE).time("tpu-v5p", mesh={"x": 4})
        permute, exchange = time.collectives
        assert exchange["exposed_seconds"] == pytest.approx(exchange["seconds"])
        assert permute["exposed_seconds"] == pytest.approx(permute["seconds"])
        assert sum(time.exposed.values()) == pytest.approx(permute["seconds"] + exchange["seconds"])
        assert time.collectives.values("queued_seconds") == [0, 0]


CHAIN = """HloModule m, is_scheduled=true, num_partitions=4

%start (p: f32[1048576]) -> (f32[1048576], f32[4194304], u32[]) {
  %p = f32[1048576]{0} parameter(0)
  %g.1 = f32[4194304]{0} all-gather(%p), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="7"}, backend_config={"async_collective_fusion_config":{"flag_start":"-1"}}
  ROOT %c.1 = (f32[1048576]{0}, f32[4194304]{0}, u32[]{:S(2)}) custom-call(%g.1), custom_call_target="AsyncCollectiveStart"
}

%middle (p: f32[1048576], x: f32[1024]) -> (f32[4194304], f32[1024]) {
  %p = f32[1048576]{0} parameter(0)
  %x = f32[1024]{0} parameter(1)
  %n = f32[1024]{0} negate(%x)
  %g.2 = f32[4194304]{0} all-gather(%p), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="7"}, backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
  ROOT %t = (f32[4194304]{0}, f32[1024]{0}) tuple(%g.2, %n)
}

%done (p: f32[1048576]) -> f32[4194304] {
  %p = f32[1048576]{0} parameter(0)
  %g.3 = f32[4194304]{0} all-gather(%p), channel_id=4, replica_groups={{0,1,2,3}}, dimensions={0}, use_global_device_ids=true, frontend_attributes={chain_id="7"}, backend_config={"async_collective_fusion_config":{"flag_start":"2"}}
  ROOT %c.3 = f32[4194304]{0} custom-call(%g.3), custom_call_target="AsyncCollectiveDone"
}

%body (s: (f32[1048576], f32[1024])) -> (f32[1048576], f32[1024]) {
  %s = (f32[1048576]{0}, f32[1024]{0}) parameter(0)
  %p = f32[1048576]{0} get-tuple-element(%s), index=0
  %x = f32[1024]{0} get-tuple-element(%s), index=1
  %f = (f32[4194304]{0}, f32[1024]{0}) fusion(%p, %x), kind=kOutput, calls=%middle
  %y = f32[1024]{0} get-tuple-element(%f), index=1
  ROOT %r = (f32[1048576]{0}, f32[1024]{0}) tuple(%p, %y)
}

%condition (s: (f32[1048576], f32[1024])) -> pred[] {
  %s = (f32[1048576]{0}, f32[1024]{0}) parameter(0)
  ROOT %k = pred[] constant(true)
}

ENTRY %e (p: f32[1048576], x: f32[1024]) -> (f32[4194304], f32[1024]) {
  %p = f32[1048576]{0} parameter(0)
  %x = f32[1024]{0} parameter(1)
  %a = (f32[1048576]{0}, f32[4194304]{0}, u32[]{:S(2)}) fusion(%p), kind=kCustom, calls=%start
  %i = (f32[1048576]{0}, f32[1024]{0}) tuple(%p, %x)
  %w = (f32[1048576]{0}, f32[1024]{0}) while(%i), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"10"}}
  %y = f32[1024]{0} get-tuple-element(%w), index=1
  %d = f32[4194304]{0} fusion(%p), kind=kCustom, calls=%done
  ROOT %r = (f32[4194304]{0}, f32[1024]{0}) tuple(%d, %y)
}
"""


class TestChains:
    def test_a_chain_that_runs_through_a_loop_is_one_collective(self) -> None:
        module = hlofast.loads(CHAIN)
        (row,) = module.collectives()
        assert (row["name"], row["multiplicity"]) == ("g.1", 1)
        members = module.collectives().members.values("member")
        assert sorted(module[row].name for row in members) == ["g.1", "g.2", "g.3"]
        time = module.time("tpu-v5e", mesh={"x": 4})
        (row,) = time.collectives
        # Four chips are a square, in which a gather goes round both ways.
        assert row["seconds"] == pytest.approx(0.75 * 16 * MIB / 90e9 + 2 * LATENCY)
        # The loop runs beside the gather and hides it.
        assert row["exposed_seconds"] < row["seconds"]
        # Ten gathers would take ten times as long.
        assert time.step_seconds < 5 * row["seconds"]


class TestUnknownFigures:
    def test_a_missing_latency_is_unknown_and_not_free(self) -> None:
        chip = devices.get("v5e").replace(link_latency=None)
        time = hlofast.loads(gather(4, "[1,4]<=[4]")).time(chip, mesh={"x": 4})
        (row,) = time.collectives
        assert (row["seconds"], row["unknown"]) == (None, "link_latency")
        assert row["wire_bytes"] == pytest.approx(0.75 * 64 * MIB)
        assert time.unknown == ("link_latency",)
        assert time.is_lower_bound
        with pytest.raises(devices.UnknownFigureError, match="link_latency"):
            chip.collective_time("all-gather", MIB, 4)

    def test_so_is_that_of_the_network_between_slices(self) -> None:
        chip = devices.get("v5e").replace(network_latency=None)
        with pytest.raises(devices.UnknownFigureError, match="network_latency"):
            chip.collective_time("all-reduce", MIB, 8, near=4)
        assert devices.get("v5e").collective_time("all-reduce", MIB, 8, near=4).seconds > 1e-4


SENDS = """HloModule m, is_scheduled=true, num_partitions=4, input_output_alias={ {0}: (0, {}, may-alias) }

%body (s: (f32[64], f32[64])) -> (f32[64], f32[64]) {
  %s = (f32[64]{0}, f32[64]{0}) parameter(0)
  %w = f32[64]{0} get-tuple-element(%s), index=0
  %g = f32[64]{0} get-tuple-element(%s), index=1
  %h = f32[64]{0} sine(%g)
  %k = token[] after-all()
  %send = (f32[64]{0}, u32[], token[]) send(%h, %k), channel_id=1, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-reduce.1_1",_xla_megascale_reduce_operation="SUM",_xla_megascale_transfer_type="ALL_REDUCE"}
  %sent = token[] send-done(%send), channel_id=1, is_host_transfer=true
  ROOT %r = (f32[64]{0}, f32[64]{0}) tuple(%w, %h)
}

%condition (s: (f32[64], f32[64])) -> pred[] {
  %s = (f32[64]{0}, f32[64]{0}) parameter(0)
  ROOT %t = pred[] constant(true)
}

ENTRY %e (w: f32[64], g: f32[64]) -> (f32[64]) {
  %w = f32[64]{0} parameter(0)
  %g = f32[64]{0} parameter(1)
  %i = (f32[64]{0}, f32[64]{0}) tuple(%w, %g)
  %l = (f32[64]{0}, f32[64]{0}) while(%i), condition=%condition, body=%body, backend_config={"known_trip_count":{"n":"2"}}
  %k = token[] after-all()
  %recv.1 = (f32[64]{0}, u32[], token[]) recv(%k), channel_id=2, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-reduce.1_1",_xla_megascale_transfer_type="ALL_REDUCE"}
  %done.1 = (f32[64]{0}, token[]) recv-done(%recv.1), channel_id=2, is_host_transfer=true
  %k.2 = token[] get-tuple-element(%done.1), index=1
  %recv.2 = (f32[64]{0}, u32[], token[]) recv(%k.2), channel_id=3, is_host_transfer=true, frontend_attributes={_xla_host_transfer_handler_name="xla_megascale_runtime",_xla_host_transfer_rendezvous="all-reduce.1_1",_xla_megascale_transfer_type="ALL_REDUCE"}
  %done.2 = (f32[64]{0}, token[]) recv-done(%recv.2), channel_id=3, is_host_transfer=true
  %a = f32[64]{0} get-tuple-element(%done.1), index=0
  %b = f32[64]{0} get-tuple-element(%done.2), index=0
  %c = f32[64]{0} add(%a, %b)
  %n = f32[64]{0} subtract(%w, %c)
  ROOT %r = (f32[64]{0}) tuple(%n)
}
"""


class TestSlices:
    def test_receives_behind_a_loop_belong_to_the_sends_inside(self) -> None:
        module = hlofast.loads(SENDS)
        (row,) = module.collectives(mesh=hlofast.Mesh({"data": 2, "fsdp": 4}, slices=2))
        assert (row["name"], row["kind"], row["multiplicity"]) == ("send", "all-reduce", 2)
        assert (row["tensor_kind"], row["payload"], row["network"]) == (
            "gradient",
            256,
            "between slices",
        )

    def test_the_loop_does_not_wait_but_the_receive_does(self) -> None:
        module = hlofast.loads(SENDS)
        mesh = hlofast.Mesh({"data": 2, "fsdp": 4}, slices=2)
        chip = devices.get("v5e").replace(network_latency=0.5, slice_wait=1e-9)
        time = module.time(chip, mesh=mesh)
        (row,) = time.collectives
        # Both runs take the links one after the other while the loop goes on.
        assert row["exposed_seconds"] == pytest.approx(2 * row["seconds"], rel=1e-3)
        assert row["exposed_seconds"] <= row["seconds"] + row["queued_seconds"] + 1e-9
        assert time.table().row(module["sent"].row)["exposed_seconds"] == 0
        assert time.exposed["data"] == pytest.approx(row["exposed_seconds"])

    def test_more_slices_cost_what_published_steps_lost(self) -> None:
        text = gather(4, "[1,4]<=[4]")
        module = hlofast.loads(text)
        one = module.time("tpu-v5e", mesh=hlofast.Mesh({"x": 4}))
        eight = module.time("tpu-v5e", mesh=hlofast.Mesh({"data": 8, "x": 4}, slices=8))
        share = devices.get("v5e").require("slice_wait")
        assert eight.step_seconds == pytest.approx(math.exp(3 * share) * one.step_seconds)
        added = eight.step_seconds - one.step_seconds
        assert eight.exposed["other slices"] == pytest.approx(added)
        assert "other slices" not in one.exposed

    def test_calls_that_name_the_slice_cost_nothing(self) -> None:
        text = (
            "HloModule m\nENTRY %e () -> u32[] {\n"
            '  ROOT %s = u32[] custom-call(), custom_call_target="SliceId"\n}\n'
        )
        cost = hlofast.loads(text).cost()
        assert (cost.flops, cost.bytes_read, cost.bytes_written) == (0, 0, 0)


MODULES = {"queue": QUEUE, "chain": CHAIN, "gather": gather(4, "[1,4]<=[4]")}


@pytest.mark.parametrize("name", MODULES)
@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "v7"])
def test_a_collective_is_exposed_for_its_own_time_at_most(name: str, chip: str) -> None:
    time = hlofast.loads(MODULES[name]).time(chip, mesh={"x": 4})
    for row in time.collectives:
        assert row["exposed_seconds"] <= row["seconds"] + row["queued_seconds"] + 1e-12
    own = time.compute_seconds + time.memory_seconds + time.other_seconds
    assert own + sum(time.exposed.values()) == pytest.approx(time.step_seconds)


@pytest.mark.parametrize("chip", ["v4", "v5e", "v5p", "v6e", "v7"])
@pytest.mark.parametrize("kind", ["all-reduce", "all-gather", "reduce-scatter", "all-to-all"])
def test_faster_links_and_shorter_hops_never_take_longer(kind: str, chip: str) -> None:
    device = devices.get(chip)
    sides = int(str(device.value("topology"))[-2])  # "torus-2d", "torus-3d"
    for count in (2, 4, 16, 64, 128, 256, 512):
        for axes in range(1, sides + 1):
            now = device.collective_time(kind, MIB, count, axes=axes).seconds
            for figure, factor in (("link_bandwidth", 2), ("link_latency", 0.5)):
                better = device.replace(**{figure: device.require(figure) * factor})
                assert better.collective_time(kind, MIB, count, axes=axes).seconds <= now
