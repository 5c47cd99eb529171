"""Dump directories made of real dumps, and the rows that a scan must give for every file."""

import gzip
import io
import os
import random
import re
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

FIXTURES = Path(__file__).parent / "fixtures"
MAX_TEXT_BYTES = 8 << 20
"""The scans of the tests take no more out of a compressed file."""
PROTO = "read"
"""What becomes of binary modules."""


class Expected(NamedTuple):
    """What the table `files` has to say of a file."""

    kind: str
    status: str
    stage: str = ""
    reason: str = ""
    """A part of the reason."""


class Text(NamedTuple):
    """One program: its module before and after optimisation."""

    name: str
    backend: str
    before: bytes
    after: bytes


def fixture_texts(largest: int = 200_000) -> list[Text]:
    """The committed pairs of dumps below a size."""
    texts = []
    for path in sorted(FIXTURES.glob("dumps/*.after*.txt.gz")):
        name = path.name.split(".")[0]
        before = FIXTURES / "dumps" / f"{name}.before.txt.gz"
        after = gzip.decompress(path.read_bytes())
        if before.exists() and len(after) <= largest:
            backend = name.split("_")[0]
            texts.append(Text(name, backend, gzip.decompress(before.read_bytes()), after))
    assert len(texts) > 5
    return texts


def mixed_texts(count: int) -> list[Text]:
    """Some of them, of CPU and TPU by turns."""
    texts = fixture_texts()
    cpu = [text for text in texts if text.backend == "cpu"]
    tpu = [text for text in texts if text.backend == "tpu"]
    return [text for pair in zip(cpu, tpu, strict=False) for text in pair][:count]


OTHERS: dict[str, tuple[bytes, Expected]] = {
    "debug_options": (b"xla_dump_to: x\n", Expected("config", "skipped")),
    "config.pbtxt": (b"seed: 1\n", Expected("config", "skipped")),
    "thunk_sequence.txt": (b"000: kGemm\n", Expected("schedule", "skipped")),
    "priority_fusion_dump.pb": (b"\x0a\x01x\x00", Expected("schedule", "skipped")),
    "ir-no-opt.ll": (b"; ModuleID = 'f'\n", Expected("code", "skipped")),
    "__wrapped_copy.1.ir-with-opt.ll": (b"; ModuleID = 'f'\n", Expected("code", "skipped")),
    "ptx": (b".version 8.0\n", Expected("code", "skipped")),
    "obj-file.__wrapped_copy.1.o": (b"\x7fELF\x02\x01", Expected("code", "skipped")),
    "fusion.1.ttir.txt": (b"module {\n}\n", Expected("code", "skipped")),
    "after_optimizations.dot": (b"digraph G {}\n", Expected("render", "skipped", "after")),
    "after_optimizations.html": (b"<html></html>\n", Expected("render", "skipped", "after")),
    "execution_0001.hlo_snapshot.pb": (b"\x0a\x03abc", Expected("snapshot", "skipped")),
}


TARGET = b"""tpu_topology_args {
  version: TPU_VERSION_VIPERFISH
  variant: "lite"
  chip_config_name: "default"
}
"""
"""What libtpu writes for v5e, in part."""


class Tree:
    """A folder under construction."""

    def __init__(self, root: Path, seed: int = 0) -> None:
        self.root = root
        self.random = random.Random(seed)
        self.expected: dict[str, Expected] = {}
        self.text_bytes = 0

    def put(self, name: str, data: bytes, expected: Expected) -> Path:
        """One file."""
        path = self.root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
        self.expected[name] = expected
        if expected.status == "read":
            self.text_bytes += len(data)
        return path

    def program(self, folder: str, number: int, text: Text, passes: int, stamp: str = "") -> None:
        """All that XLA leaves behind of one program."""
        changelist = ".cl_933746096" if text.backend == "tpu" else ""
        stem = f"{folder}{stamp}module_{number:04}.jit_{text.name}{changelist}"
        after = "after_optimizations" if text.backend == "tpu" else "cpu_after_optimizations"
        self.put(f"{stem}.before_optimizations.txt", text.before, module("before"))
        self.put(f"{stem}.{after}.txt", text.after, module("after"))
        for step in range(passes):
            name = f"{stem}.{step:04}.pipe-line_{step}.after_a-{step}.before_b_{step}.txt"
            self.put(name, text.before if step < passes // 2 else text.after, module("pass"))
        if text.backend == "tpu":
            self.put(f"{stem}.after_codegen.txt", text.after, module("codegen"))
            self.put(
                f"{stem}.target_arguments.txt",
                TARGET,
                Expected("config", "skipped"),
            )
        others = self.random.sample(sorted(OTHERS), 3)
        for suffix in others:
            self.put(f"{stem}.{suffix}", *OTHERS[suffix])

    def real_folders(self, folder: str) -> None:
        """What JAX dumped of a train step for CPU and TPU: memory files and protos beside it."""
        for path in sorted(FIXTURES.glob("dump_folders/*/*")):
            stage = "before" if "before_opt" in path.name else "after"
            kind, status = "module", "read"
            if ".after_" in path.name and ".before_" in path.name:
                stage = "pass"
            elif "-" in path.name.split("optimizations")[1]:
                kind, status = "memory", "skipped"
            if ".hlo.pb" in path.name:
                status = PROTO
            name = f"{folder}{path.parent.name}/{path.name}"
            self.put(name, path.read_bytes(), Expected(kind, status, stage))

    def dumped(self, folder: str, source: Path, damage: int = 25) -> None:
        """All files of `source`, which XLA wrote, but of passes only the texts.

        Of every `damage` of those one is cut off, one packed, and one packed and cut off.
        """
        passes = 0
        for path in sorted(path for path in source.rglob("*") if path.is_file()):
            name, expected = str(path.relative_to(source)), of_xla(path.name)
            if expected.stage not in ("pass", "in-pass"):
                self.put(f"{folder}{name}", path.read_bytes(), expected)
            elif name.endswith(".txt"):
                passes, text = passes + 1, path.read_bytes()
                failed = Expected("module", "failed", expected.stage)
                match passes % damage:
                    case 1:
                        cut = text[: text.rindex(b"ROOT ") + len("ROOT ")]
                        self.put(f"{folder}{name}", cut, failed)
                    case 2:
                        packed = gzip.compress(text, 6)
                        self.put(f"{folder}{name}.gz", packed, expected)
                    case 3:
                        packed = gzip.compress(text, 6)
                        self.put(f"{folder}{name}.gz", packed[: len(packed) // 2], failed)
                    case _:
                        self.put(f"{folder}{name}", text, expected)

    def odd_files(self, folder: str, text: Text) -> None:
        """What no dump should have and some do."""
        packed = gzip.compress(text.after)
        stem = f"{folder}module_0900.odd"

        def failed(reason: str) -> Expected:
            return Expected("module", "failed", "after", reason)

        after = f"{stem}.after_optimizations"
        self.put(f"{after}.txt.gz", packed[: len(packed) // 2], failed("ends too early"))
        cut = text.after[: text.after.index(b"parameter(0)") + 6]
        self.put(f"{folder}module_0901.cut.after_optimizations.txt", cut, failed(""))
        self.put(f"{folder}module_0902.png.after_optimizations.txt", PNG, failed("PNG"))
        self.put(f"{folder}module_0903.none.after_optimizations.txt", b"", failed("empty"))
        bomb = gzip.compress(b"HloModule m\n" + bytes(4 * MAX_TEXT_BYTES), 9)
        reason = f"more than {MAX_TEXT_BYTES}"
        self.put(f"{folder}module_0904.bomb.after_optimizations.txt.gz", bomb, failed(reason))
        damaged = bytearray(packed)
        damaged[len(damaged) // 2] ^= 0xFF
        self.put(f"{folder}module_0905.bad.after_optimizations.txt.gz", bytes(damaged), failed(""))
        json = Expected("module", "failed", "after", "no HLO module")
        self.put(f"{folder}module_0906.json.after_optimizations.txt", b'{"a": [1, 2]}\n', json)
        (proto,) = FIXTURES.glob("dump_folders/cpu/*after_optimizations.hlo.pb.gz")
        whole = gzip.decompress(proto.read_bytes())
        for number, share in ((909, 0.1), (910, 0.5)):
            name = f"{folder}module_{number:04}.proto.after_optimizations.hlo.pb"
            self.put(name, whole[: int(share * len(whole))], failed("claims"))
        self.put(f"{folder}renamed.txt", text.after, Expected("module", "read"))
        self.put(
            f"{folder}notes.md", b"# Notes\nrun 7\n", Expected("other", "skipped", "", "not HLO")
        )
        self.put(
            f"{folder}data.bin", bytes(range(256)), Expected("other", "skipped", "", "not HLO")
        )
        self.put(f"{folder}config.pbtxt.bak", text.before, Expected("module", "read"))
        self.put(f"{folder}debug_options", text.after, Expected("module", "read"))
        with tarfile.open(fileobj=(archive := io.BytesIO()), mode="w:gz") as tar:
            tar.addfile(tarfile.TarInfo("empty"))
        dumps = Expected("archive", "skipped")
        self.put(f"{folder}dumps.tar.gz", archive.getvalue(), dumps)
        ir = b"module @jit_f {\n}\n"
        self.put(f"{folder}jax_ir0001_jit_f_compile.mlir", ir, Expected("ir", "skipped"))
        inputs = f"{folder}module_0907.jit_f.cl_7/"
        self.put(f"{inputs}module.mlir", ir, Expected("ir", "skipped"))
        self.put(f"{inputs}compile_options.pb", b"\x08\x01", Expected("config", "skipped"))
        tuner = f"{folder}module_0908.jit_f.autotuner_1.gemm.before.txt"
        self.put(tuner, text.before, Expected("fragment", "read"))
        framed = b"".join(
            b"*** Begin module_%04d.logged.after_optimizations.txt ***\n%b\n*** End module_%04d."
            b"logged.after_optimizations.txt ***\n" % (number, text.after, number)
            for number in (11, 12)
        )
        log = b"I0000 start\n" + framed
        self.put(f"{folder}stdout.log", log, Expected("log", "read"))
        chatter = b"I1122 00:00:00.000000 7 train.py:3] step\n" * 1000
        self.put(f"{folder}late.log", chatter + framed, Expected("log", "read"))
        self.put(f"{folder}chatter.log", chatter, Expected("other", "skipped", "", "other text"))


PNG = b"\x89PNG\r\n\x1a\n\x00\x00\x00\rIHDR\x00\x00\x00\x01"


OF_XLA = {
    r"\.before_optimizations\.(txt|hlo\.pb)": Expected("module", "read", "before"),
    r"\.(cpu_)?after_optimizations\.(txt|hlo\.pb)": Expected("module", "read", "after"),
    r"\.oom_intermediate_module\.(txt|hlo\.pb)": Expected("module", "read", "after"),
    r"\.after_codegen\.(txt|hlo\.pb)": Expected("module", "read", "codegen"),
    r"\.after_optimizations_after_buffer_assignment\.(txt|hlo\.pb)": Expected(
        "module", "read", "after-buffer-assignment"
    ),
    r"\.after_optimizations_before_buffer_assignment\.(txt|hlo\.pb)": Expected(
        "module", "read", "after-before-buffer-assignment"
    ),
    r"\.\d{4}\..*\.after_[^.]*\.before_[^.]*\.(txt|hlo\.pb)": Expected("module", "read", "pass"),
    r"\.\d{4}\..*\.(txt|hlo\.pb)": Expected("module", "read", "in-pass"),
    r".*-(buffer-assignment|buffer-assignment-values|live-range|memory-usage-report)\.(txt|pb)": (
        Expected("memory", "skipped", "after")
    ),
    r".*\.(ll|o)": Expected("code", "skipped"),
    r"(.*\.|)(debug_options|flagfile)": Expected("config", "skipped"),
    r"(.*\.|)(basic_compiler_metadata|execution_options|hlo_module_config|target_arguments"
    r"|tpu_comp_env|transfer_stats)\.txt": Expected("config", "skipped"),
    r"(compile_options|topology)\.pb": Expected("config", "skipped"),
    r".*\.mlir": Expected("ir", "skipped"),
}
"""What the ends of names say that XLA of JAX 0.10 gives to the files of CPU and TPU programs."""


def of_xla(name: str) -> Expected:
    """What is known of a file that XLA wrote under this name."""
    suffix = re.sub(r"^module_\d+\.[^.]*(\.cl_\d+)?(?=\.)", "", name)
    for pattern, expected in OF_XLA.items():
        if re.fullmatch(pattern, suffix):
            return expected
    raise ValueError(f"nothing is known of {name}")


def module(stage: str) -> Expected:
    """A module that can be read."""
    return Expected("module", "read", stage)


def grow(
    root: Path,
    texts: Iterable[Text],
    *,
    hosts: int = 2,
    passes: int = 2,
    rounds: int = 1,
    odd: bool = True,
    report: Callable[[str], None] = lambda line: None,
) -> Tree:
    """A tree of `hosts` with every program `rounds` times on each."""
    tree = Tree(root)
    texts = list(texts)
    for host in range(hosts):
        folder = f"host-{host}/xla_dump/"
        number = 0
        for turn in range(rounds):
            for text in texts:
                tree.program(folder, number, text, passes)
                number += 1
        report(f"{folder}: {number} programs")
        schedule = f"{folder}jit_{texts[0].name}.schedule.txt"
        tree.put(schedule, b"entry:\n", Expected("schedule", "skipped"))
        tree.put(f"{folder}flagfile", b"--a=b\n", Expected("config", "skipped"))
    for text in texts[:2]:
        # --xla_dump_hlo_to_subfolder, and --xla_dump_include_timestamp.
        tree.program(f"split/jit_{text.name}/worker-3_4711/", 1, text, 0)
        tree.program("stamped/", 2, text, 1, "1700000000000001.")
    tree.real_folders("real/")
    if odd:
        tree.odd_files("odd/", min(texts, key=lambda text: len(text.after)))
        make_traps(tree)
    return tree


def make_traps(tree: Tree) -> None:
    """Links that lead back, to nothing and to another folder, and a pipe."""
    traps = tree.root / "traps"
    traps.mkdir(parents=True)
    skipped = Expected("folder", "skipped", "", "already read")
    (traps / "loop").symlink_to("..", target_is_directory=True)
    tree.expected["traps/loop"] = skipped
    (traps / "real").symlink_to(tree.root / "real", target_is_directory=True)
    tree.expected["traps/real"] = skipped
    (traps / "gone.txt").symlink_to("nowhere")
    tree.expected["traps/gone.txt"] = Expected("other", "failed", "", "No such file")
    os.mkfifo(traps / "module_0001.f.after_optimizations.txt")
    tree.expected["traps/module_0001.f.after_optimizations.txt"] = Expected(
        "module", "skipped", "after", "not a file"
    )
