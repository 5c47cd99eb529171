//! What all accounts of a module start from: its values, which of them must share memory, and when they
//! are live, for one order of the instructions.

use super::alias::{Donations, Sets, join_aliases};
use super::assign::{Assigned, Buffered};
use super::nodes::{Nodes, ShapeNodes, node_shapes};
use super::peak::memory_space;
use super::ranges::Ranges;
use super::schedule::Steps;
use super::values::{Reader, Values};
use super::{MemoryError, Rule, Tables};
use crate::cost::Backend;
use crate::ir::decode::Alias;
use crate::ir::{Module, Row, ShapeId};
use std::sync::{Arc, OnceLock};

/// The steps of a module, and the values that its results hold.
#[derive(Debug)]
pub(super) struct Layout {
    pub steps: Steps,
    pub shapes: ShapeNodes,
    pub nodes: Nodes,
    /// By node: the value that it holds.
    pub values: Vec<u32>,
    pub mismatched: u32,
    has_followed_markers: bool,
    shaped: OnceLock<Shaped>,
}

/// What accounts need of the shapes of nodes.
#[derive(Debug)]
pub(super) struct Shaped {
    /// By node.
    pub shapes: Vec<ShapeId>,
    /// By node: its memory space.
    pub spaces: Vec<i64>,
}

/// The common starting point of all rules.
#[derive(Debug)]
pub struct Frame {
    pub(super) layout: Arc<Layout>,
    pub(super) donations: Donations,
    /// Values that must share a buffer.
    pub(super) sets: Sets,
    /// By value: from the step that defines it to its last use.
    pub(super) ranges: Ranges,
    /// The buffers of XLA's account.
    pub(super) buffered: OnceLock<Buffered>,
    /// Their assignment in the sizes of the text.
    pub(super) assigned: OnceLock<Assigned>,
    tables: OnceLock<Tables>,
    /// The frame in which markers are instructions, if this frame looks through any.
    marked: Option<Box<Frame>>,
}

impl Frame {
    /// The frame of `module` in the order of its text, for [`super::memory_from`] and its siblings.
    pub fn of_text(module: &Module) -> Result<Self, MemoryError> {
        let mut frame = Self::new(module, None, Rule::InPlace)?;
        if frame.layout.has_followed_markers {
            frame.marked = Some(Box::new(Self::new(module, None, Rule::Xla)?));
        }
        Ok(frame)
    }

    pub(super) fn new(
        module: &Module,
        permutation: Option<&[u32]>,
        rule: Rule,
    ) -> Result<Self, MemoryError> {
        let shapes = ShapeNodes::new(module);
        let steps = Steps::new(module, permutation);
        let nodes = Nodes::new(module, &steps, &shapes).ok_or(MemoryError::TooManyParts)?;
        let reader = Reader { module, steps: &steps, shapes: &shapes, nodes: &nodes };
        // Alpa splits the program at its markers, so they never run.
        let through_markers = rule == Rule::InPlace;
        let Values { of: values, mismatched, has_followed_markers } =
            Values::new(&reader, through_markers);
        let donations = Donations::new(&reader);
        let mut sets = Sets::new(values.len());
        join_aliases(&reader, &values, &mut sets);
        let shaped = OnceLock::new();
        let layout =
            Layout { steps, shapes, nodes, values, mismatched, has_followed_markers, shaped };
        Ok(Self::of_layout(module, Arc::new(layout), donations, sets))
    }

    fn of_layout(
        module: &Module,
        layout: Arc<Layout>,
        donations: Donations,
        mut sets: Sets,
    ) -> Self {
        let (reader, values) = (layout.reader(module), &layout.values);
        donations.join(values, &mut sets);
        let mut ranges = Ranges::new(&reader, values, &donations);
        ranges.hand_over_joined(&reader, values);
        let (buffered, assigned, tables) = (OnceLock::new(), OnceLock::new(), OnceLock::new());
        Frame { layout, donations, sets, ranges, buffered, assigned, tables, marked: None }
    }

    /// The frame of the module if `donated` were aliases too.
    pub(super) fn donating(&self, module: &Module, donated: &[Alias]) -> Self {
        let mut donations = self.donations.clone();
        donations.add(&self.reader(module), donated);
        let frame = Self::of_layout(module, Arc::clone(&self.layout), donations, self.sets.clone());
        Frame { tables: self.tables.clone(), ..frame }
    }

    /// The frame of the module if each first one of the pairs of values were live as long as the second one.
    pub(super) fn lasting(&self, pairs: &[(u32, u32)]) -> Self {
        let mut ranges = self.ranges.clone();
        for (value, user) in pairs {
            let end = ranges.ends[*user as usize];
            let own = &mut ranges.ends[*value as usize];
            *own = end.max(*own);
        }
        Frame {
            layout: Arc::clone(&self.layout),
            donations: self.donations.clone(),
            sets: self.sets.clone(),
            ranges,
            buffered: OnceLock::new(),
            assigned: OnceLock::new(),
            tables: self.tables.clone(),
            marked: None,
        }
    }

    /// The frame in which markers are instructions, as for XLA.
    pub(super) fn marked(&self) -> &Frame {
        self.marked.as_deref().unwrap_or(self)
    }

    /// How the text's device rounds pointer tables.
    pub(super) fn tables(&self, module: &Module) -> Tables {
        *self.tables.get_or_init(|| Tables::of_module(module, Backend::of_module(module)))
    }

    pub(super) fn reader<'a>(&'a self, module: &'a Module) -> Reader<'a> {
        self.layout.reader(module)
    }
}

impl Layout {
    /// The shapes of all nodes of `module`.
    pub fn shaped(&self, module: &Module) -> &Shaped {
        self.shaped.get_or_init(|| {
            let mut shapes: Vec<ShapeId> = Vec::with_capacity(self.nodes.len());
            for row in &self.steps.rows {
                node_shapes(module, module.shape(Row(*row)), &mut shapes);
            }
            let spaces: Vec<i64> =
                module.shapes().ids().map(|shape| memory_space(module, shape)).collect();
            let space = |shape: &ShapeId| spaces.get(shape.0 as usize).copied().unwrap_or(0);
            Shaped { spaces: shapes.iter().map(space).collect(), shapes }
        })
    }

    fn reader<'a>(&'a self, module: &'a Module) -> Reader<'a> {
        Reader { module, steps: &self.steps, shapes: &self.shapes, nodes: &self.nodes }
    }
}
