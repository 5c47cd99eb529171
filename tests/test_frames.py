"""Which line of the program: frames of call stacks, libraries, and layers summed as one."""

import json
import lzma
import pickle
import re
from pathlib import Path
from typing import Any

import pytest

import hlofast
from conftest import FIXTURES
from hlofast import Context
from hlofast.table import with_source
from lint_programs import ONE_HOT
from test_cli import document, hlofast_command
from test_report import block

FRAMES = FIXTURES / "frames"
TRUTH = {
    record["name"]: record
    for record in map(json.loads, (FRAMES / "truth.jsonl").read_text().splitlines())
}
PACKAGES = ("flax", "haiku", "praxis", "optax", "equinox", "jax")

STACKED = """\
HloModule jit_step, is_scheduled=true

FileNames
1 "/home/me/model.py"
2 "/env/lib/python3.11/site-packages/flax/linen/linear.py"
3 "/srv/mylib/layers/dense.py"
4 "/usr/lib/python3.11/contextlib.py"

FunctionNames
1 "Model.__call__"
2 "Dense.__call__"
3 "dense"
4 "inner"

FileLocations
1 {file_name_id=1 function_name_id=1 line=7 end_line=7 column=1 end_column=2}
2 {file_name_id=2 function_name_id=2 line=294 end_line=294 column=1 end_column=2}
3 {file_name_id=3 function_name_id=3 line=30 end_line=30 column=1 end_column=2}
4 {file_name_id=4 function_name_id=4 line=81 end_line=81 column=1 end_column=2}

StackFrames
1 {file_location_id=1 parent_frame_id=1}
2 {file_location_id=3 parent_frame_id=2}
3 {file_location_id=4 parent_frame_id=3}
4 {file_location_id=2 parent_frame_id=4}
5 {file_location_id=2 parent_frame_id=1}
6 {file_location_id=4 parent_frame_id=7}

ENTRY main {
  p = f32[64,64]{1,0} parameter(0)
  a = f32[64,64]{1,0} dot(p, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/a/dot" stack_frame_id=4}
  b = f32[64,64]{1,0} dot(a, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/b/dot" stack_frame_id=5}
  c = f32[64,64]{1,0} dot(b, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/c/dot" stack_frame_id=6}
  d = f32[64,64]{1,0} dot(c, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/d/dot" source_file="/x/site-packages/flax/old.py" source_line=3}
  e = f32[64,64]{1,0} dot(d, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/e/dot" source_file="/x/site-packages/flax/old.py" source_line=3 stack_frame_id=4}
  f = f32[64,64]{1,0} dot(e, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/f/dot" source_file="/home/me/other.py" source_line=5 stack_frame_id=4}
  ROOT g = f32[64,64]{1,0} dot(f, p), lhs_contracting_dims={1}, rhs_contracting_dims={0}, metadata={op_name="jit(f)/jvp(M)/g/dot" stack_frame_id=99}
}
"""
LINEAR = "/env/lib/python3.11/site-packages/flax/linen/linear.py"
OLD = "/x/site-packages/flax/old.py:3"


def sources(module: hlofast.Module) -> dict[str, str | None]:
    """The source of each dot by the first letter of its name."""
    return {
        own.name: None if own.source is None else str(own.source)
        for own in module
        if own.opcode == "dot"
    }


def is_library(file: str) -> bool:
    """Whether a file is a library by the words of the task, found without hlofast."""
    folders = file.split("/")[:-1]
    return any(own in ("site-packages", "dist-packages", *PACKAGES) for own in folders)


@pytest.fixture(scope="module", params=sorted(TRUTH))
def model(request: pytest.FixtureRequest) -> tuple[hlofast.Module, dict[str, Any]]:
    return hlofast.load(FRAMES / f"{request.param}.txt.xz"), TRUTH[request.param]


class TestModels:
    def test_matmuls_are_the_models_own(self, model: tuple[hlofast.Module, Any]) -> None:
        module, truth = model
        own = truth["model_file"]
        products = module.matmuls()
        by_file = dict(
            zip(*map(products.by("source_file").values, ("source_file", "flops")), strict=True)
        )
        total = sum(by_file.values())
        assert by_file[own] >= 0.95 * total
        # Equinox repeats products under jax.checkpoint; the CPU compiler merges them again.
        least = 0.9 if truth["name"] == "equinox.cpu" else 1
        assert least * truth["product_flops"][own] <= by_file[own] <= truth["product_flops"][own]
        by_line = with_source(products).by("source")
        assert len(by_line) > 1
        assert all(str(place).startswith(f"{own}:") for place in by_line.values("source"))

    def test_costs_are_the_users_own(self, model: tuple[hlofast.Module, Any]) -> None:
        module, _ = model
        cost = module.cost()
        for key in ("source", "source_file"):
            groups = cost.by(key)
            known = [
                (place, flops)
                for place, flops in zip(groups.values(key), groups.values("flops"), strict=True)
                if place
            ]
            libraries = sum(flops for place, flops in known if is_library(place))
            assert libraries <= 0.001 * cost.flops
            assert sum(groups.values("flops")) == cost.flops

    def test_the_innermost_frame_is_a_librarys(self, model: tuple[hlofast.Module, Any]) -> None:
        module, truth = model
        inner = module.with_context(frame="innermost").matmuls().by("source_file")
        is_own = truth["library"] == "plain"
        assert all(is_library(file) != is_own for file in inner.values("source_file"))

    def test_frames_are_those_of_the_stacks(self, model: tuple[hlofast.Module, Any]) -> None:
        module, _ = model
        inner, stack = (module.with_context(frame=frame) for frame in ("innermost", "stack"))
        followed = 0
        for row, instruction in enumerate(module):
            frames = instruction.metadata.stack_frames if instruction.metadata else ()
            if not frames:
                continue
            user = next((own for own in frames if not is_library(own.file)), frames[0])
            assert str(instruction.source) == f"{user.file}:{user.line}"
            assert str(inner[row].source) == f"{frames[0].file}:{frames[0].line}"
            whole = " > ".join(f"{own.file}:{own.line}" for own in reversed(frames))
            assert str(stack[row].source) == whole
            followed += user is not frames[0]
        assert followed > 20 or _is_plain(module)

    def test_every_table_shows_the_same_line(self, model: tuple[hlofast.Module, Any]) -> None:
        module, _ = model
        time = module.time("tpu-v5e")
        remat = module.remat()
        tables = {
            "table": module.table(),
            "matmuls": module.matmuls(),
            "cost": module.cost().table(),
            "time": time.table(),
            "recomputed": remat.recomputed,
        }
        for name, table in tables.items():
            assert len(table) or name == "recomputed", name
            for row in table:
                source = module[row["instruction"]].source
                assert row["source_file"] == (source and source.file), name
                assert row["source_line"] == ((source and source.line) or None), name
        spent = time.by("source")
        assert not any(
            is_library(place) and "_model" in place for place in spent.values("source") if place
        )

    def test_advice_leads_to_no_library(self, model: tuple[hlofast.Module, Any]) -> None:
        module, _ = model
        for frame in ("user", "innermost", "stack"):
            own = module.with_context(frame=frame)
            remat = own.remat()
            advice = [own.advice or "" for own in remat.statements]
            advice += [str(text) for text in remat.candidates.values("change")]
            assert not any("site-packages" in text for text in advice)


def _is_plain(module: hlofast.Module) -> bool:
    return not any("site-packages/flax" in file for file in module.source_files)


class TestFrames:
    def test_the_users_frame_is_the_first_outside_libraries(self) -> None:
        assert sources(hlofast.loads(STACKED)) == {
            "a": "/srv/mylib/layers/dense.py:30",
            "b": f"{LINEAR}:294",  # Nothing else is on its stack.
            "c": "/usr/lib/python3.11/contextlib.py:81",  # Its stack has no end.
            "d": OLD,
            "e": "/srv/mylib/layers/dense.py:30",
            "f": "/home/me/other.py:5",
            "g": None,
        }

    def test_users_list_further_libraries(self) -> None:
        for libraries in ("mylib", ["layers"], ("other", "mylib/layers"), ["/srv/"]):
            own = sources(hlofast.loads(STACKED, libraries=libraries))
            assert own["a"] == own["e"] == "/home/me/model.py:7"
        everything = sources(hlofast.loads(STACKED, libraries=["mylib", "me"]))
        assert (everything["a"], everything["e"]) == (f"{LINEAR}:294", OLD)
        # A file that is written stays where its stack leads nowhere else.
        assert everything["f"] == "/home/me/other.py:5"

    def test_the_innermost_frame(self) -> None:
        own = sources(hlofast.loads(STACKED, frame="innermost"))
        assert (own["a"], own["e"], own["f"]) == (f"{LINEAR}:294", OLD, "/home/me/other.py:5")

    def test_the_whole_stack(self) -> None:
        module = hlofast.loads(STACKED, frame="stack")
        whole = (
            "/home/me/model.py:7 > /srv/mylib/layers/dense.py:30 > "
            f"/usr/lib/python3.11/contextlib.py:81 > {LINEAR}:294"
        )
        own = sources(module)
        assert own["a"] == own["e"] == own["f"] == whole
        assert (own["b"], own["d"], own["g"]) == (f"{LINEAR}:294", OLD, None)
        by_source = module.cost().by("source")
        flops = dict(zip(by_source.values("source"), by_source.values("flops"), strict=True))
        assert flops[whole] == 3 * 2 * 64**3
        assert whole.rpartition(":")[0] in module.source_files

    def test_long_stacks_keep_their_inner_end(self) -> None:
        count = 2000
        frames = "\n".join(
            f"{n} {{file_location_id=1 parent_frame_id={n}}}" for n in range(1, count + 1)
        )
        head, rest = STACKED.split("StackFrames\n")
        entry = rest.partition("\n\n")[2].replace("stack_frame_id=4}", f"stack_frame_id={count}}}")
        text = f"{head}StackFrames\n{frames}\n\n{entry}"
        source = sources(hlofast.loads(text, frame="stack"))["a"]
        assert source is not None and len(source) < 5000
        assert source.startswith("… > ") and source.endswith(" > /home/me/model.py:7")
        assert sources(hlofast.loads(text))["a"] == "/home/me/model.py:7"

    def test_sums_by_source_use_the_frame(self) -> None:
        module = hlofast.loads(STACKED)
        for frame, expected in ((None, 2), ("innermost", 2)):
            own = module.with_context(frame=frame)
            place = "/srv/mylib/layers/dense.py:30" if frame is None else f"{LINEAR}:294"
            for by_source in (own.cost().by("source"), own.memory().by("source")):
                assert place in by_source.values("source")
            by_source = own.cost().by("source")
            found = dict(zip(by_source.values("source"), by_source.values("flops"), strict=True))
            assert found[place] == expected * 2 * 64**3

    def test_columns_and_selection_follow(self) -> None:
        module = hlofast.loads(STACKED)
        named = [module[row].name for row in module.where(source_file="dense.py")]
        assert named == ["a", "e"]
        assert [module[row].name for row in module.where(source_line=30)] == named
        inner = module.with_context(frame="innermost")
        assert [module[row].name for row in inner.where(source_file="linear.py")] == ["a", "b"]
        # The columns of one context are not those of another.
        assert module.columns.source_line.tolist() != inner.columns.source_line.tolist()
        assert module.columns is module.with_context(hbm="1GiB").columns
        part = module.entry.columns.source_line.tolist()
        assert part == module.columns.source_line.tolist()
        assert module.entry["a"].metadata.source_file == LINEAR

    def test_the_context_says_it(self) -> None:
        told = Context(libraries="mylib", frame="stack", merge_layers=True)
        assert (told.libraries, told.frame, told.merge_layers) == (("mylib",), "stack", True)
        assert told.sources == dict.fromkeys(("libraries", "frame", "merge_layers"), "given")
        assert Context(libraries=[], merge_layers=False) == Context()
        module = hlofast.loads(STACKED, libraries=["mylib"])
        assert module.context.libraries == ("mylib",)
        assert sources(module.with_context(hbm="1GiB"))["a"] == "/home/me/model.py:7"
        assert sources(module.with_context(libraries=None))["a"] != "/home/me/model.py:7"
        assert sources(pickle.loads(pickle.dumps(module)))["a"] == "/home/me/model.py:7"

    @pytest.mark.parametrize(
        ("arguments", "said"),
        [
            ({"frame": "outermost"}, "innermost"),
            ({"libraries": ["/"]}, "mylib"),
            ({"libraries": ""}, "mylib"),
        ],
        ids=repr,
    )
    def test_what_makes_no_sense_is_refused(self, arguments: Any, said: str) -> None:
        with pytest.raises(ValueError, match=said):
            Context(**arguments)
        with pytest.raises(TypeError):
            Context(libraries=[3])  # type: ignore[list-item]

    def test_findings_at_one_line_of_a_library_are_two_of_the_user(self) -> None:
        old, new = (f"5 {{file_location_id=2 parent_frame_id={n}}}" for n in (1, 2))
        tables = STACKED.partition("ENTRY")[0].replace(old, new)
        product = "dot(h, table), lhs_contracting_dims={1}, rhs_contracting_dims={0}"
        products = "\n".join(
            f"  {name} = f32[64,128] {product}, metadata={{stack_frame_id={frame}}}"
            for name, frame in (("y1", 4), ("y2", 5))
        )
        body = ONE_HOT.partition("  ROOT")[0]
        end = "  ROOT t = (f32[64,128], f32[64,128]) tuple(y1, y2)\n}\n"
        module = hlofast.loads(f"{tables}ENTRY main {{{body}{products}\n{end}")
        places = {(f.source_file, f.source_line) for f in module.lint() if f.source_file}
        assert places == {("/srv/mylib/layers/dense.py", 30), ("/home/me/model.py", 7)}
        merged = module.with_context(frame="innermost").lint()
        assert {(f.source_file, f.source_line) for f in merged if f.source_file} == {(LINEAR, 294)}


class TestCommands:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "step.txt"
        path.write_text(STACKED)
        return path

    def test_show_lists_the_stack(self, path: Path) -> None:
        (result,) = document("show", path, "a")["results"]
        assert [(own["line"], own["function"], own["is_library"]) for own in result["tables"]["stack"]] == [
            (294, "Dense.__call__", True),
            (81, "inner", True),
            (30, "dense", False),
            (7, "Model.__call__", False),
        ]  # fmt: skip
        shown = hlofast_command("show", path, "a", "--library", "mylib").stdout
        assert re.search(r"/home/me/model\.py\nsource line +7\n", shown)
        assert "Call stack, innermost first" in shown
        listed = document("show", path, "a", "--library", "mylib")["results"][0]
        assert [own["is_library"] for own in listed["tables"]["stack"]] == [True, True, True, False]

    def test_options_reach_every_analysis(self, path: Path) -> None:
        for verb, more in (("cost", ()), ("time", ("--device", "tpu-v5e")), ("matmuls", ())):
            for options, expected in (
                ((), "/srv/mylib/layers/dense.py:30"),
                (("--library", "mylib", "--library", "x"), "/home/me/model.py:7"),
                (("--frame", "innermost"), f"{LINEAR}:294"),
                (("--frame", "stack"), f"contextlib.py:81 > {LINEAR}:294"),
            ):
                done = document(verb, "--by", "source", path, *more, *options)
                assert expected in json.dumps(done), (verb, options)

    def test_stacks_are_short_in_tables(self, path: Path) -> None:
        shown = hlofast_command("matmuls", "--frame", "stack", path).stdout
        assert "model.py:7 > dense.py:30 > contextlib.py:81 > linear.py:294" in shown
        assert "site-packages/flax/linen/linear.py:294 >" not in shown

    def test_errors_name_the_option(self, path: Path) -> None:
        done = hlofast_command("cost", path, "--library", "/")
        assert done.returncode == 2 and "--library /" in done.stderr
        assert hlofast_command("cost", path, "--frame", "outer").returncode == 2

    def test_scans_take_them(self, path: Path) -> None:
        def found(*options: str) -> set[Any]:
            done = hlofast_command("scan", path, "-o", "-", "--tables", "matmuls", *options)
            rows = [json.loads(line) for line in done.stdout.splitlines()]
            return {row["source_file"] for row in rows if row.get("name") == "a"}

        assert found() == {"/srv/mylib/layers/dense.py"}
        assert found("--library", "mylib") == {"/home/me/model.py"}
        assert found("--frame", "innermost") == {LINEAR}
        rows = hlofast.scan(path, tables=["matmuls"], libraries="mylib").tables["matmuls"]
        assert "/home/me/model.py" in rows.values("source_file")


def unrolled(names: str, count: int = 4) -> str:
    """A program of `count` layers, each with an attention and an MLP of two products."""
    lines, last = [], "p"
    for layer in range(count):
        scope = names.format(layer)
        for part in ("attn/Dense_0", "mlp/Dense_0", "mlp/Dense_1"):
            name = f"dot{len(lines)}"
            lines.append(
                f"  {name} = f32[64,64]{{1,0}} dot({last}, p), lhs_contracting_dims={{1}}, "
                "rhs_contracting_dims={0}, "
                f'metadata={{op_name="jit(step)/jvp(Model)/{scope}/{part}/dot_general"}}'
            )
            last = name
        gather = f"gather{layer}"
        lines.append(
            f"  {gather} = f32[64,64]{{1,0}} all-reduce({last}), replica_groups=[1,8]<=[8], "
            f"channel_id={layer + 1}, use_global_device_ids=true, to_apply=sum, "
            f'metadata={{op_name="jit(step)/jvp(Model)/{scope}/psum"}}'
        )
        last = gather
    return (
        "HloModule jit_step, is_scheduled=true, num_partitions=8\n\nsum {\n  a = f32[] parameter(0)\n"
        "  b = f32[] parameter(1)\n  ROOT c = f32[] add(a, b)\n}\n\nENTRY main {\n"
        "  p = f32[64,64]{1,0} parameter(0)\n"
        + "\n".join(lines)
        + f"\n  ROOT out = f32[64,64]{{1,0}} negate({last})\n}}\n"
    )


@pytest.mark.parametrize(
    ("names", "merged"),
    [
        ("layer_{}", "layer_*"),
        ("layers/{}", "layers/*"),
        ("layers_{}", "layers_*"),
        ("block{}", "block*"),
        ("TransformerBlock_{}", "TransformerBlock_*"),
        ("h/{}", "h/*"),
    ],
)
class TestLayers:
    def test_sums_count_layers_as_one(self, names: str, merged: str) -> None:
        module = hlofast.loads(unrolled(names), device="tpu-v5e")
        one = module.with_context(merge_layers=True)
        depth = 3 + names.count("/")
        scope = f"jit(step)/jvp(Model)/{merged}"
        product = 2 * 64**3
        cost = {row["scope"]: row["flops"] for row in one.cost().by("scope", depth=depth)}
        assert cost[scope] >= 12 * product
        assert len(module.cost().by("scope", depth=depth)) == len(cost) + 3
        # The parts of a layer stay apart.
        deep = {row["scope"]: row for row in one.cost().by("scope", depth=9)}
        for part in ("attn/Dense_0", "mlp/Dense_0", "mlp/Dense_1"):
            row = deep[f"{scope}/{part}/dot_general"]
            assert (row["flops"], row["instructions"]) == (4 * product, 4)
        assert sum(row["flops"] for row in deep.values()) == module.cost().flops
        sent = one.collectives().by("scope")
        assert sent.values("scope") == [f"{scope}/psum"]
        assert sum(sent.values("collectives")) == 4
        products = one.matmuls()
        assert len(products.by("scope")) == 3
        spent = one.time().by("scope")
        assert len(spent.values("scope")) == len(set(spent.values("scope")))
        assert sum(spent.values("seconds")) == pytest.approx(
            sum(module.time().by("scope").values("seconds"))
        )
        alive = one.memory().by("scope").values("scope")
        assert not any("_0/" in (own or "") and "Dense" not in (own or "") for own in alive)

    def test_the_page_and_commands_take_it(self, names: str, merged: str, tmp_path: Path) -> None:
        path = tmp_path / "step.txt"
        path.write_text(unrolled(names))
        for verb in ("cost", "memory", "collectives", "matmuls"):
            more = ("--depth", 4) if verb == "cost" else ()
            by = document(verb, "--by", "scope", *more, "--merge-layers", path)
            assert merged in json.dumps(by), verb
            by = document(verb, "--by", "scope", *more, path)
            assert merged not in json.dumps(by), verb
        made = hlofast.load(path, merge_layers=True).report(plots=False)
        _, buffers = block(made.html, "sections")
        assert f"jvp(Model)/{merged}".encode() in buffers
        _, buffers = block(hlofast.load(path).report(plots=False).html, "sections")
        assert merged.encode() not in buffers
        page = tmp_path / "page.html"
        done = hlofast_command("report", "--merge-layers", path, "-o", page)
        assert not done.returncode, done.stderr


def test_a_fixture_reads_without_its_tables() -> None:
    text = lzma.decompress((FRAMES / "linen.cpu.txt.xz").read_bytes()).decode()
    start, end = text.index("FileNames"), text.index("\n\n%")
    module = hlofast.loads(text[:start] + text[end:])
    assert not module.source_files
    assert all(own.source is None for own in module)
