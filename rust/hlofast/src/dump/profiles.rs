//! The profiles below a folder: `plugins/profile/RUN/HOST.xplane.pb`, as TensorBoard lays them out.

use super::walk::{Found, walk};
use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};

/// One recording, with a file for each host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// The name of its folder, which profilers take from the time.
    pub name: String,
    /// Its folder.
    pub folder: PathBuf,
    /// The files of its hosts, by name.
    pub files: Vec<PathBuf>,
    modified: u64,
}

/// What a file name says of a profile; the better form first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Form {
    XSpace,
    /// Chrome's trace format, with fewer events and facts.
    Trace,
    /// The same for Perfetto.
    Perfetto,
}

fn form(name: &str) -> Option<Form> {
    let packed = [".gz", ".xz", ".zst"];
    let name = packed.iter().find_map(|end| name.strip_suffix(end)).unwrap_or(name);
    match name {
        _ if name.ends_with(".xplane.pb") => Some(Form::XSpace),
        _ if name.ends_with("perfetto_trace.json") => Some(Form::Perfetto),
        _ if name.ends_with(".trace.json") => Some(Form::Trace),
        _ => None,
    }
}

/// The recordings below `folder`, the oldest first. A recording in several forms is listed in the
/// one that says most.
///
/// The age is that of the names if all of them are times, as profilers write them, or else that of
/// the files.
pub fn profiles(folder: &Path) -> io::Result<Vec<Run>> {
    std::fs::read_dir(folder)?;
    let mut folders: BTreeMap<PathBuf, Vec<(Form, Found)>> = BTreeMap::new();
    for file in walk(&[folder.to_owned()]) {
        let (Some(form), Some(own)) = (form(&file.name), file.path.parent()) else { continue };
        if file.trouble.is_none() && !file.is_folder {
            folders.entry(own.to_owned()).or_default().push((form, file));
        }
    }
    let mut runs: Vec<Run> = folders.into_iter().map(|(own, files)| run(own, files)).collect();
    if runs.iter().all(|run| is_time(&run.name)) {
        runs.sort_by(|a, b| (&a.name, &a.folder).cmp(&(&b.name, &b.folder)));
    } else {
        runs.sort_by(|a, b| (a.modified, &a.folder).cmp(&(b.modified, &b.folder)));
    }
    Ok(runs)
}

fn run(folder: PathBuf, files: Vec<(Form, Found)>) -> Run {
    let name = folder.file_name().unwrap_or(folder.as_os_str()).to_string_lossy().into_owned();
    let best = files.iter().map(|(form, _)| *form).min();
    let files = files.into_iter().filter(|(form, _)| Some(*form) == best).map(|(_, file)| file);
    let files: Vec<Found> = files.collect();
    let modified = files.iter().map(|file| file.modified).max().unwrap_or(0);
    Run { name, folder, files: files.into_iter().map(|file| file.path).collect(), modified }
}

/// Whether `name` is a time such as `2026_11_23_06_12_59`.
fn is_time(name: &str) -> bool {
    name.len() >= 19 && name.bytes().all(|byte| byte.is_ascii_digit() || byte == b'_')
}
