"""What the wheel and the source distribution must hold; fails with a list of what does not."""

import json
import os
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

MEGABYTE = 1_000_000
CHECKOUT = Path(__file__).resolve().parent.parent


def check_wheel(path: Path) -> list[str]:
    """Faults of the wheel."""
    faults = []
    if path.name.split("-")[2:4] != ["cp311", "abi3"]:
        faults.append(f"{path.name}: not a cp311-abi3 wheel")
    if path.stat().st_size >= 10 * MEGABYTE:
        faults.append(f"{path.name}: {path.stat().st_size} bytes, 10 MB are allowed")
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
        information = next(n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = Parser().parsestr(archive.read(information).decode())
        folder = information.rpartition("/")[0]
        entry_points = archive.read(f"{folder}/entry_points.txt").decode()
    compiled = [n for n in names if n.endswith((".so", ".pyd", ".dylib"))]
    if len(compiled) != 1 or ".abi3." not in compiled[0]:
        faults.append(f"compiled modules: {compiled}, expected one with the stable ABI")
    sources = {
        path.relative_to(CHECKOUT / "python").as_posix()
        for path in (CHECKOUT / "python" / "hlofast").rglob("*")
        if path.is_file() and path.suffix not in {".so", ".pyd", ".dylib", ".pyc"}
    }
    faults += [f"{name}: missing in the wheel" for name in sorted(sources - set(names))]
    required = {"hlofast/py.typed", "hlofast/_core.pyi", f"{folder}/licenses/LICENSE"}
    faults += [f"{name}: missing in the wheel" for name in sorted(required - set(names))]
    allowed = (folder + "/", "hlofast/")
    faults += [
        f"{name}: should not be in the wheel" for name in names if not name.startswith(allowed)
    ]
    for entry in ("hlofast=hlofast.__main__:main", "hlofast=hlofast.pytest_plugin"):
        if entry not in entry_points.replace(" ", ""):
            faults.append(f"entry points: {entry_points!r}, without {entry}")
    hard = [r for r in metadata.get_all("Requires-Dist", []) if "extra ==" not in r]
    if [requirement.split(">")[0].strip() for requirement in hard] != ["numpy"]:
        faults.append(f"hard dependencies: {hard}, only numpy is allowed")
    if metadata["License-Expression"] != "Apache-2.0":
        faults.append(f"License-Expression: {metadata['License-Expression']}")
    version = tomllib.loads((CHECKOUT / "Cargo.toml").read_text())["workspace"]["package"][
        "version"
    ]
    if metadata["Version"] != version:
        faults.append(f"version {metadata['Version']}, Cargo.toml says {version}")
    return faults


def check_platform(path: Path) -> list[str]:
    """Faults of the platform tag; auditwheel judges whether the symbols are those of the tag."""
    tags = path.stem.split("-")[-1].split(".")
    if not any(tag.startswith("manylinux_2_17_") for tag in tags):
        return [f"{path.name}: not a manylinux2014 wheel"]
    command = [sys.executable, "-m", "auditwheel", "show", "--json", str(path)]
    shown = subprocess.run(command, capture_output=True, text=True, check=False)
    if shown.returncode:
        return [f"auditwheel show: {shown.stderr}"]
    required = json.loads(shown.stdout)["overall_tag"]
    return [] if required in tags else [f"{path.name}: its symbols are those of {required}"]


def check_sdist(path: Path) -> list[str]:
    """Faults of the source distribution."""
    with tarfile.open(path) as archive:
        names = {name.partition("/")[2] for name in archive.getnames()}
    required = ["Cargo.lock", "Cargo.toml", "LICENSE", "README.md", "pyproject.toml"]
    required += ["rust/hlofast/Cargo.toml", "rust/hlofast-py/Cargo.toml", "python/hlofast/py.typed"]
    return [f"{name}: missing in the source distribution" for name in required if name not in names]


def check_flags() -> list[str]:
    """Build settings that would tie the wheel to one kind of processor."""
    command = ["git", "-C", str(CHECKOUT), "grep", "-nE", "target-cpu|target-feature"]
    command += ["--", "*.toml", "*.cargo/*", "build.rs", ".ci/run", "tests/run"]
    output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    lines = [*output.splitlines(), f"RUSTFLAGS={os.environ.get('RUSTFLAGS', '')}"]
    return [f"processor-specific build flag: {line}" for line in lines if "target-" in line]


def main() -> int:
    """Check the two files named on the command line."""
    wheel, sdist = map(Path, sys.argv[1:3])
    faults = check_wheel(wheel) + check_platform(wheel) + check_sdist(sdist) + check_flags()
    for fault in faults:
        print(fault, file=sys.stderr)
    print(f"{wheel.name}: {wheel.stat().st_size:,} bytes, {len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
