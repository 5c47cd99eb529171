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
    """Looks at everything below `paths`."""

def _survey_listing(
    entries: Sequence[tuple[str, int, int, str | None]],
    roots: Sequence[str],
    read: _Read | None = None,
) -> SurveyData:
    """Looks at files that somebody has listed below `roots`: path, bytes, when it was written in
    nanoseconds since 1970 (0 = unknown), and why it cannot be read (None = it can).

    Their bytes are those on the disk, or what `read(path, most)` returns: the first bytes of a
    file, at most so many. It may be called on any thread; its exceptions are reasons why a file
    failed.
    """

def _survey_part(part: _Survey, read: _Read | None = None) -> SurveyData:
    """A survey again, from what `SurveyData.part` gave. `read` as for `_survey_listing`."""

def _scan_part(
    states: Sequence[tuple[str, str]],
    unchanged: Sequence[str],
    tables: Sequence[tuple[str, ScanTable]],
    size: int,
) -> ScanPart:
    """A part made of what one consists of."""

def _scan_table(bytes: bytes) -> ScanTable:
    """A table made of its bytes."""

def _scan_words() -> tuple[list[str], list[str], list[str]]:
    """The tables of a scan, then kinds of files and stages of modules."""

def _scan_fields(table: str) -> list[Field]:
    """The fields of a table of scans."""

def _scan_rows(table: str, length: int, columns: dict[str, list[Any]]) -> ScanTable:
    """A table from the values of its columns, None for what is unknown or absent; of a column that
    is not given all are.
    """

def _concatenated(parts: Sequence[ScanTable]) -> ScanTable:
    """The rows of several tables of one kind as one table."""

@final
class SurveyData:
    """The files below some paths, and the programs they belong to."""

    def __len__(self) -> int: ...
    bytes: Final[int]
    """Bytes of all files."""
    def paths(self) -> list[str]:
        """The paths of all files."""
    def stamps(self) -> list[tuple[str, tuple[int, int]]]:
        """The size of every file and when it was written, in nanoseconds since 1970, by path."""
    def part(self, first: int, last: int) -> tuple[_Survey, list[int]]:
        """Files `first` to `last` (without it) as plain values, which `_survey_part` takes in any
        process; and the numbers that their programs have here.
        """
    def programs(self, modules: ScanTable | None = None) -> ScanTable:
        """The table of programs; `modules` is the table of modules, whose figures they take
        over.
        """
    def program_files(self) -> list[dict[str, Any]]:
        """The programs that have modules to read, each with its modules by stage."""
    def refused(self) -> list[tuple[str, str]]:
        """The files and folders that cannot be opened, and why."""
    def targets(self) -> list[str | None]:
        """By program: what its files say about the chip it is for; None where they say nothing."""
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
        """Begins to read the files. `devices` has, by program, a position in `chips`; `known` what
        is known of files that have been done, by path, and `stamps` their sizes and times as far as
        those say that nothing has changed.
        """

@final
class ScanData:
    """A scan under way."""

    @property
    def is_done(self) -> bool:
        """Whether all parts were handed out."""
    def next(self, seconds: float) -> ScanPart | None:
        """The next part; None if it is not ready after `seconds`, or if there is none
        (`is_done`).
        """
    def stop(self) -> ScanPart:
        """What is ready although the part is not full, as a part; the scan is over then."""
    def progress(self) -> tuple[int, int]:
        """Files and bytes of files that are done."""

@final
class ScanPart:
    """Some files with the rows of their modules."""

    def __reduce__(self) -> tuple[Any, ...]: ...
    size: Final[int]
    """Bytes of its text, or of its rows if they take more."""
    def states(self) -> list[tuple[str, str]]:
        """The files, each with what tells whether it has to be done again."""
    def unchanged(self) -> list[str]:
        """Files that are as they were; their rows are not here."""
    def tables(self) -> list[str]:
        """The names of the tables that have rows."""
    def table(self, name: str) -> ScanTable:
        """The rows of one table."""

@final
class ScanTable:
    """Rows of one table."""

    def __reduce__(self) -> tuple[Any, ...]: ...
    def __len__(self) -> int: ...
    def columns(self) -> _Columns:
        """Names and columns, as `hlofast.table.Table` takes them."""
    def json_lines(self, label: str | None = None) -> bytes:
        """One JSON object per line; with `label` each has a key `table` of that value."""
    def csv(self, header: bool) -> bytes:
        """Comma-separated values."""
    def __arrow_c_stream__(self, requested_schema: object = None) -> object: ...
