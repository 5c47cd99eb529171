"""The text of configs: places of faults, recognised forms, round trips."""

import pickle
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import hlofast
from hlofast.config import Config, ConfigError, PartitionSpec
from test_config import CONFIGS, SMALL, loads

FAULTS = {
    "no colon": ("a: 1\nb 2\n", 2, 2, "missing-colon", "expected ': ' between a path and"),
    "no space": ("a:1", 1, 2, "missing-colon", "expected ': '"),
    "empty line": ("a: 1\n\nb: 2\n", 2, 1, "missing-path", "an empty line"),
    "only a line end": ("\n", 1, 1, "missing-path", "an empty line"),
    "no path": (": 1", 1, 1, "invalid-path", "expected a name, found ':'"),
    "number for a name": ("a.1: 1", 1, 3, "invalid-path", "expected a name, found '1'"),
    "two dots": ("a..b: 1", 1, 3, "invalid-path", "expected a name, found '.'"),
    "nothing in brackets": ("a[]: 1", 1, 2, "invalid-path", "brackets without a key"),
    "open bracket": ("a[0: 1", 1, 4, "invalid-path", "expected ']'"),
    "open key": ("a['b: 1", 1, 3, "unclosed-string", "unterminated string"),
    "list as key": ("a[[1]]: 1", 1, 3, "unhashable-key", "a list cannot be a key"),
    "no value": ("a: ", 1, 4, "missing-value", "missing value"),
    "no value, more lines": ("a: \nb: 1", 1, 4, "missing-value", "missing value"),
    "open string": ("a: 1\nb: 'x\nc: 2", 2, 4, "unclosed-string", "unterminated string"),
    "unknown escape": (r"a: 'x\q'", 1, 6, "invalid-escape", r"invalid escape \q"),
    "short escape": (r"a: '\x4'", 1, 5, "invalid-escape", r"invalid escape \x"),
    "beyond unicode": (r"a: '\U00110000'", 1, 5, "invalid-escape", "is beyond Unicode"),
    "escape in bytes": (r"a: b'\u0041'", 1, 6, "invalid-escape", r"invalid escape"),
    "text in bytes": ("a: b'é€'", 1, 4, "invalid-value", "only contain characters up to"),
    "raw control": ("a: 'x\ty'", 1, 6, "control-character", "must be escaped in a string"),
    "open tuple": ("b: 1\na: (1, (2, 3)", 2, 4, "unclosed-bracket", "unclosed '('"),
    "open call": ("a: Foo(b=[1)", 1, 12, "unclosed-bracket", "found ')', expected ']'"),
    "no comma": ("a: (1 2)", 1, 6, "missing-comma", "expected a comma or ')'"),
    "no tuple": ("a: (1)", 1, 6, "missing-comma", "a tuple of one item needs a comma"),
    "no key": ("a: {'x': 1, 'y'}", 1, 16, "missing-colon", "expected ': ' after a key"),
    "same key": ("a: {'x': 1, 'x': 2}", 1, 13, "duplicate-key", "duplicate key"),
    "leading zero": ("a: 007", 1, 4, "invalid-number", "a leading zero"),
    "long number": (f"a: {'9' * 5000}", 1, 4, "too-large", "a number of 5,000 characters"),
    "two values": ("a: 1 2", 1, 5, "trailing-text", "unexpected text after the value"),
    "bare words": ("a: some words", 1, 8, "trailing-text", "unexpected text after the value"),
    "operator": ("a: +1", 1, 4, "invalid-value", "a value cannot start with '+'"),
    "spec of a number": (
        "a: PartitionSpec(1)",
        1,
        18,
        "invalid-value",
        "a dimension must be None",
    ),
    "same path": ("a.b: 1\nc: 2\na.b: 3", 3, 1, "duplicate-path", "a.b is already set in line 1"),
    "same key twice": ("a[1]: 1\na[True]: 2", 2, 1, "duplicate-path", "already set in line 1"),
    "value under a value": ("a: 1\na.b: 2", 2, 1, "duplicate-path", "a already has a value, in"),
    "value over values": (
        "a.b.c: 1\na.b: 2",
        2,
        1,
        "duplicate-path",
        "a.b is already set in line 1",
    ),
    "names and brackets": ("a.b: 1\na['c']: 2", 2, 1, "mixed-keys", "a mixes names and keys in"),
    "mixed line ends": (
        "a: 1\r\nb: 2\nc: 3\r\n",
        2,
        1,
        "invalid-line-end",
        "other lines with CRLF",
    ),
    "indented": ("a: 1\n  b: 2", 1, 5, "trailing-text", "unexpected text after the value"),
    "nested too deep": (f"a: {'(' * 200}", 1, 68, "too-deep", "more than 64 nested"),
    "object nested too deep": (f"a: f{'(' * 200}", 1, 69, "too-deep", "more than 64 nested"),
    "members too deep": (f"a: {'<A.B: ' * 200}1", 1, None, "too-deep", "more than 64 nested"),
    "path too deep": (f"a{'.b' * 200}: 1", 1, 200, "too-deep", "a path of more than 100 keys"),
}


class TestFaults:
    @pytest.mark.parametrize("name", FAULTS)
    def test_place_and_reason(self, name: str) -> None:
        text, line, column, kind, message = FAULTS[name]
        with pytest.raises(ConfigError) as caught:
            hlofast.config.loads(text, path="trainer.txt")
        error = caught.value
        assert (error.line, error.kind) == (line, kind)
        assert column is None or error.column == column
        assert message in error.message
        assert str(error).startswith(f"trainer.txt:{line}:{error.column}: error: ")
        marked, carets = error.excerpt.split("\n")
        assert marked.startswith(f" {line} | ") and carets.strip(" |^") == ""
        if len(text) < 100:
            begin = carets.index("^")
            offset = len(text.encode()[: error.offset].decode().rpartition("\n")[2])
            assert begin == len(f" {line} | ") + offset

    def test_it_is_a_parse_error_that_can_be_sent_around(self) -> None:
        with pytest.raises(hlofast.ParseError) as caught:
            loads("a: (")
        again = pickle.loads(pickle.dumps(caught.value))
        assert type(again) is ConfigError and str(again) == str(caught.value)
        assert repr(again).startswith("ConfigError('unclosed-bracket'")

    def test_bytes_that_are_no_text(self) -> None:
        with pytest.raises(ConfigError) as caught:
            loads(b"a: 'x'\nb: '\xff'")
        error = caught.value
        assert (error.line, error.column, error.kind) == (2, 5, "invalid-utf-8")

    def test_long_lines_are_cut_round_the_place(self) -> None:
        with pytest.raises(ConfigError) as caught:
            loads(f"a: ('{'x' * 5000}' 1, '{'y' * 5000}')")
        marked, carets = caught.value.excerpt.split("\n")
        assert len(marked) < 120 and marked[carets.index("^")] == " "
        assert "x' 1, 'y" in marked

    def test_a_text_that_is_too_large(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("hlofast.config.axlearn._text.MOST_BYTES", 100)
        with pytest.raises(ConfigError, match="larger than 100 bytes"):
            loads(SMALL)

    def test_work_grows_with_the_text_only(self) -> None:
        many = "".join(f"a[{index}].b['c']: 'd'\n" for index in range(5_000))
        assert len(loads(many)["a"]) == 5_000
        wide = "a: {" + ", ".join(f"'{index}': [1, 2]" for index in range(5_000)) + "}"
        assert len(loads(wide)["a"]) == 5_000
        for hostile in ("a: '" + "\\" * 100_001, "a: " + "<A.B: " * 60 + "(" * 3 + ">" * 2_000):
            with pytest.raises(ConfigError):
                loads(hostile)


class TestRecognition:
    @pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
    def test_configs(self, path: Path) -> None:
        assert hlofast.config.is_config(path.read_bytes())

    @pytest.mark.parametrize(
        "text",
        [
            "",
            "\n",
            "HloModule m\n\nENTRY e {\n}\n",
            "a = 1\n",
            "Error: it failed\n",
            "{}",
            "\x00\xff",
        ],
    )
    def test_other_texts(self, text: str) -> None:
        assert not hlofast.config.is_config(text)
        assert not hlofast.config.is_config(text.encode())

    def test_dumps(self, train_step: Path) -> None:
        assert not hlofast.config.is_config(train_step.read_bytes())

    def test_a_line_that_the_sample_cuts(self) -> None:
        assert hlofast.config.is_config("a: 1\nb: '" + "x" * 100_000 + "'")


NAMES = st.from_regex(r"[a-z_][a-z0-9_]{0,5}", fullmatch=True)
AXES = st.sampled_from(["data", "fsdp", "model"])
SPECS = st.lists(
    st.none() | AXES | st.lists(AXES, min_size=2, max_size=3, unique=True).map(tuple), max_size=4
).map(lambda dimensions: PartitionSpec(*dimensions))
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats()
    | st.text()
    | st.binary()
    | SPECS
)
KEYS = st.recursive(
    st.none() | st.integers() | st.text() | st.booleans(),
    lambda inner: st.lists(inner, max_size=3).map(tuple),
    max_leaves=4,
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.dictionaries(NAMES, inner, min_size=1, max_size=4).map(lambda d: ("config", d))
        | st.dictionaries(KEYS, inner, min_size=1, max_size=4).map(lambda d: ("dict", d))
        | st.lists(inner, min_size=1, max_size=3).map(lambda items: ("list", items))
    ),
    max_leaves=20,
)


def printed(path: str, value: Any) -> list[tuple[str, Any]]:
    """The text of `debug_string` for nested configs, dictionaries and lists."""
    kind, inner = value if isinstance(value, tuple) and len(value) == 2 else (None, None)
    if kind == "config":
        pairs = [(f"{path}.{name}" if path else name, inner[name]) for name in sorted(inner)]
    elif kind == "dict":
        pairs = [(f"{path}[{key!r}]", item) for key, item in inner.items()]
    elif kind == "list":
        pairs = [(f"{path}[{index}]", item) for index, item in enumerate(inner)]
    else:
        return [(path, value)]
    return [row for name, item in pairs for row in printed(name, item)]


def same(value: Any, other: Any) -> bool:
    return repr(value) == repr(other) and type(value) is type(other)


def config_or_error(text: str | bytes) -> Config | ConfigError:
    try:
        return loads(text)
    except ConfigError as error:
        return error


class TestRoundTrips:
    @settings(max_examples=60)
    @given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=5), st.booleans())
    def test_what_is_printed_is_read(self, fields: dict[str, Any], ends: bool) -> None:
        rows = printed("", ("config", fields))
        text = "\n".join(f"{path}: {value!r}" for path, value in rows) + ("\n" if ends else "")
        config = loads(text)
        assert config.to_text() == text
        read = list(config.leaves())
        assert [path for path, _ in read] == [path for path, _ in rows]
        assert all(same(value, expected) for (_, value), (_, expected) in zip(read, rows))
        for path, expected in rows:
            assert same(config[path], expected)

    @settings(max_examples=40)
    @given(st.dictionaries(NAMES, VALUES, min_size=1, max_size=4))
    def test_a_tree_built_by_edits_prints_the_same(self, fields: dict[str, Any]) -> None:
        def node(value: Any) -> Any:
            kind, inner = value if isinstance(value, tuple) and len(value) == 2 else (None, None)
            if kind == "config":
                return Config.of(**{name: node(item) for name, item in inner.items()})
            if kind == "dict":
                return {key: node(item) for key, item in inner.items()}
            if kind == "list":
                return [node(item) for item in inner]
            return value

        rows = printed("", ("config", fields))
        text = "".join(f"{path}: {value!r}\n" for path, value in rows)
        config = Config.of()
        for name, value in reversed(fields.items()):
            config = config.with_value(name, node(value))
        assert config.to_text() == text
        assert len(config.diff(loads(text))) == 0

    @given(st.binary(max_size=200) | st.text(max_size=200))
    def test_no_input_does_anything_but_raise_config_errors(self, text: str | bytes) -> None:
        read = config_or_error(text)
        if isinstance(read, ConfigError):
            assert read.line >= 1 and read.column >= 1 and str(read)
        else:
            assert read.to_text() == (text if isinstance(text, str) else text.decode())
        hlofast.config.is_config(text)

    @given(st.data())
    def test_damaged_configs(self, data: st.DataObject) -> None:
        path = data.draw(st.sampled_from(CONFIGS))
        text = path.read_bytes().decode()
        at = data.draw(st.integers(0, len(text)))
        gone = data.draw(st.integers(0, 3))
        put = data.draw(
            st.sampled_from(
                ["", "'", '"', "(", ")", "[", "]", "<", ">", "\n", ": ", "\\", ",", "{", "1"]
            )
        )
        damaged = text[:at] + put + text[at + gone :]
        read = config_or_error(damaged)
        if isinstance(read, ConfigError):
            assert 0 <= read.offset <= read.end_offset
            assert read.line <= damaged.count("\n") + 1
        else:
            assert read.to_text() == damaged
