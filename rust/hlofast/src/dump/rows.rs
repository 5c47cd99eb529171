//! Tables about dump directories: programs, and the columns of each table.

use super::analyse::{AnalysisOptions, Beside, Place, TableKind, Tables, analyse};
use super::group::Program;
use super::host::host;
use super::kind::{Kind, Stage};
use super::name;
use super::read::file_rows;
use super::survey::Survey;
use crate::table::{Columns, Field, Texts, Values, number};
use crate::text::Source;
use crate::{Options, parse};
use std::borrow::Cow;
use std::collections::HashMap;

/// Columns of the modules table that the programs table repeats for the canonical module.
const FIGURES: [&str; 19] = [
    "label",
    "line",
    "stage",
    "status",
    "devices_together",
    "instructions",
    "flops",
    "bytes_read",
    "bytes_written",
    "collectives",
    "wire_bytes",
    "live_peak",
    "xla_peak",
    "hbm_peak",
    "fast_peak",
    "host_peak",
    "device",
    "step_seconds",
    "fingerprint",
];

/// A row of the modules table, the log that contains the module, and its label there.
type Logged<'a> = (usize, &'a [u8], &'a [u8]);

/// A row of the programs table.
struct Line<'a> {
    program: Cow<'a, Program>,
    /// The row of its canonical module in the modules table.
    module: Option<usize>,
}

/// The programs table: programs of the files of `survey`, and programs announced in logs. `modules`
/// is the modules table so far; figures of missing rows are unknown.
pub fn program_rows(survey: &Survey, modules: &Columns) -> Columns {
    let lines = lines(survey, modules);
    let each = || lines.iter().map(|line| &*line.program);
    let path = |file: Option<u32>| {
        file.and_then(|file| survey.found.get(file as usize)).map_or(String::new(), |f| f.text())
    };
    let kinds = |program: &Program, kind: Kind| {
        let is_kind = |file: &&u32| survey.kinds.get(**file as usize) == Some(&kind);
        program.files.iter().filter(is_kind).count() as i64
    };
    let bytes = |program: &Program| {
        let sizes = program.files.iter().filter_map(|file| survey.found.get(*file as usize));
        sizes.map(|entry| entry.bytes as i64).sum::<i64>()
    };
    let mut table = Columns::default();
    table.texts(
        Field::name("program", "The program: folder, module number and name."),
        each().map(|program| &program.key),
    );
    table.texts(
        Field::name("module_name", "The name of the module.").nullable(),
        each().map(|program| &program.module_name),
    );
    table.numbers(
        Field::index("module_id", "The number of the module in the process.").nullable(),
        each().map(|program| number(program.module_id)),
    );
    table.texts(
        Field::name("host", "The host that wrote the program.").nullable(),
        each().map(|program| &program.host),
    );
    table.numbers(
        Field::index("timestamp", "The time in the file names, in seconds since 1970.").nullable(),
        each().map(|program| number(program.timestamp)),
    );
    table.numbers(
        Field::index("changelist", "The compiler's source version in the file names.").nullable(),
        each().map(|program| number(program.changelist)),
    );
    table.numbers(
        Field::count("files", "Files of the program.").summed(),
        each().map(|program| program.files.len() as i64),
    );
    table.numbers(Field::bytes("bytes", "Bytes of the files.").summed(), each().map(bytes));
    table.numbers(
        Field::count("module_files", "Files that contain modules.").summed(),
        each().map(|program| kinds(program, Kind::Module)),
    );
    table.numbers(
        Field::count("memory_files", "XLA's memory files.").summed(),
        each().map(|program| kinds(program, Kind::Memory)),
    );
    table.texts(
        Field::path("canonical", "The file that represents the program: the last stage available.")
            .nullable(),
        each().map(|program| path(program.canonical)),
    );
    table.texts(
        Field::path("before", "The module before optimisation.").nullable(),
        each().map(|program| path(program.before)),
    );
    table.texts(
        Field::path("after", "The module after optimisation.").nullable(),
        each().map(|program| path(program.after)),
    );
    let partner = |program: &Program| {
        let partner = program.partner.and_then(|at| survey.programs.list.get(at as usize));
        partner.map_or("", |partner| partner.key.as_str())
    };
    table.texts(
        Field::name(
            "partner",
            "The program of the other backend that was compiled from the same source.",
        )
        .nullable(),
        each().map(partner),
    );
    let rows: Vec<Option<usize>> = lines.iter().map(|line| line.module).collect();
    for (field, empty) in columns_of(TableKind::Modules) {
        if FIGURES.contains(&&*field.name) {
            let values = taken(modules.get(&field.name), &empty, &rows);
            // A program without a canonical module has no figures.
            table.push(field.nullable(), values);
        }
    }
    table
}

/// The programs in table order.
fn lines<'a>(survey: &'a Survey, modules: &Columns) -> Vec<Line<'a>> {
    let texts = |name: &str| modules.get(name).and_then(Values::texts).into_iter().flatten();
    let mut of_path: HashMap<&[u8], usize> = HashMap::new();
    let mut announced: HashMap<&[u8], Vec<Logged<'_>>> = HashMap::new();
    let places = texts("path").zip(texts("label")).zip(texts("program"));
    for (row, ((path, label), program)) in places.enumerate() {
        if label.is_empty() {
            of_path.entry(path).or_insert(row);
        } else {
            announced.entry(program).or_default().push((row, path, label));
        }
    }
    let files: HashMap<String, u32> = match announced.is_empty() {
        true => HashMap::new(),
        false => survey.found.iter().zip(0..).map(|(entry, file)| (entry.text(), file)).collect(),
    };
    let mut lines = Vec::with_capacity(survey.programs.list.len() + announced.len());
    for program in &survey.programs.list {
        let canonical = program.canonical.map(|file| survey.found[file as usize].text());
        let module = canonical.and_then(|path| of_path.get(path.as_bytes()).copied());
        let logged = announced.remove(program.key.as_bytes());
        lines.push(match logged.filter(|_| program.canonical.is_none()) {
            Some(rows) => in_logs(Cow::Borrowed(program), survey, &files, &rows),
            None => Line { program: Cow::Borrowed(program), module },
        });
    }
    for (key, rows) in announced {
        let program =
            Program { key: String::from_utf8_lossy(key).into_owned(), ..Program::default() };
        lines.push(in_logs(Cow::Owned(program), survey, &files, &rows));
    }
    lines.sort_by(|a, b| a.program.order(&b.program));
    lines
}

/// A program without module files whose modules are in logs. Its canonical module is the last stage
/// available.
fn in_logs<'a>(
    program: Cow<'a, Program>,
    survey: &'a Survey,
    files: &HashMap<String, u32>,
    rows: &[Logged<'_>],
) -> Line<'a> {
    let mut program = program.into_owned();
    let mut best = None;
    for (row, path, label) in rows {
        let label = String::from_utf8_lossy(label);
        let name = name::parse(&label);
        let Some(file) = files.get(&*String::from_utf8_lossy(path)).copied() else { continue };
        let entry = &survey.found[file as usize];
        if program.files.is_empty() {
            (program.root, program.folder) = (entry.root, entry.folder.clone());
            (program.timestamp, program.module_id) = (name.timestamp, name.module_id);
            let own = if name.module_name.is_empty() { name.stem } else { name.module_name };
            program.module_name = own.to_owned();
            program.host = host(&program.folder, &program.module_name);
        }
        program.changelist = program.changelist.or(name.changelist);
        if let Err(at) = program.files.binary_search(&file) {
            program.files.insert(at, file);
        }
        if name.stage == Some(Stage::Before) {
            program.before = program.before.or(Some(file));
        } else if name.stage.is_some_and(Stage::is_after) {
            program.after = program.after.or(Some(file));
        }
        let rank = (name.stage.map_or(1, |stage| 2 * stage.rank() + 2), name.step);
        if best.is_none_or(|(other, _)| rank > other) {
            best = Some((rank, *row));
            program.canonical = Some(file);
        }
    }
    Line { program: Cow::Owned(program), module: best.map(|(_, row)| row) }
}

/// The values of `rows`; unknown where a row is None or the column is missing. `empty` is a column
/// of the same type.
fn taken(values: Option<&Values>, empty: &Values, rows: &[Option<usize>]) -> Values {
    fn each<T: Copy>(values: &[T], rows: &[Option<usize>], missing: T) -> Vec<T> {
        let value = |row: &Option<usize>| row.and_then(|row| values.get(row)).copied();
        rows.iter().map(|row| value(row).unwrap_or(missing)).collect()
    }
    match values.unwrap_or(empty) {
        Values::Numbers(own) => Values::Numbers(each(own, rows, -1)),
        Values::Reals(own) => Values::Reals(each(own, rows, f64::NAN)),
        own => {
            let own: Vec<&[u8]> = own.texts().into_iter().flatten().collect();
            let mut texts = Texts::default();
            each(&own, rows, &[]).into_iter().for_each(|text| texts.push(text));
            Values::Texts(texts)
        }
    }
}

/// The columns of a table, without rows.
pub fn columns_of(table: TableKind) -> Columns {
    if table == TableKind::Files {
        return file_rows(&Survey::empty(), &[]);
    }
    let options = AnalysisOptions::new(Tables::FILES.with(table));
    let smallest = b"HloModule m\n\nENTRY e {\n  ROOT p = f32[] parameter(0)\n}\n";
    let module = parse(Source::from_slice(smallest), &Options::default());
    let analysed = module.map(|module| analyse(&module, Beside::default(), &options, None));
    let place = Place::default();
    let first = analysed.ok().and_then(Result::ok).and_then(|tables| tables.at(&place).next());
    first.map(|(_, own)| own).unwrap_or_default().without_rows()
}
