//! Where a line of a shared function is called from.
//!
//! The line of an instruction may be one of a helper that many places call: a normalisation, or a short
//! function around a sharding constraint. What to change is then at the call. A line counts as a
//! helper's if stacks in the module's table call it from different lines.

use super::frames::{FrameChoice, SourceOptions, Sources, is_library};
use crate::ir::decode::StackFrames;
use crate::ir::intern::BuildMix;
use crate::ir::{Module, Row};
use hashbrown::HashMap;

/// Limit on the frames that are followed outwards from one frame. Stacks of JAX programs have fewer.
const DEEPEST: usize = 256;
/// How many calls are named, outwards: a helper may be a line of another helper.
const MOST_CALLS: usize = 3;

/// The number of a file in the module's table, and a line of it.
type Place = (usize, i64);

/// A call, with both places outside libraries.
#[derive(Clone, Copy)]
struct Call {
    /// The place that is called.
    own: Place,
    /// The place that calls it.
    caller: Place,
    /// The id of the caller's frame.
    frame: usize,
}

/// Who calls a line.
#[derive(Clone, Copy)]
struct Calls {
    first: Place,
    /// Whether other lines call it too.
    has_others: bool,
}

/// The calls of lines of a module.
pub struct Callers<'a> {
    module: &'a Module,
    sources: &'a Sources,
    /// By frame id: its innermost call outside libraries.
    of_frame: Vec<Option<Call>>,
    of_place: HashMap<Place, Calls, BuildMix>,
}

impl<'a> Callers<'a> {
    /// The calls in the stacks of `module`; none if `options` show other frames than the user's.
    pub fn new(module: &'a Module, sources: &'a Sources, options: &SourceOptions) -> Self {
        let mut of_frame = Vec::new();
        let mut of_place: HashMap<Place, Calls, BuildMix> = HashMap::default();
        if options.frame == FrameChoice::User {
            let tables = module.frame_tables();
            let names = tables.file_names.iter();
            let is_user: Vec<bool> =
                names.map(|file| !is_library(file, &options.libraries)).collect();
            of_frame = (0..=tables.len()).map(|id| call(tables, id as i64, &is_user)).collect();
        }
        for Call { own: place, caller, .. } in of_frame.iter().flatten() {
            let calls =
                of_place.entry(*place).or_insert(Calls { first: *caller, has_others: false });
            calls.has_others |= calls.first != *caller;
        }
        Self { module, sources, of_frame, of_place }
    }

    /// The file and line that call the shared function whose line is shown for `row`, and those that
    /// call that line if it is one of a shared function too; none if one line alone calls it, or if the
    /// text does not tell.
    pub fn of(&self, row: Row) -> Vec<(&'a [u8], i64)> {
        let mut calls = Vec::new();
        let mut call = self.shown(row);
        while let Some(Call { own, caller, frame }) = call {
            let is_shared = self.of_place.get(&own).is_some_and(|calls| calls.has_others);
            let names = &self.module.frame_tables().file_names;
            let Some(file) = names.get(caller.0).filter(|_| is_shared) else { break };
            calls.push((&file[..], caller.1));
            call = self.of_frame.get(frame).copied().flatten();
            if calls.len() == MOST_CALLS {
                break;
            }
        }
        calls
    }

    /// The call of the line that is shown for `row`.
    fn shown(&self, row: Row) -> Option<Call> {
        let columns = self.module.metadata_columns();
        let names = &self.module.frame_tables().file_names;
        let frame = usize::try_from(*columns.frame.get(row.0 as usize)?).ok()?;
        let call = (*self.of_frame.get(frame)?)?;
        let (file, line) = self.sources.place(columns, row);
        let shown = self.sources.file(columns, file)?;
        let is_shown = *names.get(call.own.0)? == shown && i64::from(line) == call.own.1;
        is_shown.then_some(call)
    }
}

/// The innermost place of frame `id` in a file that `is_user`, and the next one that calls it.
fn call(tables: &StackFrames, id: i64, is_user: &[bool]) -> Option<Call> {
    let mut own = None;
    for at in tables.stack(id).take(DEEPEST) {
        let known = tables.place(at).map(|(file, _, line)| (file, line));
        match known.filter(|place| is_user.get(place.0) == Some(&true)) {
            Some(place) if own.is_none() => own = Some(place),
            Some(caller) if own != Some(caller) => {
                return Some(Call { own: own?, caller, frame: usize::try_from(at).ok()? });
            }
            _ => {}
        }
    }
    None
}
