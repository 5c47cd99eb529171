"""The part of `hlofast._core` that reads dump directories; a stub only, the code is in `_core`."""

from collections.abc import Callable, Sequence
from typing import Any, Final, final

from hlofast._core import Column, Field, Mesh, TextColumn

# (path, root, folder, name, bytes, modified, is_folder, trouble, kind, program), then
# (key, root, folder, host, module_name, files), then the number of files that are to be read.
_File = tuple[str, int, str, str, int, int, bool, tuple[bool, str] | None, int, int | None]
_Program = tuple[str, int, str, str, str, list[int]]
_Survey = tuple[list[_File], list[_Program], list[str], int]
_Read = Callable[[str, int], bytes]
_Columns = list[tuple[Field, Column | TextColumn]]

def _survey(paths: Sequence[str]) -> SurveyData:
    """Finds all files below `paths` and the programs that they belong to."""

def _survey_listing(
    entries: Sequence[tuple[str, int, int, str | None]],
    roots: Sequence[str],
    read: _Read | None = None,
) -> SurveyData:
    """Surveys files that the caller has listed below `roots`.

    An entry is a path, its size in bytes, its modification time in nanoseconds since 1970 (0 if
    unknown) and the reason it cannot be read (None if it can).

    The contents are read from disk, or by `read(path, most)`, which returns at most the first
    `most` bytes of the file. `read` may be called on any thread; its exceptions become the reasons
    that files failed.
    """

def _survey_part(part: _Survey, read: _Read | None = None) -> SurveyData:
    """Restores a survey from the result of `SurveyData.part`.

    `read` is as for `_survey_listing`. Raises `ValueError` if the parts do not fit together.
    """

def _scan_part(
    states: Sequence[tuple[str, str]],
    unchanged: Sequence[str],
    tables: Sequence[tuple[str, ScanTable]],
    size: int,
) -> ScanPart:
    """Restores a part from its contents."""

def _scan_table(bytes: bytes) -> ScanTable:
    """Restores a table from its bytes; raises `ValueError` if they are invalid."""

def _scan_words() -> tuple[list[str], list[str], list[str]]:
    """Returns the names of the tables of a scan, the kinds of files and the stages of modules."""

def _scan_fields(table: str) -> list[Field]:
    """Returns the fields of the scan table `table`.

    Raises `ValueError` for an unknown table.
    """

def _scan_rows(table: str, length: int, columns: dict[str, list[Any]]) -> ScanTable:
    """Creates a table from the values of its columns, with None for unknown or absent values.

    All values of an omitted column are unknown or absent.
    """

def _of_parquet(table: str, file: bytes, names: set[str]) -> ScanTable:
    """Reads the columns `names` of scan table `table` from a Parquet file; the values of all others
    are unknown or absent.

    Raises `ValueError` if the file is damaged.
    """

def _parquet_without(file: bytes, column: str, values: set[str]) -> tuple[int, bytes]:
    """Returns a Parquet file without the rows whose text in `column` is in `values`, and how many
    rows are left.

    Raises `ValueError` if the file is damaged.
    """

def _concatenated(parts: Sequence[ScanTable]) -> ScanTable:
    """Concatenates the rows of several tables of one kind."""

@final
class SurveyData:
    """The files below some paths, and the programs that they belong to."""

    def __len__(self) -> int: ...
    bytes: Final[int]
    """Total size of all files in bytes."""
    def paths(self) -> list[str]:
        """Returns the paths of all files."""
    def stamps(self) -> list[tuple[str, tuple[int, int]]]:
        """Returns the size in bytes and modification time (nanoseconds since 1970) of every file,
        by path.
        """
    def part(self, first: int, last: int) -> tuple[_Survey, list[int]]:
        """Returns files `first` to `last` (exclusive) as plain values for `_survey_part`, in any
        process, and the numbers of their programs in this survey.
        """
    def programs(self, modules: ScanTable | None = None) -> ScanTable:
        """Returns the table of programs.

        Programs take their figures from `modules`, the table of modules.
        """
    def program_files(self) -> list[dict[str, Any]]:
        """Returns the programs that have modules to read, each with its modules by stage."""
    def refused(self) -> list[tuple[str, str]]:
        """Returns the files and directories that cannot be opened, each with the reason."""
    def targets(self) -> list[str | None]:
        """Returns the chip that each program is compiled for, according to its files; None if they
        do not tell.
        """
    def scan(
        self,
        *,
        tables: Sequence[str],
        chips: Sequence[Any],
        devices: Sequence[int | None],
        mesh: Mesh | None,
        known: dict[str, str],
        stamps: dict[str, tuple[int, int]],
        workers: int,
        memory: int,
        max_bytes: int,
        max_text_bytes: int,
        max_seconds: float | None,
        batch_bytes: int,
    ) -> ScanData:
        """Starts reading the files.

        `devices` holds, for each program, an index into `chips`. `known` holds the states of files
        read by an earlier scan, by path. `stamps` holds sizes and modification times of files; a
        file counts as unchanged if both are equal.
        """

@final
class ScanData:
    """A running scan."""

    @property
    def is_done(self) -> bool:
        """Whether all parts were handed out."""
    def next(self, seconds: float) -> ScanPart | None:
        """Returns the next part; None if none is ready after `seconds`, or if all were handed out
        (`is_done`). The caller keeps no part that it got before, or the memory of both is in use.
        """
    def stop(self) -> ScanPart:
        """Ends the scan; returns the results that are ready as a last part."""
    def progress(self) -> tuple[int, int]:
        """Returns the number of finished files and their bytes."""

@final
class ScanPart:
    """Some of the files, with the rows of their modules."""

    def __reduce__(self) -> tuple[Any, ...]: ...
    size: Final[int]
    """Bytes of the text or of the rows, whichever is larger."""
    def states(self) -> list[tuple[str, str]]:
        """Returns the files with their states, which tell the next scan whether to read them
        again.
        """
    def unchanged(self) -> list[str]:
        """Returns the paths of unchanged files, whose rows are not included."""
    def tables(self) -> list[str]:
        """Returns the names of the tables that have rows."""
    def table(self, name: str) -> ScanTable:
        """Returns the rows of the table `name`."""

@final
class ScanTable:
    """The rows of one table."""

    def __reduce__(self) -> tuple[Any, ...]: ...
    def __len__(self) -> int: ...
    def columns(self) -> _Columns:
        """Returns fields and columns, as `hlofast.table.Table` takes them."""
    def json_lines(self, label: str | None = None) -> bytes:
        """Returns the rows as JSON, one object per line.

        With `label`, each object has a key `table` with that value.
        """
    def csv(self, header: bool) -> bytes:
        """Returns the rows as comma-separated values."""
    def parquet(self) -> bytes:
        """Returns the rows as a Parquet file."""
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
