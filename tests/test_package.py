"""The installed package: import cost, version and metadata."""

import importlib.metadata
import importlib.resources
import subprocess
import sys

import hlofast


def modules_after(statement: str) -> set[str]:
    """Names of the modules in a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys\nprint('\\n'.join(sys.modules), file=sys.stderr)"
    command = [sys.executable, "-P", "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return set(done.stderr.split())


def test_version_is_the_distribution_version() -> None:
    assert hlofast.__version__ == importlib.metadata.version("hlofast")


def test_import_does_not_import_numpy() -> None:
    loaded = modules_after("import hlofast")
    assert "hlofast" in loaded
    assert "numpy" not in loaded


def test_package_is_typed() -> None:
    package = importlib.resources.files("hlofast")
    assert (package / "py.typed").is_file()
    assert (package / "_core.pyi").is_file()


def test_numpy_is_the_only_hard_dependency() -> None:
    requirements = importlib.metadata.requires("hlofast") or []
    hard = [requirement for requirement in requirements if "extra ==" not in requirement]
    assert [requirement.split(">")[0].strip() for requirement in hard] == ["numpy"]


def test_pytest_finds_the_fixture() -> None:
    (entry_point,) = importlib.metadata.entry_points(group="pytest11", name="hlofast")
    assert entry_point.load().hlofast_check


def test_every_public_name_exists() -> None:
    for name in hlofast.__all__:
        assert getattr(hlofast, name) is not None
    assert set(hlofast.__all__) <= set(dir(hlofast))
    # What the package imports for itself is not offered by completion.
    assert not {"TYPE_CHECKING", "Mapping", "Sequence", "annotations"} & set(dir(hlofast))
