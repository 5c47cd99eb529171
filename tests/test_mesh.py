"""Meshes: construction, derivation, axes of collectives, specs."""

import copy
import pickle

import pytest

import hlofast

REDUCE = """\
HloModule step, num_partitions=8

add {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  p = f32[16,8]{1,0} parameter(0), sharding={devices=[2,4]<=[8]}
  lists = f32[16,8]{1,0} all-reduce(p), channel_id=1, replica_groups={{0,4},{1,5},{2,6},{3,7}}, \
use_global_device_ids=true, to_apply=add
  iota = f32[16,8]{1,0} all-reduce(lists), channel_id=2, replica_groups=[2,4]<=[8], \
use_global_device_ids=true, to_apply=add
  named = f32[16,8]{1,0} all-reduce(iota), channel_id=3, \
replica_groups=mesh['axis_0'=2,'axis_1'=4] {'axis_0','axis_1'}, use_global_device_ids=true, \
to_apply=add
  part = f32[16,8]{1,0} all-reduce(named), channel_id=4, replica_groups={{0,1},{2,3},{4,5},{6,7}}, \
use_global_device_ids=true, to_apply=add
  odd = f32[16,8]{1,0} all-reduce(part), channel_id=5, replica_groups={{0,3},{1,2},{4,7},{5,6}}, \
use_global_device_ids=true, to_apply=add
  alone = f32[16,8]{1,0} all-reduce(odd), replica_groups={}, to_apply=add
  all = f32[16,8]{1,0} all-reduce(alone), channel_id=7, replica_groups={{0}}, \
use_global_device_ids=true, to_apply=add
  ring = f32[16,8]{1,0} collective-permute(all), channel_id=8, \
source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}
  ROOT open = f32[16,8]{1,0} collective-permute(ring), channel_id=9, \
source_target_pairs={{4,0},{5,1}}
}
"""


@pytest.fixture(name="module")
def fixture_module() -> hlofast.Module:
    return hlofast.loads(REDUCE)


@pytest.fixture(name="mesh")
def fixture_mesh() -> hlofast.Mesh:
    return hlofast.Mesh({"data": 2, "model": 4})


def test_what_a_mesh_says(mesh: hlofast.Mesh) -> None:
    assert mesh.axis_names == ("data", "model")
    assert mesh.shape == {"data": 2, "model": 4}
    assert (mesh.device_count, mesh.hosts, mesh.slices) == (8, None, None)
    assert mesh.devices() == tuple(range(8))
    assert mesh.coordinates(6) == {"data": 1, "model": 2}
    assert str(mesh) == "data=2,model=4"
    assert repr(mesh) == "Mesh({'data': 2, 'model': 4})"
    assert (mesh.source, mesh.invented_names, mesh.evidence, mesh.ignored) == (None, False, 0, 0)
    assert hlofast.Mesh([("data", 2), ("model", 4)]) == mesh
    assert hlofast.Mesh.parse(str(mesh)) == mesh
    assert hlofast.Mesh({"model": 4, "data": 2}) != mesh
    assert len({mesh, hlofast.Mesh.parse("data=2, model=4")}) == 1


def test_order_hosts_and_slices() -> None:
    mesh = hlofast.Mesh(
        {"data": 2, "model": 4}, device_order=[0, 4, 1, 5, 2, 6, 3, 7], hosts=4, slices=2
    )
    assert mesh.devices() == (0, 4, 1, 5, 2, 6, 3, 7)
    assert mesh.coordinates(4) == {"data": 0, "model": 1}
    assert repr(mesh) == (
        "Mesh({'data': 2, 'model': 4}, device_order=[2,4]T(1,0), hosts=4, slices=2)"
    )
    ring = hlofast.Mesh({"x": 8}, device_order=iter([0, 1, 3, 2, 6, 7, 5, 4]))
    assert repr(ring) == "Mesh({'x': 8}, device_order=(0, 1, 3, 2, 6, 7, 5, 4))"
    assert mesh.devices() != ring.devices()
    for original in (mesh, ring):
        again = pickle.loads(pickle.dumps(original))
        assert again == original
        assert again.devices() == original.devices()
        assert copy.copy(original) is original
        assert copy.deepcopy(original) is original
    assert hlofast.Mesh.parse("a=4", hosts=2, slices=1).hosts == 2


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda: hlofast.Mesh({"a": 0}), ValueError, "at least 1"),
        (lambda: hlofast.Mesh({"a": -3}), ValueError, "at least 1"),
        (lambda: hlofast.Mesh([("a", 2), ("a", 2)]), ValueError, "twice"),
        (lambda: hlofast.Mesh({"": 2}), ValueError, "name"),
        (lambda: hlofast.Mesh({"a": 2**40, "b": 2**40}), ValueError, "64 bits"),
        (lambda: hlofast.Mesh({"a": 2.5}), TypeError, "mapping of names to sizes"),
        (lambda: hlofast.Mesh(["a"]), TypeError, "mapping of names to sizes"),
        (lambda: hlofast.Mesh({"a": 4}, device_order=[0, 1, 2]), ValueError, "has 3 devices"),
        (lambda: hlofast.Mesh({"a": 2}, device_order=[0, 0]), ValueError, "occurs twice"),
        (lambda: hlofast.Mesh({"a": 2}, device_order=[1, 2]), ValueError, "not one of 2"),
        (lambda: hlofast.Mesh({"a": 4}, hosts=3), ValueError, "evenly over 3 hosts"),
        (lambda: hlofast.Mesh({"a": 4}, slices=0), ValueError, "evenly over 0 slices"),
        (lambda: hlofast.Mesh({"a": 4}, hosts=2, slices=4), ValueError, "2 hosts"),
        (lambda: hlofast.Mesh.parse("data"), ValueError, "NAME=SIZE"),
        (lambda: hlofast.Mesh.parse("data=two"), ValueError, "not an integer"),
    ],
)
def test_meshes_that_cannot_be(make, error, words) -> None:
    with pytest.raises(error, match=words):
        make()


def test_axes_of_groups(module: hlofast.Module, mesh: hlofast.Mesh) -> None:
    matches = {
        name: mesh.axes_of(module[name]) for name in ("lists", "iota", "named", "part", "all")
    }
    assert {name: match.axes for name, match in matches.items()} == {
        "lists": ("data",),
        "iota": ("model",),
        "named": ("data", "model"),
        "part": ("model:(2)2",),
        "all": ("data", "model"),
    }
    everything = {name for name, match in matches.items() if match.is_everything}
    assert everything == {"named", "all"}
    assert all(match.reason is None for match in matches.values())
    assert str(matches["named"]) == "data×model"
    assert matches["lists"].groups == "[4,2]<=[2,4]T(1,0)"
    assert repr(matches["iota"]) == "<AxisMatch model>"


def test_groups_that_follow_no_axes(module: hlofast.Module, mesh: hlofast.Mesh) -> None:
    odd = mesh.axes_of(module["odd"])
    assert (odd.axes, str(odd)) == ((), "no axis subset")
    assert odd.reason == "it follows no axes of the mesh"
    assert odd.groups == "{{0,3},{1,2},{4,7},{5,6}}"
    # Without a channel the groups are of replicas, of which the module has one.
    alone = mesh.axes_of(module["alone"])
    assert (alone.axes, alone.reason, str(alone)) == ((), None, "")
    assert repr(alone) == "<AxisMatch of single devices>"
    other = hlofast.Mesh({"data": 4}).axes_of(module["iota"])
    assert other.reason == "it names 8 devices, the mesh has 4"
    with pytest.raises(ValueError, match="neither groups nor"):
        mesh.axes_of(module["p"])


def test_groups_that_cannot_be_read(mesh: hlofast.Mesh) -> None:
    module = hlofast.loads(REDUCE.replace("groups=[2,4]<=[8]", "groups=[2,x]<=[8]"))
    with pytest.raises(hlofast.ParseError):
        mesh.axes_of(module["iota"])


def test_axes_of_permutes(module: hlofast.Module, mesh: hlofast.Mesh) -> None:
    ring = mesh.axes_of(module["ring"])
    assert (ring.axes, ring.shift, ring.wraps, ring.groups) == (("model",), 1, True, None)
    assert str(ring) == "model +1"
    opened = mesh.axes_of(module["open"])
    assert (opened.axes, opened.shift, opened.wraps) == (("data",), -1, False)
    assert str(opened) == "data -1 without wraparound"
    unknown = hlofast.Mesh({"model": 4}).axes_of(module["ring"])
    assert unknown.reason == "the mesh has no device 4"


def test_a_module_without_counts(mesh: hlofast.Mesh) -> None:
    """Dumps of some years say nothing of partitions; the mesh then says who everyone is."""
    module = hlofast.loads(REDUCE.replace(", num_partitions=8", ""))
    assert mesh.axes_of(module["all"]).is_everything
    assert mesh.axes_of(module["alone"]).is_everything
    assert mesh.axes_of(module["iota"]).axes == ("model",)


def test_derived_meshes(module: hlofast.Module) -> None:
    mesh = module.mesh()
    assert mesh is not None
    assert mesh == hlofast.Mesh({"axis_0": 2, "axis_1": 4})
    assert (mesh.source, mesh.invented_names) == ("entry_shardings", True)
    assert (mesh.evidence, mesh.ignored) == (1, 0)
    assert repr(mesh) == "<Mesh({'axis_0': 2, 'axis_1': 4}) from entry_shardings>"
    again = pickle.loads(pickle.dumps(mesh))
    assert (again.source, again.evidence, repr(again)) == (mesh.source, 1, repr(mesh))
    bare = hlofast.loads(REDUCE.replace(", sharding={devices=[2,4]<=[8]}", "")).mesh()
    assert bare is not None
    # The group set without a pattern speaks for no mesh; `part` cuts the second axis.
    assert (bare.source, bare.shape) == ("replica_groups", {"axis_0": 2, "axis_1": 2, "axis_2": 2})
    assert bare.ignored == 1
    single = "HloModule m\n\nENTRY e {\n  ROOT p = f32[2]{0} parameter(0)\n}\n"
    assert hlofast.loads(single).mesh() is None


def test_specs(module: hlofast.Module, mesh: hlofast.Mesh) -> None:
    sharding = module["p"].sharding
    assert sharding is not None
    spec = sharding.spec(mesh)
    assert (str(spec), repr(spec)) == ("P('data', 'model')", "P('data', 'model')")
    assert tuple(spec) == spec.dimensions == ("data", "model")
    assert (len(spec), spec[0], spec[-1]) == (2, "data", "model")
    assert (spec.unreduced, spec.manual, spec.reduction, spec.reason) == ((), (), None, None)
    with pytest.raises(IndexError):
        spec[2]
    joined = sharding.spec(hlofast.Mesh({"a": 2, "b": 2, "c": 2}))
    assert joined.dimensions == ("a", ("b", "c"))
    assert joined != spec
    assert len({spec, sharding.spec(mesh)}) == 1
    other = sharding.spec(hlofast.Mesh({"x": 4}))
    assert (other.dimensions, str(other)) == ((), "{devices=[2,4]<=[8]}")
    assert other.reason == "it names 8 devices, the mesh has 4"


def test_specs_of_every_kind(mesh: hlofast.Mesh) -> None:
    def spec(text: str) -> hlofast.PartitionSpec:
        module = hlofast.loads(REDUCE.replace("{devices=[2,4]<=[8]}", text))
        sharding = module["p"].sharding
        assert sharding is not None
        return sharding.spec(mesh)

    assert str(spec("{replicated}")) == "P()"
    assert str(spec("{devices=[4,1,2]0,4,1,5,2,6,3,7 last_tile_dim_replicate}")) == (
        "P('model', None)"
    )
    partial = spec("{mesh['data'=2,'model'=4], [{'data'}, {}], unreduced=max{'model'}}")
    assert (partial.unreduced, partial.reduction) == (("model",), "max")
    assert str(partial) == "P('data', None, unreduced=max{'model'})"
    assert spec("{devices=[2,1,4]<=[8] last_tile_dims={manual}}").manual == ("model",)
    single = spec("{maximal device=3}")
    assert (single.reason, str(single)) == ("it names device 3 only", "{maximal device=3}")
    with pytest.raises(ValueError, match="several leaves"):
        spec("{{replicated}, {replicated}}")


def test_seed_002_has_two_axes(seeds) -> None:
    """2 x 8, device = 8 * data + operator, from lists of devices; the header says nothing."""
    module = hlofast.load(seeds.path("002"))
    mesh = module.mesh()
    assert mesh is not None
    assert mesh.shape == {"axis_0": 2, "axis_1": 8}
    assert (mesh.source, mesh.invented_names, mesh.ignored) == ("entry_shardings", True, 0)
    axes = [str(mesh.axes_of(row)) for row in module.instructions if row.opcode == "all-reduce"]
    assert (axes.count("axis_0"), axes.count("axis_1"), len(axes)) == (3, 40, 43)


def test_seed_003_has_two_axes(seeds) -> None:
    module = hlofast.load(seeds.path("003"))
    mesh = hlofast.Mesh({"data": 2, "model": 4})
    derived = module.mesh()
    assert derived is not None
    assert tuple(derived.shape.values()) == (2, 4)
    names = ("all-gather", "all-gather.1", "all-reduce")
    assert [str(mesh.axes_of(module[name])) for name in names] == ["data", "data", "model"]
