"""Section 2: the stack frame tables between header and first computation."""

from __future__ import annotations

from collections.abc import Iterator

from .base import ACCEPT, REJECT, Probe

FILES = 'FileNames\n1 "a.py"\n2 "b.py"\n'
FUNCTIONS = 'FunctionNames\n1 "main"\n2 "main.<locals>.f"\n'
LOCATIONS = (
    "FileLocations\n1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=2 end_column=9}\n"
    "2 {file_name_id=2 function_name_id=2 line=4 end_line=4 column=1 end_column=5}\n"
)
FRAMES = "StackFrames\n1 {file_location_id=1 parent_frame_id=1}\n2 {file_location_id=2 parent_frame_id=2}\n"
ALL = f"{FILES}\n{FUNCTIONS}\n{LOCATIONS}\n{FRAMES}"
LOCATION = "1 {file_name_id=1 function_name_id=1 line=3 end_line=3 column=2 end_column=9}"


def text(tables: str, metadata: str = "", header: str = "") -> str:
    tail = f", metadata={{{metadata}}}" if metadata else ""
    return (
        f"HloModule m{header}\n\n{tables}\n\nENTRY e {{\n  p0 = f32[2] parameter(0)\n"
        f"  ROOT r = f32[2] negate(p0){tail}\n}}\n"
    )


def sections() -> Iterator[tuple[str, str, str]]:
    """Which sections, in which order."""
    yield "all", ALL, ACCEPT
    yield "one-line", ALL.replace("\n", " "), ACCEPT
    yield "empty-sections", "FileNames\n\nFunctionNames\n\nFileLocations\n\nStackFrames\n", ACCEPT
    yield "only-file-names", FILES, REJECT
    yield "without-function-names", FILES + LOCATIONS + FRAMES, REJECT
    yield "without-file-locations", FILES + FUNCTIONS + FRAMES, REJECT
    yield "without-stack-frames", FILES + FUNCTIONS + LOCATIONS, REJECT
    yield "without-file-names", FUNCTIONS + LOCATIONS + FRAMES, REJECT
    yield "only-stack-frames", FRAMES, REJECT
    yield "other-order", FUNCTIONS + FILES + LOCATIONS + FRAMES, REJECT
    yield "frames-before-locations", FILES + FUNCTIONS + FRAMES + LOCATIONS, REJECT
    yield "twice", ALL + ALL, REJECT
    yield "comments", ALL.replace("FunctionNames", "/* c */ FunctionNames // d\n"), ACCEPT
    yield "lower-case", ALL.replace("FileNames", "filenames"), REJECT
    yield "colon-after-keyword", ALL.replace("FileNames", "FileNames:"), REJECT
    yield "comma-between-entries", ALL.replace('"a.py"\n', '"a.py",\n'), REJECT


def entries() -> Iterator[tuple[str, str, str]]:
    """Ids and fields of single entries."""
    for name, old, new, expected in (
        ("file-id-gap", '2 "b.py"', '7 "b.py"', ACCEPT),
        ("file-id-zero", '1 "a.py"', '0 "a.py"', ACCEPT),
        ("file-id-negative", '1 "a.py"', '-1 "a.py"', ""),
        ("file-id-twice", '2 "b.py"', '1 "b.py"', ACCEPT),
        ("file-without-id", '2 "b.py"', '"b.py"', REJECT),
        ("file-name-single-quotes", '"a.py"', "'a.py'", ACCEPT),
        ("file-name-unquoted", '"a.py"', "a", REJECT),
        ("file-name-escaped", '"a.py"', r'"a\"b\303\251.py"', ACCEPT),
        ("file-name-empty", '"a.py"', '""', ACCEPT),
        ("function-without-string", '1 "main"', "1", ""),
        ("function-three-ids", '1 "main"', '1 2 3 "main"', ""),
        ("function-last-without-string", '"main.<locals>.f"', "", REJECT),
        ("file-two-strings", '"a.py"', '"a.py" "c.py"', REJECT),
        ("location-two-ids", "2 {file_name_id", "2 3 {file_name_id", ""),
        ("function-id-float", '1 "main"', '1.0 "main"', REJECT),
        ("location-id-gap", "2 {file_name_id", "9 {file_name_id", ACCEPT),
        ("location-commas", "line=3 end_line=3 column=2", "line=3, end_line=3, column=2", ACCEPT),
        ("location-other-order", "line=3 end_line=3 column=2 end_column=9", "end_column=9 column=2 end_line=3 line=3", ACCEPT),
        ("location-without-column", " column=2", "", REJECT),
        ("location-without-end-line", " end_line=3", "", REJECT),
        ("location-without-file", "{file_name_id=1 ", "{", REJECT),
        ("location-unknown-field", " column=2", " column=2 foo=1", REJECT),
        ("location-field-twice", " column=2", " column=2 column=2", REJECT),
        ("location-string", "line=3", 'line="3"', REJECT),
        ("location-line-zero", "line=3", "line=0", ""),
        ("location-line-negative", "line=3", "line=-3", ""),
        ("location-line-2^31", " line=3", " line=2147483648", ""),
        ("location-file-out-of-range", "file_name_id=1", "file_name_id=9", ""),
        ("location-function-out-of-range", "function_name_id=1", "function_name_id=9", ""),
        ("location-file-zero", "file_name_id=1", "file_name_id=0", ""),
        ("location-parentheses", LOCATION, LOCATION.replace("{", "(").replace("}", ")"), REJECT),
        ("location-empty", LOCATION, "1 {}", REJECT),
        ("location-unclosed", LOCATION, LOCATION[:-1], REJECT),
        ("frame-id-gap", "2 {file_location_id", "5 {file_location_id", ACCEPT),
        ("frame-without-parent", " parent_frame_id=2", "", REJECT),
        ("frame-without-location", "{file_location_id=2 ", "{", REJECT),
        ("frame-parent-zero", "parent_frame_id=2", "parent_frame_id=0", ""),
        ("frame-parent-itself", "parent_frame_id=2", "parent_frame_id=3", ""),
        ("frame-parent-out-of-range", "parent_frame_id=2", "parent_frame_id=9", ""),
        ("frame-parent-negative", "parent_frame_id=2", "parent_frame_id=-1", ""),
        ("frame-location-out-of-range", "file_location_id=2", "file_location_id=9", ""),
        ("frame-location-zero", "file_location_id=2", "file_location_id=0", ""),
        ("frame-unknown-field", "{file_location_id=2", "{foo=1 file_location_id=2", REJECT),
        ("frame-comma", "file_location_id=2 parent", "file_location_id=2, parent", ACCEPT),
        ("frame-twice-same", FRAMES.split("\n")[2], FRAMES.split("\n")[1], ""),
        ("frame-cycle", "1 {file_location_id=1 parent_frame_id=1}", "1 {file_location_id=1 parent_frame_id=3}", ""),
        ("frame-forward-parent", "1 {file_location_id=1 parent_frame_id=1}", "1 {file_location_id=1 parent_frame_id=4}", ""),
    ):
        assert old in ALL, name
        yield name, ALL.replace(old, new, 1), expected


def probes() -> Iterator[Probe]:
    row = "2:stack frame tables"
    for name, tables, expected in (*sections(), *entries()):
        yield Probe(f"tables/{name}", row, text(tables, "stack_frame_id=2"), expected)
    for value, expected in (
        ("0", ACCEPT), ("1", ACCEPT), ("2", ACCEPT), ("3", ACCEPT), ("99", ACCEPT), ("-1", ""),
        ("2147483647", ACCEPT), ("2147483648", REJECT), ("-2147483648", ""),
    ):
        yield Probe(f"tables/reference/{value}", row, text(ALL, f"stack_frame_id={value}"), expected)
        yield Probe(f"tables/reference-without-tables/{value}", row, text("", f"stack_frame_id={value}"), expected)
    yield Probe("tables/after-attributes", row, text(ALL, header=", replica_count=2"), ACCEPT)
    after = text("").rstrip() + "\n\n" + ALL
    yield Probe("tables/after-computations", row, after, REJECT)
    yield Probe("tables/headerless", row, text(ALL).removeprefix("HloModule m\n\n"), REJECT)
    yield Probe("tables/before-attributes", row, text(ALL).replace("HloModule m", "HloModule m\n" + ALL + ", replica_count=2", 1), REJECT)
