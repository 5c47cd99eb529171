//! Differences between two modules, ignoring the names and the order of instructions.
//!
//! `matching` finds corresponding instructions, `moved` finds instructions that moved into or out
//! of a called computation, `compare` finds the differences between partners, and `header` the
//! differences between module headers. Consequences of a change (a user has another operand; a
//! result has another shape because its operand has) are distinguished from the change itself: see
//! [`Change::is_consequence`].

mod compare;
mod digest;
mod hash;
mod header;
mod matching;
mod meaning;
mod moved;
mod shapes;
mod side;

use crate::ir::{Module, Row, ShapeView};
use crate::print::{is_metadata, shape_classes};
use compare::Comparison;
use hash::Mixer;
use matching::Matcher;
use side::{NONE, Side};

/// The properties that count as differences.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// Layouts, if both modules have any.
    pub layouts: bool,
    /// `backend_config`.
    pub backend_config: bool,
    /// The order of instructions, if both modules are scheduled.
    pub schedule: bool,
}

impl Default for Options {
    fn default() -> Self {
        Self { layouts: true, backend_config: true, schedule: false }
    }
}

/// The kind of change of an instruction or a module attribute.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Kind {
    /// Both modules have the instruction or attribute, with differences.
    Changed,
    /// Only the first module has the instruction or attribute.
    Vanished,
    /// Only the second module has the instruction or attribute.
    Appeared,
    /// The instruction moved into or out of a called computation, for example by fusion.
    Moved,
}

impl Kind {
    /// All kinds.
    pub const ALL: [Kind; 4] = [Kind::Changed, Kind::Vanished, Kind::Appeared, Kind::Moved];

    /// The name used in tables and JSON.
    pub fn as_str(self) -> &'static str {
        match self {
            Kind::Changed => "changed",
            Kind::Vanished => "vanished",
            Kind::Appeared => "appeared",
            Kind::Moved => "moved",
        }
    }
}

/// One difference.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Change {
    /// What happened.
    pub kind: Kind,
    /// The aspect in which partners differ: `opcode`, `element_type`, `dimensions`, `layout`,
    /// `memory_space`, `structure` (of tuples), `operands`, `constant`, `parameter_number`,
    /// `trip_count`, `root`, `schedule`, or the key of an attribute. Empty if an instruction
    /// appeared, vanished or moved.
    pub aspect: String,
    /// The instruction in the first module; None if it appeared, or the module itself changed.
    pub before: Option<Row>,
    /// The instruction in the second module; None if it vanished, or the module itself changed.
    pub after: Option<Row>,
    /// The value in the first module, shortened if long.
    pub before_text: Vec<u8>,
    /// The value in the second module, shortened if long.
    pub after_text: Vec<u8>,
    /// Whether the change follows from another difference: a result whose operand changed in the
    /// same way, an operand that appeared or vanished, the instructions of a computation that
    /// appeared or vanished with its caller, the trip count of a loop.
    pub is_consequence: bool,
}

/// The differences between two modules, and the matched instructions.
#[derive(Clone, Debug, Default)]
pub struct Diff {
    /// The differences: module attributes first, then vanished, appeared, moved and changed
    /// instructions, each in text order.
    pub changes: Vec<Change>,
    /// Pairs (row of the first module, row of the second) of equal, changed or moved instructions,
    /// sorted by the first.
    pub pairs: Vec<(Row, Row)>,
    /// Whether layouts were compared; false if one of the modules has none.
    pub compares_layouts: bool,
    /// Whether partners are in the same order; None unless both modules are scheduled.
    pub same_schedule: Option<bool>,
}

/// The differences between `a` and `b`.
///
/// Names, metadata, channel numbers and the order of instructions are ignored (the order counts
/// with `Options::schedule`), and so is the number of copies of equal computations.
pub fn diff(a: &Module, b: &Module, options: &Options) -> Diff {
    let compares_layouts = options.layouts && has_layouts(a) && has_layouts(b);
    let options = &Options { layouts: compares_layouts, ..*options };
    let plain = shape_classes(a.shapes(), b.shapes(), false);
    let full =
        if compares_layouts { shape_classes(a.shapes(), b.shapes(), true) } else { plain.clone() };
    let mixer = Mixer::new();
    let side =
        |module, full: &[usize], plain: &[usize]| Side::new(module, mixer, (full, plain), options);
    let mut matcher = Matcher::new(side(a, &full.0, &plain.0), side(b, &full.1, &plain.1));
    matcher.run();
    let moved = moved::find(&matcher);
    let mut comparison = Comparison::new(&matcher, &moved, full, *options);
    comparison.run();
    let (changes, same_schedule) = comparison.finish();
    let mut pairs: Vec<(Row, Row)> = (0..)
        .zip(&matcher.to_b)
        .filter(|(_, other)| **other != NONE)
        .map(|(row, other)| (Row(row), Row(*other)))
        .chain(moved.iter().map(|(a, b)| (Row(*a), Row(*b))))
        .collect();
    pairs.sort_unstable();
    let mut all = header::changes(a, b, options);
    all.extend(changes);
    Diff { changes: all, pairs, compares_layouts, same_schedule }
}

/// Whether the text gives the layout of any array that could have more than one.
fn has_layouts(module: &Module) -> bool {
    let table = module.shapes();
    table.ids().any(|id| match table.get(id) {
        ShapeView::Array(array) => array.rank() > 0 && array.layout.is_some(),
        ShapeView::Tuple(_) | ShapeView::Buffer(_) => false,
    })
}

/// Whether attribute `key` of `row` is ignored, or compared as an edge of the graph.
fn left_out(module: &Module, row: Row, key: &[u8], options: &Options) -> bool {
    is_metadata(key)
        || matches!(key, b"channel_id" | b"control-predecessors")
        || !options.backend_config && key == b"backend_config"
        || !options.layouts && key == b"operand_layout_constraints"
        || side::is_call(module, row, key)
}

/// Limit on the length of values; longer texts are shortened.
const LONGEST_TEXT: usize = 1 << 12;

/// `text`, shortened if long.
fn cut(text: &[u8]) -> Vec<u8> {
    match text.get(..LONGEST_TEXT) {
        Some(head) if text.len() > LONGEST_TEXT => [head, "…".as_bytes()].concat(),
        _ => text.to_vec(),
    }
}
