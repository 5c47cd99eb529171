//! Chooses the source line of each instruction: one frame of its call stack.

use crate::ir::decode::StackFrames;
use crate::ir::{MetadataColumns, Module, Row};
use std::collections::HashMap;

/// The frame of a stack that is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FrameChoice {
    /// The first frame outside libraries, from the innermost outwards; the innermost if there is
    /// none.
    #[default]
    User,
    /// The innermost frame.
    Innermost,
    /// All frames, outermost first.
    Stack,
}

impl FrameChoice {
    /// All choices.
    pub const ALL: [Self; 3] = [Self::User, Self::Innermost, Self::Stack];

    /// The word for the choice.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::User => "user",
            Self::Innermost => "innermost",
            Self::Stack => "stack",
        }
    }

    /// The choice that `word` names.
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|choice| choice.as_str() == word)
    }
}

/// Which frame is shown, and which files belong to libraries.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SourceOptions {
    /// The frame that is shown.
    pub frame: FrameChoice,
    /// Further libraries: packages or folders (`mylib`, `mylib/layers`). A folder that begins with
    /// a slash is an absolute path.
    pub libraries: Vec<String>,
}

/// Folders of installed packages.
const INSTALLED: [&[u8]; 2] = [b"site-packages", b"dist-packages"];

/// Packages that are libraries wherever they are installed.
const PACKAGES: [&[u8]; 6] = [b"flax", b"haiku", b"praxis", b"optax", b"equinox", b"jax"];

/// Whether `file` belongs to a library: an installed package, Python itself, one of the packages
/// that models are built from, or one of `libraries`.
pub fn is_library(file: &[u8], libraries: &[String]) -> bool {
    if file.starts_with(b"<frozen ") {
        return true;
    }
    let parts = parts(file);
    let folders = parts.split_last().map_or(&[][..], |(_, folders)| folders);
    let is_python = |pair: &[&[u8]]| pair[0] == b"lib" && pair[1].starts_with(b"python3");
    folders.iter().any(|part| INSTALLED.contains(part) || PACKAGES.contains(part))
        || folders.windows(2).any(is_python)
        || libraries.iter().any(|library| is_inside(file, &parts, library.as_bytes()))
}

/// The names between slashes.
fn parts(path: &[u8]) -> Vec<&[u8]> {
    let is_slash = |byte: &u8| matches!(byte, b'/' | b'\\');
    path.split(is_slash).filter(|part| !part.is_empty() && *part != b".").collect()
}

/// Whether the parts of `library` occur as consecutive parts of `file`; if the library begins with
/// a slash, at the beginning of `file`.
fn is_inside(file: &[u8], parts_of_file: &[&[u8]], library: &[u8]) -> bool {
    let wanted = parts(library);
    if wanted.is_empty() {
        return false;
    }
    if library.starts_with(b"/") {
        return file.starts_with(b"/") && parts_of_file.starts_with(&wanted);
    }
    parts_of_file.windows(wanted.len()).any(|own| own == wanted)
}

/// The longest text of a stack in bytes; outer frames beyond it are left out.
const STACK_BYTES: usize = 4096;

/// The separator between two frames of a stack.
const CALLS: &[u8] = b" > ";

/// The source of each row: the file and line as written, or the file and line of a frame of its
/// stack. Entries are stored per frame, because most rows share a frame with others.
#[derive(Clone, Debug, Default)]
pub struct Sources {
    /// File names that are not in `MetadataColumns::source_files`; their numbers follow.
    further: Vec<Box<[u8]>>,
    /// By frame id: the file and line shown for the frame; file -1 keeps the source in the columns.
    /// Empty if the columns hold the source of every row.
    of_frame: Vec<(i32, i32)>,
    /// By file of the columns: whether the shown source of its rows comes from their frames.
    is_followed: Vec<bool>,
}

impl Sources {
    /// The sources of the rows of `module`.
    pub fn new(module: &Module, options: &SourceOptions) -> Self {
        let columns = module.metadata_columns();
        if columns.frame.is_empty() || options.frame == FrameChoice::Innermost {
            return Self::default();
        }
        let tables = module.frame_tables();
        let mut names = Names::new(columns);
        let is_library = |file: &[u8]| is_library(file, &options.libraries);
        let mut of_frame = vec![(-1, 0); tables.len() + 1];
        let is_followed = match options.frame {
            FrameChoice::User => {
                let of_file: Vec<bool> =
                    tables.file_names.iter().map(|file| is_library(file)).collect();
                let users = user_frames(tables, &of_file);
                // Most frames share a file with others.
                let mut ids: Vec<Option<i32>> = vec![None; of_file.len()];
                for (place, user) in of_frame.iter_mut().zip(users).filter(|(_, user)| *user > 0) {
                    if let Some((file, name, number)) = tables.place(i64::from(user)) {
                        let id = *ids[file].get_or_insert_with(|| names.id(name));
                        *place = (id, line(number));
                    }
                }
                columns.source_files.iter().map(|file| is_library(file)).collect()
            }
            FrameChoice::Stack => {
                for id in &columns.frame {
                    let Some(place) = of_frame.get_mut(*id as usize).filter(|place| place.0 < 0)
                    else {
                        continue;
                    };
                    if let Some((file, line)) = stack_text(tables, *id) {
                        *place = (names.id(&file), line);
                    }
                }
                vec![true; columns.source_files.len()]
            }
            FrameChoice::Innermost => Vec::new(),
        };
        let mut further = names.further;
        further.shrink_to_fit();
        Self { further, of_frame, is_followed }
    }

    /// The number of the file of `row` (-1 without one) and its line (0 without one).
    /// [`Sources::file`] takes these numbers.
    pub fn place(&self, columns: &MetadataColumns, row: Row) -> (i32, i32) {
        let at = row.0 as usize;
        let written = (columns.source_file[at], columns.source_line[at]);
        let frame = columns.frame.get(at).map_or(0, |frame| *frame as usize);
        let Some(place) = self.of_frame.get(frame).filter(|place| place.0 >= 0) else {
            return written;
        };
        let file = usize::try_from(written.0).ok();
        let is_kept = file.and_then(|file| self.is_followed.get(file)) == Some(&false);
        if is_kept { written } else { *place }
    }

    /// Whether the columns hold the source of every row.
    pub fn is_as_written(&self) -> bool {
        self.of_frame.is_empty()
    }

    /// The name of file number `file`.
    pub fn file<'a>(&'a self, columns: &'a MetadataColumns, file: i32) -> Option<&'a [u8]> {
        let file = usize::try_from(file).ok()?;
        let known = &columns.source_files;
        known.get(file).or_else(|| self.further.get(file - known.len())).map(|name| &name[..])
    }

    /// All names, by number.
    pub fn files<'a>(&'a self, columns: &'a MetadataColumns) -> impl Iterator<Item = &'a [u8]> {
        columns.source_files.iter().chain(&self.further).map(|name| &name[..])
    }

    /// Bytes held on the heap.
    pub fn heap_bytes(&self) -> usize {
        self.further.iter().map(|name| name.len() + 16).sum::<usize>()
            + size_of::<(i32, i32)>() * self.of_frame.capacity()
            + self.is_followed.capacity()
    }
}

/// File names: first the names in the columns, then new names.
struct Names<'a> {
    ids: HashMap<Box<[u8]>, i32>,
    columns: &'a MetadataColumns,
    further: Vec<Box<[u8]>>,
}

impl<'a> Names<'a> {
    fn new(columns: &'a MetadataColumns) -> Self {
        let ids = columns.source_files.iter().cloned().zip(0..).collect();
        Self { ids, columns, further: Vec::new() }
    }

    fn id(&mut self, name: &[u8]) -> i32 {
        if let Some(id) = self.ids.get(name) {
            return *id;
        }
        let id = (self.columns.source_files.len() + self.further.len()) as i32;
        self.ids.insert(name.into(), id);
        self.further.push(name.into());
        id
    }
}

fn line(value: i64) -> i32 {
    i32::try_from(value).unwrap_or(0).max(0)
}

/// By frame id: the first frame outside libraries, searching outwards from the frame; 0 if there is
/// none. `is_library` has one entry per file of the tables.
fn user_frames(tables: &StackFrames, is_library: &[bool]) -> Vec<u32> {
    let is_user = |id: u32| {
        let location = *tables.frame_locations.get(id as usize - 1)?;
        let location = usize::try_from(location).ok()?.checked_sub(1)?;
        let file = usize::try_from(*tables.location_files.get(location)?).ok()?.checked_sub(1)?;
        let is_named = tables.file_names.get(file).is_some_and(|name| !name.is_empty());
        Some(is_named && is_library.get(file) == Some(&false))
    };
    let count = tables.len();
    let mut users: Vec<Option<u32>> = vec![None; count + 1];
    users[0] = Some(0);
    let mut path: Vec<u32> = Vec::new();
    for first in 1..=count as u32 {
        let mut at = first;
        let user = loop {
            match users.get(at as usize).copied() {
                Some(Some(known)) => break known,
                Some(None) => {}
                None => break 0,
            }
            if is_user(at) == Some(true) {
                users[at as usize] = Some(at);
                break at;
            }
            // A provisional value, so that a cycle of parents ends here.
            users[at as usize] = Some(0);
            path.push(at);
            let parent = tables.frame_parents.get(at as usize - 1).copied().unwrap_or(0);
            at = u32::try_from(parent).unwrap_or(0);
        };
        for id in path.drain(..) {
            users[id as usize] = Some(user);
        }
    }
    users.into_iter().map(|user| user.unwrap_or(0)).collect()
}

/// The frames of stack `id` from the outermost to the innermost as `file:line > file:line > file`,
/// and the innermost line.
fn stack_text(tables: &StackFrames, id: i32) -> Option<(Vec<u8>, i32)> {
    let frames = tables.resolve(i64::from(id)).filter(|frame| !frame.file.is_empty());
    let mut parts: Vec<Vec<u8>> = Vec::new();
    let mut innermost = None;
    let mut bytes = 0;
    for frame in frames {
        let mut part = frame.file.to_vec();
        let own = line(frame.positions.line);
        if innermost.is_none() {
            innermost = Some(own);
        } else if own > 0 {
            part.extend_from_slice(format!(":{own}").as_bytes());
        }
        bytes += part.len() + CALLS.len();
        if bytes > STACK_BYTES && !parts.is_empty() {
            parts.push("…".into());
            break;
        }
        parts.push(part);
    }
    parts.reverse();
    Some((parts.join(CALLS), innermost?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_libraries_are_known_by_their_folders() {
        let none: &[String] = &[];
        for library in [
            "/home/me/.venv/lib/python3.11/site-packages/anything/x.py",
            "/usr/lib/python3/dist-packages/numpy/x.py",
            "/usr/lib/python3.11/contextlib.py",
            "third_party/py/flax/linen/linear.py",
            "C:\\env\\Lib\\site-packages\\jax\\x.py",
            "<frozen importlib._bootstrap>",
        ] {
            assert!(is_library(library.as_bytes(), none), "{library}");
        }
        for own in [
            "/home/me/project/model.py",
            "flax.py",
            "/home/me/flaxen/model.py",
            "/home/me/lib/model.py",
            "<ipython-input-3-1f>",
            "",
        ] {
            assert!(!is_library(own.as_bytes(), none), "{own}");
        }
    }

    #[test]
    fn listed_libraries_are_whole_names() {
        let is = |file: &str, library: &str| is_library(file.as_bytes(), &[library.to_owned()]);
        assert!(is("/srv/mylib/layers/dense.py", "mylib"));
        assert!(is("/srv/mylib/layers/dense.py", "mylib/layers/"));
        assert!(is("/srv/mylib/layers/dense.py", "/srv/mylib"));
        assert!(is("/srv/mylib/layers/dense.py", "layers/dense.py"));
        assert!(!is("/srv/mylib/layers/dense.py", "/mylib"));
        assert!(!is("/srv/mylib2/dense.py", "mylib"));
        assert!(!is("/srv/mylib/dense.py", "mylib/layers"));
        assert!(!is("/srv/mylib/dense.py", "/"));
    }
}
