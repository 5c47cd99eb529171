//! Matmuls whose work does not follow from their new shapes.
//!
//! A partitioner divides the work of a matmul along an axis once, or not at all. Two kinds of matmuls
//! have shapes that are divided twice. One multiplies shards while they pass around a ring, and runs
//! once per shard: in a loop, or as instructions whose number is that of the compiled mesh. Another
//! has lost a dimension of one element, whose growth two other dimensions take. The work of all
//! devices together stays in both, and tells what they compute on another mesh. Matmuls for which it
//! does not tell are unsure.

use super::fast::Leaving;
use super::size::Sizes;
use super::symbols::Seed;
use super::{Attributed, ScaleError, rewrite};
use crate::comms::Mesh;
use crate::cost::matmul::{Contraction, contraction};
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{CallRole, ComputationId, Module, Opcode, Row};
use std::collections::{HashMap, HashSet};

/// How far a ratio of sizes may be from a power of the axis's ratio: shards are padded.
const ROUNDING: f64 = 0.1;

/// What new shapes and trip counts do not tell of matmuls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Work {
    /// By matmul: what it computes, divided by what shapes and trip counts say.
    pub factors: HashMap<Row, f64>,
    /// Matmuls that may compute more or less than shapes and trip counts say.
    pub unsure: HashSet<Row>,
}

impl Work {
    /// The same by the rows of a module that lacks some.
    pub(super) fn without(self, removed: &[Row]) -> Self {
        let mut removed = removed.to_vec();
        removed.sort_unstable();
        let new = |row: Row| Row(row.0 - removed.partition_point(|own| *own < row) as u32);
        Self {
            factors: self.factors.into_iter().map(|(row, factor)| (new(row), factor)).collect(),
            unsure: self.unsure.into_iter().map(new).collect(),
        }
    }
}

/// One axis with another size.
struct Along {
    axis: usize,
    /// The new size divided by the old.
    ratio: f64,
    /// Whether a dimension that the compiled shapes may lack grows.
    grows_from_one: bool,
}

/// How the trip counts of the loops around a matmul change.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Trips {
    /// New counts divided by old ones.
    ratio: f64,
    /// Iterations divided by the new counts: a loop runs at least once, and whole times.
    rest: f64,
}

impl Trips {
    const ONCE: Self = Self { ratio: 1.0, rest: 1.0 };

    fn times(self, other: Self) -> Self {
        Self { ratio: self.ratio * other.ratio, rest: self.rest * other.rest }
    }
}

impl Attributed<'_> {
    /// The work of matmuls after a change, which is looked at one size after the other.
    pub(super) fn work(&self, sizes: &Sizes<'_>) -> Result<Work, ScaleError> {
        let mut work = Work::default();
        let same: Vec<(i64, i64)> = sizes.axes.iter().map(|(old, _)| (*old, *old)).collect();
        for (axis, (old, new)) in sizes.axes.iter().copied().enumerate() {
            if old == new {
                continue;
            }
            let mut axes = same.clone();
            if let Some(slot) = axes.get_mut(axis) {
                slot.1 = new;
            }
            let own = Sizes { symbols: sizes.symbols, changed: HashMap::new(), axes };
            let changed = self.alone(&own)?;
            let grows_from_one = new < old
                && self.seeds.all.iter().any(|seed| seed.axes.contains(&axis) && self.is_one(seed));
            let along = Along { axis, ratio: new as f64 / old.max(1) as f64, grows_from_one };
            self.along(&along, &own, &changed, &mut work);
        }
        for (root, size) in &sizes.changed {
            let is_own = |seed: &&Seed| self.spread.symbols.root(seed.symbol).0 == *root;
            let is_one = self.seeds.all.iter().filter(is_own).any(|seed| self.is_one(seed));
            let old = self.spread.symbols.all.get(*root as usize).map_or(0, |own| own.size);
            if is_one && *size > old {
                let changed = HashMap::from([(*root, *size)]);
                let own = Sizes { symbols: sizes.symbols, changed, axes: same.clone() };
                let changed = self.alone(&own)?;
                let stays =
                    |(_, old, new): &(Row, Contraction, Contraction)| old.flops == new.flops;
                let stay = self.matmuls(&changed).filter(stays).map(|(row, ..)| row);
                work.unsure.extend(stay);
            }
        }
        work.factors.retain(|row, _| !work.unsure.contains(row));
        Ok(work)
    }

    /// The module with these sizes only.
    fn alone(&self, sizes: &Sizes<'_>) -> Result<Module, ScaleError> {
        let mesh = self.spread.mesh.map(|mesh| {
            let new = mesh.axes().iter().zip(&sizes.axes);
            Mesh::new(new.map(|(axis, (_, size))| (axis.name.clone(), *size)).collect())
        });
        let mesh = mesh.transpose().map_err(|error| ScaleError::Refused(error.to_string()))?;
        Ok(rewrite::write(self, sizes, mesh.as_ref(), &Leaving::default())?.module)
    }

    /// Whether a device has one element of a dimension.
    fn is_one(&self, seed: &Seed) -> bool {
        let places = &self.spread.places;
        let slots = (0..places.leaves(seed.row)).filter_map(|leaf| places.leaf(seed.row, leaf));
        let mut local = slots.filter_map(|slot| slot.at(seed.dimension));
        local.any(|dim| places.size(dim) == 1)
    }

    /// Matmuls that do something, as compiled and as changed.
    fn matmuls(&self, changed: &Module) -> impl Iterator<Item = (Row, Contraction, Contraction)> {
        let module = self.spread.module;
        module.rows().filter_map(move |row| {
            let (old, new) = (contraction(module, row)?, contraction(changed, row)?);
            (old.flops > 0 && new.flops > 0).then_some((row, old, new))
        })
    }

    /// Adds what one axis does.
    fn along(&self, along: &Along, sizes: &Sizes<'_>, changed: &Module, work: &mut Work) {
        let trips = self.trips_by_computation(along.axis, sizes);
        for (row, old, new) in self.matmuls(changed) {
            let trips = trips.get(self.spread.module.computation_of(row).0 as usize);
            match self.factor(along, row, (&old, &new), trips.copied().flatten()) {
                Some(1.0) => {}
                Some(factor) => *work.factors.entry(row).or_insert(1.0) *= factor,
                None => drop(work.unsure.insert(row)),
            }
        }
    }

    /// What a matmul computes, divided by what shape and trip counts say; None if unsure.
    fn factor(
        &self,
        along: &Along,
        row: Row,
        (old, new): (&Contraction, &Contraction),
        trips: Option<Trips>,
    ) -> Option<f64> {
        let trips = trips?;
        let is_looped = trips != Trips::ONCE;
        let sides = [(old.batch, new.batch), (old.m, new.m), (old.n, new.n), (old.k, new.k)];
        let power = |ratio: f64| {
            let power = (ratio.ln() / along.ratio.ln()).round();
            ((ratio / along.ratio.powf(power) - 1.0).abs() <= ROUNDING).then_some(power)
        };
        let powers: Option<Vec<f64>> =
            sides.iter().map(|(old, new)| power(*new as f64 / *old as f64)).collect();
        if powers?.iter().any(|power| *power > 0.0) {
            return None;
        }
        match power(new.flops as f64 / old.flops as f64)? {
            0.0 if is_looped || along.grows_from_one => None,
            0.0 => Some(1.0),
            -1.0 => Some(trips.rest),
            -2.0 if is_looped || !self.is_manual(row) => Some(along.ratio / trips.ratio),
            _ => None,
        }
    }

    /// Whether the program itself says what each device computes.
    fn is_manual(&self, row: Row) -> bool {
        let value = self.spread.module.attribute_bytes(row, "metadata");
        let decoded = value.and_then(|value| decode(b"metadata", Opcode::Dot, value).ok());
        let Some(AttributeValue::Metadata(metadata)) = decoded else { return true };
        let name = metadata.op_name.as_deref().unwrap_or_default();
        name.is_empty() || memchr::memmem::find(name, b"shard_map").is_some()
    }

    /// By computation: the ratio of the trip counts of the loops around it that pass values on along
    /// an axis; None if the trip count of one is unknown.
    fn trips_by_computation(&self, axis: usize, sizes: &Sizes<'_>) -> Vec<Option<Trips>> {
        let module = self.spread.module;
        let mut loops = HashMap::new();
        for (row, trip) in &self.loops {
            if self.looped.contains_key(row) || self.axis_of_loop(*row) != Some(axis) {
                continue;
            }
            let known = trip.count.zip(self.trips(*row, trip, sizes));
            let trips = known.map(|(old, new)| Trips {
                ratio: new.count as f64 / old.max(1) as f64,
                rest: new.exact / new.count as f64,
            });
            loops.insert(*row, trips);
        }
        let mut trips = vec![Some(Trips::ONCE); module.computations().len()];
        // Computations are written before their callers.
        for id in (0..trips.len()).rev().map(|id| ComputationId(id as u32)) {
            let Some(caller) = module.callers(id).first().map(|row| Row(*row)) else { continue };
            let around = trips.get(module.computation_of(caller).0 as usize).copied().flatten();
            let is_body = module.called(caller, CallRole::Body) == Some(id);
            let own = loops.get(&caller).copied().filter(|_| is_body).unwrap_or(Some(Trips::ONCE));
            if let Some(slot) = trips.get_mut(id.0 as usize) {
                *slot = around.zip(own).map(|(around, own)| around.times(own));
            }
        }
        trips
    }
}
