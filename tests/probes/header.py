"""Section 2: the module header."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ACCEPT, REJECT, Probe, slug, table

ONE = "\n\nENTRY e {\n  p0 = f32[2] parameter(0)\n  ROOT r = f32[2] negate(p0)\n}\n"
PAIR = (
    "\n\nENTRY e {\n  p0 = f32[2] parameter(0)\n  p1 = (f32[2], s32[]) parameter(1)\n"
    "  ROOT r = (f32[2], s32[]) copy(p1)\n}\n"
)


def one(attributes: str) -> str:
    """A module whose entry is f32[2] -> f32[2]."""
    return f"HloModule m, {attributes}{ONE}"


def pair(attributes: str) -> str:
    """A module whose entry is (f32[2], (f32[2], s32[])) -> (f32[2], s32[])."""
    return f"HloModule m, {attributes}{PAIR}"


SIMPLE = {
    "is_scheduled": (("true", "false"), ("1", "0", "True", '"true"', "{true}", "", "x", "yes")),
    "alias_passthrough_params": (("true", "false"), ("1", "TRUE", "'true'", "")),
    "replica_count": (("1", "8", "0", "01"), ("1.0", "x", "{1}", "'1'", "", "true", "1_0", "18446744073709551616")),
    "num_partitions": (("1", "8", "0"), ("1.5", "x", "'8'", "", "{8}")),
    "allow_spmd_sharding_propagation_to_parameters": (
        ("true", "false", "{true}", "{true,false}", "{}"), ("1", "{1}", "{true", "{true,}", "'true'", "{true false}", "(true)", ""),
    ),
    "allow_spmd_sharding_propagation_to_output": (
        ("true", "false", "{true}", "{false,true,true}", "{}"), ("0", "{0}", "{,true}", "{{true}}", ""),
    ),
    "frontend_attributes": (
        ("{}", '{a="b"}', '{a="b",c={d}}', '{xla.sdy.meshes={mesh = #sdy.mesh<["fsdp"=2]>}}', "{a='b'}", '{a="1",a="2"}', '{a.b-c="x"}', '{ a="b" , c="d" }'),
        ('{a=b}', '{a=1}', '{"a"="b"}', '{a="b",}', '{a="b" c="d"}', '{a}', '{a:"b"}', '"a"', "", '{a ="b"}', '{,a="b"}', "{a=true}"),
    ),
}
ALIAS_OK = (
    "{}", "{ {}: (0, {}) }", "{ {}: (0, {}, may-alias) }", "{ {}: (0, {}, must-alias) }", "{ {}: (0, {}), }",
    "{{}:(0,{})}", "{ {}: (5, {}) }", "{ {}: (0, {}), {}: (0, {}) }", "{ {}: (0, {7}) }", "{\n{}: (0, {})\n}",
    "{ {}: (0, {}, may-alias), }",
)
ALIAS_WRONG = (
    "{ {}: (0, {},) }",
    "{ {}: 0 }", "{ {}: (0) }", "{ {}: (0, {}, USER) }", "{ {}: (0, {}, may_alias) }", "{ {}: (0, {}, MAY-ALIAS) }",
    "{ {} (0, {}) }", "{ {}: (0, 0) }", "{ 0: (0, {}) }", "{ {0}: (0, {}) }", "{ {}: (x, {}) }", "{ {}: (-1, {}) }",
    "{ {}: (0, {x}) }", "{ {}: (0, {}) {}: (1, {}) }", "{ {}: (0, {}", "{ {}: (0, {})", "( {}: (0, {}) )", "",
    "{ {}: (0 {}) }", "{ {-1}: (0, {}) }", "{ {}: (0, {}, must-alias, 1) }", "{ , {}: (0, {}) }", "{ {}: (0, {}, 'may-alias') }",
)
PAIR_ALIASES = (
    ("{ {0}: (0, {}) }", ACCEPT), ("{ {0}: (1, {0}), {1}: (1, {1}) }", ACCEPT), ("{ {1}: (1, {1}) }", ACCEPT),
    ("{ {}: (1, {}) }", ""), ("{ {2}: (1, {}) }", REJECT), ("{ {0,0}: (1, {}) }", REJECT), ("{ {0, }: (1, {}) }", ""),
    ("{ {0}: (1, {0}), {0}: (0, {}) }", ACCEPT), ("{ {-1}: (1, {0}) }", ""), ("{ {0}: (1, {0, 0}) }", ACCEPT),
    ("{ {00}: (1, {0}) }", ACCEPT), ("{ {0}: (1, {-1}) }", ""), ("{ {0}: (18446744073709551615, {}) }", ""),
)
DONORS = (
    ("{}", ACCEPT), ("{ (0, {}) }", ACCEPT), ("{ (1, {0}), (0, {}) }", ACCEPT), ("{ (1, {0}), }", ACCEPT),
    ("{(0,{})}", ACCEPT), ("{ (9, {}) }", ""), ("{ (0, {3}) }", ""), ("{ (0, {}), (0, {}) }", ""),
    ("{ (0) }", REJECT), ("{ 0 }", REJECT), ("{ (0, {}, must-alias) }", REJECT), ("{ {}: (0, {}) }", REJECT),
    ("{ (x, {}) }", REJECT), ("{ (-1, {}) }", ""), ("{ (0, {}) (1, {}) }", REJECT), ("", REJECT), ("{ (0 {}) }", REJECT),
    ("{ (0, {0 1}) }", REJECT), ("{ (0, 0) }", REJECT),
)
LAYOUTS_OK = (
    "{(f32[2]{0})->f32[2]{0}}", "{(f32[2])->f32[2]}", "{ ( f32[2]{0} ) -> f32[2]{0} }", "{(f32[3])->f32[9]}",
    "{()->f32[2]}", "{(f32[2], f32[2])->f32[2]}", "{(f32[2]{0:T(128)})->f32[2]{0:S(1)}}", "{(/*index=0*/f32[2])->f32[2]}",
    "{((f32[2]{0}, s32[]))->(f32[2]{0})}", "{(f32[2]{0},)->f32[2]{0}}", "{(f32[2]{0})->()}", "{(token[])->token[]}",
)
LAYOUTS_WRONG = (
    "{f32[2]->f32[2]}", "{(f32[2])}", "{(f32[2])->}", "{(f32[2]) f32[2]}", "(f32[2])->f32[2]", "{(f32[2])->f32[2]",
    "{(x: f32[2])->f32[2]}", "{(f32[2])=>f32[2]}", "{->f32[2]}", "{}", "", "{(f32[2] f32[2])->f32[2]}", "{(f32[2])->f32[2],f32[2]}",
    "{(f32)->f32[2]}", "{(foo[2])->f32[2]}", "{(,f32[2])->f32[2]}", '"(f32[2])->f32[2]"',
)
RECOVERY_OK = (
    "{}", '{ {"a"} : {"b"} }', '{{"a"}:{"b"}}', '{ {"a" {0}} : {"b" {1,2}} }', '{ {"a"} : {"b"} {"c"} : {"d"} }', "{ {} : {} }",
    '{ {"a"} : {"b"}, "HloModule r\\nENTRY e { ROOT p = f32[2] parameter(0) }" }',
    '{ {"a"} : {"b"}, "HloModule r\n\nENTRY e {\n  ROOT p = f32[2] parameter(0)\n}" {"c"} : {"d"} }',
)
RECOVERY_WRONG = (
    '{ {"a"} {"b"} }', '{ {"a"} : }', '{ "a" : "b" }', '{ {"a"} : {"b"}, "junk" }', '{ {a} : {"b"} }', '{ {"a"} : {"b"}', "", "x",
    '{ {"a"} : {"b"}, 5 }', '{ {"a" 0} : {"b"} }', '{ {"a"} -> {"b"} }',
)
UNKNOWN = (
    "foo=1", "foo={}", "dynamic_parameter_binding={}", "fingerprint=abc", "name=m", "sharding={replicated}", "metadata={}",
    "is_schedule=true", "entry_computation=e", "execution_thread='x'",
)


def separators() -> Iterator[Probe]:
    """How the attributes follow the name and one another."""
    row = "2:header syntax"
    for name, head, expected in (
        ("no-attributes", "HloModule m", ACCEPT),
        ("two", "HloModule m, replica_count=2, num_partitions=4", ACCEPT),
        ("other-order", "HloModule m, num_partitions=4, replica_count=2", ACCEPT),
        ("over-lines", "HloModule m,\n  replica_count=2,\n  num_partitions=4", ACCEPT),
        ("comma-on-next-line", "HloModule m\n, replica_count=2", ACCEPT),
        ("comments-between", "HloModule m, /* c */ replica_count=/*d*/2 // e\n", ACCEPT),
        ("no-comma", "HloModule m replica_count=2", REJECT),
        ("no-second-comma", "HloModule m, replica_count=2 num_partitions=4", REJECT),
        ("trailing-comma", "HloModule m,", REJECT),
        ("double-comma", "HloModule m,, replica_count=2", REJECT),
        ("twice", "HloModule m, replica_count=2, replica_count=2", REJECT),
        ("twice-other-value", "HloModule m, is_scheduled=true, replica_count=2, is_scheduled=false", REJECT),
        ("no-name", "HloModule , replica_count=2", REJECT),
        ("no-name-nor-comma", "HloModule", REJECT),
        ("two-headers", "HloModule m\nHloModule n", REJECT),
        ("lower-case", "hlomodule m", REJECT),
        ("space-before-equals", "HloModule m, replica_count =2", REJECT),
        ("space-after-equals", "HloModule m, replica_count= 2", ACCEPT),
        ("log-prefix", "I0521 12:04:45.883483 1509 file.cc:186] HloModule m", REJECT),
        ("leading-junk", "text\nHloModule m", REJECT),
        ("braces", "HloModule m {replica_count=2}", REJECT),
    ):
        yield Probe(f"header/syntax/{name}", row, head + ONE, expected)
    for name, tail in (("end", ""), ("newline", "\n"), ("attributes", ", replica_count=2\n")):
        yield Probe(f"header/alone/{name}", row, f"HloModule m{tail}", REJECT)


def probes() -> Iterator[Probe]:
    yield from separators()
    for name, (accepted, rejected) in SIMPLE.items():
        yield from table(f"header/{name}", f"2:{name}", lambda value, name=name: one(f"{name}={value}"), accepted, rejected)
    yield from table("header/alias", "2:input_output_alias", lambda value: one(f"input_output_alias={value}"), ALIAS_OK, ALIAS_WRONG)
    for value, expected in PAIR_ALIASES:
        yield Probe(f"header/alias-of-tuple/{slug(value)}", "2:input_output_alias", pair(f"input_output_alias={value}"), expected)
    for value, expected in DONORS:
        yield Probe(f"header/donor/{slug(value)}", "2:buffer_donor", pair(f"buffer_donor={value}"), expected)
    yield Probe(
        "header/donor-and-alias", "2:buffer_donor",
        pair("input_output_alias={ {0}: (0, {}) }, buffer_donor={ (0, {}) }"), "",
    )
    row = "2:entry_computation_layout"
    yield from table("header/entry-layout", row, lambda value: one(f"entry_computation_layout={value}"), LAYOUTS_OK, LAYOUTS_WRONG)
    row = "2:origin_recovery_table"
    yield from table("header/recovery", row, lambda value: one(f"origin_recovery_table={value}"), RECOVERY_OK, RECOVERY_WRONG)
    yield from table("header/unknown", "2:unknown attribute", one, (), UNKNOWN)
    everything = (
        "is_scheduled=true, input_output_alias={ {}: (0, {}, may-alias) }, buffer_donor={ (0, {}) }, "
        "alias_passthrough_params=true, entry_computation_layout={(f32[2]{0})->f32[2]{0}}, "
        "allow_spmd_sharding_propagation_to_parameters={true}, allow_spmd_sharding_propagation_to_output={true}, "
        'replica_count=2, num_partitions=4, frontend_attributes={a="b"}'
    )
    yield Probe("header/all-in-print-order", "2:header syntax", one(everything), "")
    without_donor = everything.replace(" buffer_donor={ (0, {}) },", "")
    yield Probe("header/all-but-donor", "2:header syntax", one(without_donor), ACCEPT)
    backwards = ", ".join(reversed(without_donor.replace("}, may", "}; may").replace("(0, {}", "(0; {}").split(", "))).replace(";", ",")
    yield Probe("header/all-reversed", "2:header syntax", one(backwards), ACCEPT)
