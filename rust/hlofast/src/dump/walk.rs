//! The files below some directories.

use std::collections::HashSet;
use std::fs::{self, Metadata};
use std::io;
use std::iter;
use std::path::{Path, PathBuf};
use std::time::UNIX_EPOCH;

/// The file that marks a directory as a dataset of results, which is never read as a dump.
pub const MANIFEST: &str = "hlofast-manifest.jsonl";

const DATASET: &str = "a dataset that hlofast wrote";

/// A file below one of the given paths, or a directory that could not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// The path that opens the file.
    pub path: PathBuf,
    /// Index of the given path that contains the file.
    pub root: u32,
    /// The directories between the given path and the file, joined by `/`; may be empty.
    pub folder: String,
    /// The name of the file; bytes that are not UTF-8 are replaced.
    pub name: String,
    /// Its size.
    pub bytes: u64,
    /// Modification time in nanoseconds since 1970; 0 if unknown.
    pub modified: u64,
    /// Whether it is a directory.
    pub is_folder: bool,
    /// Why the file cannot or need not be read.
    pub trouble: Option<Trouble>,
}

/// Why a file cannot or need not be read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The operating system's error.
    Failed(String),
    /// Not a dump file, with the reason.
    Skipped(String),
}

impl Found {
    /// A listed file below the longest of `roots` that its path begins with. Without such a root,
    /// the whole path counts as directories.
    pub fn listed(path: PathBuf, roots: &[String]) -> Self {
        let text = path.to_string_lossy().into_owned();
        let below = |root: &String| {
            let rest = text.strip_prefix(root.trim_end_matches('/'))?;
            // A root may itself be a file.
            (rest.is_empty() || rest.starts_with('/') || root.is_empty()).then_some(rest.len())
        };
        let roots = (0..).zip(roots).filter_map(|(number, root)| Some((below(root)?, number)));
        let (length, root) = roots.min().unwrap_or((text.len(), 0));
        let own = text[text.len() - length..].trim_start_matches('/');
        let name = text.rsplit('/').next().unwrap_or_default().to_owned();
        let folder = own.strip_suffix(name.as_str()).unwrap_or_default();
        let folder = folder.trim_end_matches('/').to_owned();
        let (bytes, modified, is_folder, trouble) = (0, 0, false, None);
        Self { path, root, folder, name, bytes, modified, is_folder, trouble }
    }

    /// The path as text.
    pub fn text(&self) -> String {
        self.path.to_string_lossy().into_owned()
    }
}

/// A directory to read.
struct Folder {
    path: PathBuf,
    root: u32,
    folder: String,
    name: String,
    is_root: bool,
}

/// All files below `roots`, by root and path. A root may itself be a file. Links to files are followed.
/// Links to directories are followed unless the directory is also reached directly.
pub fn walk(roots: &[PathBuf]) -> Vec<Found> {
    let mut walk = Walk::default();
    for (number, root) in roots.iter().enumerate() {
        let name = root.file_name().unwrap_or(root.as_os_str()).to_string_lossy().into_owned();
        let (path, root_number) = (root.clone(), number as u32);
        let folder = Folder { path, root: root_number, folder: String::new(), name, is_root: true };
        match fs::metadata(root) {
            Ok(metadata) if metadata.is_dir() => walk.real.push(folder),
            Ok(metadata) => walk.file(folder, &metadata),
            Err(error) => walk.refused(folder, &error, false),
        }
    }
    // Links are followed last, so that a directory is read at its own path rather than through a
    // link.
    loop {
        if let Some(folder) = walk.real.pop() {
            walk.enter(folder);
        } else if !walk.linked.is_empty() {
            let folder = walk.linked.remove(0);
            walk.enter(folder);
        } else {
            break;
        }
    }
    let mut files = walk.files;
    sort(&mut files);
    files
}

/// Listed files, with each dataset of results replaced by one entry for its directory, as [`walk`]
/// does.
pub fn without_datasets(files: Vec<Found>) -> Vec<Found> {
    let place = |file: &Found| match file.folder.as_str() {
        "" => (file.root, String::new()),
        folder => (file.root, format!("{folder}/")),
    };
    let manifests = files.iter().filter(|file| !file.is_folder && file.name == MANIFEST);
    let datasets: HashSet<(u32, String)> = manifests.map(place).collect();
    if datasets.is_empty() {
        return files;
    }
    let is_inside = |file: &Found| {
        let (root, folder) = place(file);
        let ends = folder.match_indices('/').map(|(at, _)| at + 1);
        iter::once(0).chain(ends).any(|end| datasets.contains(&(root, folder[..end].to_owned())))
    };
    let mut kept = Vec::with_capacity(files.len());
    for file in files {
        if !is_inside(&file) {
            kept.push(file);
        } else if file.name == MANIFEST {
            let path = file.path.parent().map(Path::to_owned).unwrap_or_default();
            let (folder, name) = match file.folder.rsplit_once('/') {
                Some((folder, name)) => (folder.to_owned(), name.to_owned()),
                None => (String::new(), file.folder),
            };
            let (root, trouble) = (file.root, Some(Trouble::Skipped(DATASET.to_owned())));
            let (bytes, modified, is_folder) = (0, 0, true);
            kept.push(Found { path, root, folder, name, bytes, modified, is_folder, trouble });
        }
    }
    sort(&mut kept);
    kept
}

/// Given files become files of the directories that contain them, and the directories become roots:
/// `dump/*.txt` has the programs of `dump`. A file that is given twice, or below a given directory
/// too, counts once.
pub fn below_directories(files: Vec<Found>, roots: &[String]) -> (Vec<Found>, Vec<String>) {
    let is_given = |file: &&Found| {
        let root = roots.get(file.root as usize);
        !file.is_folder && file.folder.is_empty() && root == Some(&file.text())
    };
    let given: HashSet<u32> = files.iter().filter(is_given).map(|file| file.root).collect();
    if given.is_empty() {
        return (files, roots.to_vec());
    }
    let mut kept: Vec<String> = Vec::new();
    let mut numbers = Vec::new();
    for (number, root) in (0..).zip(roots) {
        let root = plain(root.trim_end_matches('/'));
        let own = match root.rsplit_once('/') {
            _ if !given.contains(&number) => root,
            Some((parent, _)) => parent.to_owned(),
            None => String::new(),
        };
        let known = kept.iter().position(|other| *other == own);
        numbers.push(known.unwrap_or(kept.len()) as u32);
        if known.is_none() {
            kept.push(own);
        }
    }
    let is_below = |file: &&Found| !given.contains(&file.root);
    let mut seen: HashSet<String> =
        files.iter().filter(is_below).map(|file| plain(&file.text())).collect();
    let mut files: Vec<Found> = files
        .into_iter()
        .filter(|file| !given.contains(&file.root) || seen.insert(plain(&file.text())))
        .map(|file| Found { root: numbers[file.root as usize], ..file })
        .collect();
    sort(&mut files);
    (files, kept)
}

/// A path or an address without parts that stand for the directory itself.
fn plain(path: &str) -> String {
    path.split('/').filter(|part| *part != ".").collect::<Vec<_>>().join("/")
}

/// Sorts files by root and path.
pub fn sort(files: &mut [Found]) {
    files.sort_by(|a, b| (a.root, &a.folder, &a.name).cmp(&(b.root, &b.folder, &b.name)));
}

#[derive(Default)]
struct Walk {
    real: Vec<Folder>,
    linked: Vec<Folder>,
    seen: HashSet<Identity>,
    files: Vec<Found>,
}

impl Walk {
    /// Reads the entries of a directory.
    fn enter(&mut self, folder: Folder) {
        match identity(&folder.path) {
            Ok(identity) if self.seen.insert(identity) => {}
            Ok(_) => {
                let reason = "a link to a directory that was already read".to_owned();
                return self.push(folder, 0, true, Some(Trouble::Skipped(reason)));
            }
            Err(error) => return self.refused(folder, &error, true),
        }
        if folder.path.join(MANIFEST).exists() {
            let reason = DATASET.to_owned();
            return self.push(folder, 0, true, Some(Trouble::Skipped(reason)));
        }
        let entries = match fs::read_dir(&folder.path) {
            Ok(entries) => entries,
            Err(error) => return self.refused(folder, &error, true),
        };
        let inside = match (folder.is_root, folder.folder.is_empty()) {
            (true, _) => String::new(),
            (false, true) => folder.name.clone(),
            (false, false) => format!("{}/{}", folder.folder, folder.name),
        };
        for entry in entries {
            match entry {
                Ok(entry) => self.entry(&folder, &inside, &entry),
                Err(error) => return self.refused(folder, &error, true),
            }
        }
    }

    fn entry(&mut self, parent: &Folder, inside: &str, entry: &fs::DirEntry) {
        let name = entry.file_name().to_string_lossy().into_owned();
        let path = entry.path();
        let (root, folder) = (parent.root, inside.to_owned());
        let place = Folder { path, root, folder, name, is_root: false };
        let kind = match entry.file_type() {
            Ok(kind) => kind,
            Err(error) => return self.refused(place, &error, false),
        };
        if kind.is_dir() {
            return self.real.push(place);
        }
        match fs::metadata(&place.path) {
            Ok(metadata) if metadata.is_dir() => self.linked.push(place),
            Ok(metadata) => self.file(place, &metadata),
            Err(error) => self.refused(place, &error, false),
        }
    }

    fn file(&mut self, place: Folder, metadata: &Metadata) {
        // Opening a pipe would block until somebody writes into it.
        let trouble = (!metadata.is_file())
            .then(|| Trouble::Skipped("a pipe, a socket or a device, not a file".to_owned()));
        self.push(place, metadata.len(), false, trouble);
        let modified = metadata.modified().ok().and_then(|at| at.duration_since(UNIX_EPOCH).ok());
        if let (Some(last), Some(at)) = (self.files.last_mut(), modified) {
            last.modified = u64::try_from(at.as_nanos()).unwrap_or_default();
        }
    }

    fn refused(&mut self, place: Folder, error: &io::Error, is_folder: bool) {
        self.push(place, 0, is_folder, Some(Trouble::Failed(reason(error))));
    }

    fn push(&mut self, place: Folder, bytes: u64, is_folder: bool, trouble: Option<Trouble>) {
        let Folder { path, root, folder, name, .. } = place;
        let modified = 0;
        self.files.push(Found { path, root, folder, name, bytes, modified, is_folder, trouble });
    }
}

/// The operating system's message without its error number.
pub fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.split_once(" (os error") {
        Some((text, _)) => text.to_owned(),
        None => text,
    }
}

/// The identity of a directory, whatever the path to it.
#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> io::Result<Identity> {
    use std::os::unix::fs::MetadataExt;
    let metadata = fs::metadata(path)?;
    Ok((metadata.dev(), metadata.ino()))
}

#[cfg(not(unix))]
type Identity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> io::Result<Identity> {
    fs::canonicalize(path)
}
