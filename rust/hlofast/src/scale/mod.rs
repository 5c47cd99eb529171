//! A compiled module for another batch, sequence, number of layers or mesh.
//!
//! The idea: every dimension of every instruction is a product of symbols (dimensions of the entry
//! parameters) and sizes of mesh axes. Shardings of the entry parameters give the first products;
//! each instruction ties dimensions of its operands and results together, so the products spread over
//! the module (`spread.rs`, `rules.rs`, `collectives.rs`). The roles of symbols follow from their
//! place (`symbols.rs`): batch and sequence are dimensions of the inputs, the layers are what a loop
//! takes slices of; width, heads and vocabulary are what matmuls and lookups make of the others
//! (`roles.rs`). New sizes of symbols and axes then give a new size to every dimension, and the
//! module's text is written again with them (`rewrite.rs`), with the trip counts of loops and the
//! device groups of collectives. All analyses run on the new module as on any other.
//!
//! Which instructions there are, how they are fused, scheduled and laid out, stays as compiled.

mod collectives;
mod devices;
mod division;
mod fast;
mod free;
mod hidden;
mod moves;
mod ones;
mod places;
mod reshapes;
mod rewrite;
mod roles;
mod rules;
mod size;
mod spread;
mod symbols;
mod tiles;
mod undecided;
mod windows;
mod work;

use crate::comms::Mesh;
use crate::edit::EditError;
use crate::flow::trip_count::TripCount;
use crate::ir::{Module, Row};
use division::Tile;
use fast::Leaving;
use places::Places;
pub use roles::Evidence;
use size::Sizes;
use spread::{How, Spread};
use std::collections::HashMap;
use std::fmt;
use symbols::Seeds;
pub use undecided::Lookup;
pub use work::Work;

/// What a symbol stands for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// The batch of all devices together.
    Batch,
    /// Positions of a sequence in the inputs.
    Sequence,
    /// What a loop over layers takes slices of.
    Layers,
    /// What a loop over parts of the batch takes slices of.
    Accumulation,
    /// Features of a token between layers.
    Width,
    /// What attention computes apart: heads, times their size where weights merge both.
    Heads,
    /// Rows of the table that tokens look up, and results for each of them.
    Vocabulary,
    /// Another dimension of parameters.
    Other,
}

impl Role {
    /// The name used in tables.
    pub fn as_str(self) -> &'static str {
        match self {
            Role::Batch => "batch",
            Role::Sequence => "sequence",
            Role::Layers => "layers",
            Role::Accumulation => "accumulation",
            Role::Width => "width",
            Role::Heads => "heads",
            Role::Vocabulary => "vocabulary",
            Role::Other => "other",
        }
    }
}

/// A symbol found in a module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    root: u32,
    /// What it stands for.
    pub role: Role,
    /// Why it stands for that.
    pub evidence: Evidence,
    /// What most dimensions add to the parameter's dimension: -1 for the positions of tokens that
    /// are shifted by one.
    pub shift: i64,
    /// The size that most dimensions have, over all devices together.
    pub size: i64,
    /// Name and dimension of each entry parameter that has the symbol.
    pub parameters: Vec<(String, usize)>,
    /// Mesh axes that divide it in some entry parameter.
    pub axes: Vec<usize>,
    /// Number of dimensions in the module that contain it.
    pub dimensions: usize,
    /// Number of loops with one iteration per element.
    pub loops: usize,
}

/// What is known of all dimensions of a module.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Coverage {
    /// Dimensions larger than 1.
    pub dimensions: usize,
    /// Of these, followed from the entry parameters.
    pub followed: usize,
    /// Of these, by a rule that another program could contradict.
    pub assumed: usize,
    /// Of these, taken as constant since nothing ties them to a parameter.
    pub constant: usize,
    /// Instructions whose dimensions contradict each other.
    pub conflicts: usize,
    /// Entry parameters without a known sharding in a module of several devices.
    pub unsharded: usize,
}

/// Why a module cannot be changed.
#[derive(Clone, Debug)]
pub enum ScaleError {
    /// The module has too many dimensions.
    TooLarge,
    /// A request cannot be fulfilled.
    Refused(String),
    /// The new text could not be written.
    Edit(EditError),
}

impl fmt::Display for ScaleError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ScaleError::TooLarge => f.write_str("the module has too many dimensions to attribute"),
            ScaleError::Refused(reason) => f.write_str(reason),
            ScaleError::Edit(error) => write!(f, "the changed text cannot be written: {error}"),
        }
    }
}

impl std::error::Error for ScaleError {}

/// New sizes.
#[derive(Clone, Debug, Default)]
pub struct Change {
    /// Index of a symbol in [`Attributed::found`], and its new size.
    pub symbols: Vec<(usize, i64)>,
    /// The new mesh: the same axes in the same order.
    pub mesh: Option<Mesh>,
}

/// A changed module, and what was taken for granted.
#[derive(Debug)]
pub struct Scaled {
    /// The module.
    pub module: Module,
    /// Dimensions whose new size does not divide evenly over mesh axes, and is rounded up.
    pub rounded: usize,
    /// Rows of the module that the changed one lacks: moves to or from fast memory.
    pub removed: Vec<Row>,
    /// Loops whose trip count follows the size of a mesh axis by assumption.
    pub assumed_loops: Vec<Row>,
    /// Collectives whose devices follow no axes of the mesh, so that their groups stay.
    pub unchanged_groups: Vec<Row>,
    /// Matmuls whose work does not follow from their new shapes, by row of the changed module.
    pub work: Work,
}

/// A module with an attribution of all its dimensions.
pub struct Attributed<'m> {
    spread: Spread<'m>,
    seeds: Seeds,
    loops: Vec<(Row, TripCount)>,
    looped: HashMap<Row, u32>,
    /// How written shardings divide shapes that are those of all devices together.
    tiles: Vec<Tile>,
    /// The symbols: those with a role first.
    pub found: Vec<Found>,
}

impl<'m> Attributed<'m> {
    /// Attributes the dimensions of `module`, compiled for `mesh`.
    pub fn new(module: &'m Module, mesh: Option<&'m Mesh>) -> Result<Self, ScaleError> {
        let mut spread = Spread::new(module, Places::new(module)?, mesh);
        let seeds = spread.seed();
        spread.run();
        let (loops, mut looped) = std::mem::take(&mut spread.loops);
        for root in looped.values_mut() {
            *root = spread.symbols.root(*root).0;
        }
        let found = spread.roles(&seeds, &looped);
        spread.ones(&seeds.all, &found);
        Ok(Self { spread, seeds, loops, looped, tiles: Vec::new(), found })
    }

    /// Attributes the dimensions of `module` before it is partitioned over `mesh`: no axis divides
    /// its shapes, but new sizes have to divide as the entry parameters' shardings say.
    pub fn before_partitioning(
        module: &'m Module,
        mesh: Option<&Mesh>,
    ) -> Result<Self, ScaleError> {
        let own = Self::new(module, None)?;
        let tiles = mesh.map(|mesh| division::tiles(module, mesh, &own.seeds.all));
        Ok(Self { tiles: tiles.unwrap_or_default(), ..own })
    }

    /// How much of the module the attribution covers.
    pub fn coverage(&self) -> Coverage {
        let mut coverage = Coverage::default();
        for (how, size) in self.spread.how.iter().zip(&self.spread.places.sizes) {
            if *size <= 1 {
                continue;
            }
            coverage.dimensions += 1;
            match how {
                How::Followed => coverage.followed += 1,
                How::Assumed => coverage.assumed += 1,
                How::Constant | How::Unknown => coverage.constant += 1,
            }
        }
        let mut rows = self.spread.conflicts.clone();
        rows.sort_unstable();
        rows.dedup();
        coverage.conflicts = rows.len();
        coverage.unsharded = self.seeds.unsharded.len();
        coverage
    }

    /// The first instructions whose dimensions contradict each other.
    pub fn conflicts(&self) -> &[Row] {
        &self.spread.conflicts
    }

    /// The module with new sizes.
    pub fn apply(&self, change: &Change) -> Result<Scaled, ScaleError> {
        let mut changed = HashMap::new();
        for (index, size) in &change.symbols {
            let found = self.found.get(*index);
            let found = found.ok_or_else(|| ScaleError::Refused("no such symbol".to_owned()))?;
            if *size < 1 {
                let reason =
                    format!("{} cannot be {size}: it must be at least 1", found.role.as_str());
                return Err(ScaleError::Refused(reason));
            }
            changed.insert(found.root, size.saturating_sub(found.shift));
        }
        let axes = self.axes(change.mesh.as_ref())?;
        let sizes = Sizes { symbols: &self.spread.symbols, changed, axes };
        self.check_division(&sizes)?;
        let work = self.work(&sizes)?;
        let scaled = self.within_fast_memory(&sizes, change.mesh.as_ref())?;
        let work = work.without(&scaled.removed);
        Ok(Scaled { work, ..scaled })
    }

    /// The changed module, whose arrays in fast memory take no more at once than those of the
    /// module, since the compiler fills that memory.
    fn within_fast_memory(
        &self,
        sizes: &Sizes<'_>,
        mesh: Option<&Mesh>,
    ) -> Result<Scaled, ScaleError> {
        let whole = rewrite::write(self, sizes, mesh, &Leaving::default())?;
        let leaving = Leaving::new(self.spread.module, &whole.module);
        if leaving.is_empty() {
            return Ok(whole);
        }
        rewrite::write(self, sizes, mesh, &leaving)
    }

    /// Old and new size of each axis.
    fn axes(&self, new: Option<&Mesh>) -> Result<Vec<(i64, i64)>, ScaleError> {
        let Some(old) = self.spread.mesh else {
            return match new {
                None => Ok(Vec::new()),
                Some(_) => Err(ScaleError::Refused("the module's own mesh is unknown".to_owned())),
            };
        };
        let number = |size: u64| i64::try_from(size).unwrap_or(i64::MAX);
        let new = new.unwrap_or(old);
        let alike = old.axes().len() == new.axes().len()
            && old.axes().iter().zip(new.axes()).all(|(old, new)| old.name == new.name);
        if !alike {
            let reason = format!(
                "the new mesh must have the axes of the module's own mesh, {}",
                old.to_text()
            );
            return Err(ScaleError::Refused(reason));
        }
        let pairs = old.axes().iter().zip(new.axes());
        Ok(pairs.map(|(old, new)| (number(old.size), number(new.size))).collect())
    }
}
