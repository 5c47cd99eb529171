//! What entry parameters say: symbols for their dimensions, and which symbol is the batch, the
//! sequence, the layers.

use super::roles::Evidence;
use super::size::{Factor, MOST_AXES, Symbol};
use super::spread::{How, Spread};
use super::{Found, Role};
use crate::flow::trip_count::{TripCount, trip_counts};
use crate::ir::decode::{AttributeValue, HeaderValue, Placement, Sharding, decode, decode_header};
use crate::ir::{CallRole, ComputationId, ElementKind, Module, Opcode, Row};
use std::collections::{BTreeMap, HashMap, HashSet};

/// One dimension of an entry parameter.
pub(super) struct Seed {
    pub symbol: u32,
    pub row: Row,
    /// Which array of the parameter.
    pub leaf: usize,
    pub dimension: usize,
    /// Axes that divide the dimension, by index.
    pub axes: Vec<usize>,
    pub name: String,
    is_integer: bool,
    /// Whether the parameter is the key of a random generator.
    is_key: bool,
    is_state: bool,
    rank: usize,
}

/// Words of a key: of Threefry, and of the generator that JAX calls `rbg`.
const KEYS: [i64; 2] = [2, 4];

impl Seed {
    /// Number of dimensions of the parameter.
    pub fn rank(&self) -> usize {
        self.rank
    }
}

/// The seeds, and what is missing.
#[derive(Default)]
pub(super) struct Seeds {
    pub all: Vec<Seed>,
    /// Parameters of a partitioned module whose sharding the text or the mesh lacks.
    pub unsharded: Vec<Row>,
}

/// The name of an entry parameter: the program's if the text has it.
fn name_of(module: &Module, row: Row) -> String {
    let value = module.attribute_bytes(row, "metadata");
    let decoded = value.and_then(|value| decode(b"metadata", Opcode::Parameter, value).ok());
    if let Some(AttributeValue::Metadata(metadata)) = decoded
        && let Some(name) = &metadata.op_name
        && !name.is_empty()
    {
        return String::from_utf8_lossy(name).into_owned();
    }
    String::from_utf8_lossy(module.instruction_name(row)).into_owned()
}

/// Numbers of the parameters whose memory a result takes.
fn donated(module: &Module) -> HashSet<u64> {
    let value = |key: &str| {
        let span = module.header_attribute(key)?;
        decode_header(key.as_bytes(), module.bytes(span)).ok()
    };
    let mut numbers = HashSet::new();
    if let Some(HeaderValue::Aliases(aliases)) = value("input_output_alias") {
        numbers.extend(aliases.iter().filter_map(|alias| u64::try_from(alias.number).ok()));
    }
    if let Some(HeaderValue::BufferDonors(donors)) = value("buffer_donor") {
        numbers.extend(donors.iter().filter_map(|donor| u64::try_from(donor.parameter).ok()));
    }
    numbers
}

impl Spread<'_> {
    /// A result that takes the memory of an entry parameter has the parameter's dimensions.
    pub(super) fn tie_results(&mut self) {
        let module = self.module;
        let value = module.header_attribute("input_output_alias").map(|span| module.bytes(span));
        let value = value.and_then(|value| decode_header(b"input_output_alias", value).ok());
        let Some(HeaderValue::Aliases(aliases)) = value else { return };
        let entry = module.computation(module.entry());
        if entry.rows().is_empty() {
            return;
        }
        let root = Row(entry.root);
        let parameters = module.parameters(module.entry());
        for alias in aliases {
            let first = match alias.output_index[..] {
                [] => Some(0),
                [place] => usize::try_from(place)
                    .ok()
                    .and_then(|place| module.shapes().first_leaf(module.shape(root), place)),
                _ => None,
            };
            let number = u64::try_from(alias.number).ok();
            let parameter = parameters.iter().find(|row| module.parameter_number(**row) == number);
            if let (Some(first), Some(parameter), []) = (first, parameter, &alias.index[..])
                && self.places.leaves(*parameter) == 1
            {
                self.same_leaves(root, first as usize, *parameter, 0);
            }
        }
    }

    /// Gives every dimension of the entry parameters a symbol.
    pub(super) fn seed(&mut self) -> Seeds {
        let module = self.module;
        let donated = donated(module);
        let devices = self.mesh.map_or(1, crate::comms::Mesh::device_count);
        let mut seeds = Seeds::default();
        for row in module.parameters(module.entry()) {
            let number = module.parameter_number(row).unwrap_or(u64::MAX);
            let name = name_of(module, row);
            let text = module.attribute_bytes(row, "sharding");
            let decoded = text.and_then(|text| decode(b"sharding", Opcode::Parameter, text).ok());
            let sharding = match &decoded {
                Some(AttributeValue::Sharding(sharding)) => Some(sharding),
                _ => None,
            };
            let leaves: Vec<_> = module.shapes().leaves(module.shape(row)).collect();
            for (leaf, shape) in leaves.into_iter().enumerate() {
                let (Some(slot), Some(array)) =
                    (self.places.leaf(row, leaf), module.shapes().array(shape))
                else {
                    continue;
                };
                let parts = self.axes_of_leaf(sharding, leaf);
                if parts.is_none() && devices > 1 && slot.rank > 0 {
                    seeds.unsharded.push(row);
                }
                let parts = parts.unwrap_or_default();
                let kind = array.element_type.kind();
                for (dimension, dim) in slot.dims().enumerate() {
                    let local = self.places.size(dim);
                    if local < 0 {
                        continue;
                    }
                    let mut factor = Factor::of_symbol(0, local);
                    let mut whole = local;
                    let mut axes = Vec::new();
                    for (axis, size, is_whole) in parts.get(dimension).into_iter().flatten() {
                        whole = whole.saturating_mul(*size);
                        match factor.axes.get_mut(*axis) {
                            Some(exponent) if *is_whole => {
                                *exponent -= 1;
                                axes.push(*axis);
                            }
                            _ => factor.parts = factor.parts.saturating_mul(*size),
                        }
                    }
                    let is_integer = matches!(kind, ElementKind::Signed | ElementKind::Unsigned);
                    let is_state = donated.contains(&number);
                    let is_length = dimension > 0 && is_integer && !is_state;
                    let input = is_length.then_some(row.0);
                    factor.symbol = self.symbols.add(Symbol { size: whole, sum: None, input });
                    seeds.all.push(Seed {
                        symbol: factor.symbol,
                        row,
                        leaf,
                        dimension,
                        axes,
                        name: name.clone(),
                        is_integer,
                        is_key: kind == ElementKind::Unsigned
                            && slot.len() == 1
                            && KEYS.contains(&local),
                        is_state,
                        rank: slot.len(),
                    });
                    self.set(dim, vec![factor]);
                }
            }
        }
        seeds
    }

    /// By dimension: axis, size, and whether it is the whole axis. None if unknown.
    fn axes_of_leaf(
        &self,
        sharding: Option<&Sharding<'_>>,
        leaf: usize,
    ) -> Option<Vec<Vec<(usize, i64, bool)>>> {
        let (mesh, sharding) = (self.mesh?, sharding?.leaf(leaf)?);
        if matches!(sharding.placement, Placement::Maximal(_)) {
            return Some(Vec::new());
        }
        let spec = mesh.partition_spec(sharding).ok()?;
        let of_dimension = |axes: &[crate::comms::AxisPart]| {
            let of_part = |part: &crate::comms::AxisPart| {
                let full = mesh.axes().get(part.axis).map_or(0, |axis| axis.size);
                let is_whole = full == part.size && part.axis < MOST_AXES;
                (part.axis, i64::try_from(part.size).unwrap_or(1), is_whole)
            };
            axes.iter().map(of_part).collect()
        };
        Some(spec.dimensions.iter().map(|own| of_dimension(&own.axes)).collect())
    }

    /// The loops that run once per element of a symbol: by loop, the symbol's root.
    ///
    /// All stacks that a loop takes slices of have one element per iteration, so they are joined,
    /// and so are stacks of results, which no parameter determines.
    pub(super) fn find_loops(&mut self) -> (Vec<(Row, TripCount)>, HashMap<Row, u32>) {
        let loops = trip_counts(self.module);
        let count = |(row, trip): &(Row, TripCount)| Some((*row, i64::try_from(trip.count?).ok()?));
        let counts: HashMap<Row, i64> = loops.iter().filter_map(count).collect();
        let mut found: HashMap<Row, u32> = HashMap::new();
        for (symbol, computation) in self.sliced.clone() {
            let (root, shift) = self.symbols.root(symbol);
            let size = self.symbols.all.get(root as usize).map_or(0, |symbol| symbol.size);
            if shift != 0 {
                continue;
            }
            for around in self.loops_around(computation, size, &counts) {
                let first = *found.entry(around).or_insert(root);
                let own = [Factor::of_symbol(root, size)];
                self.symbols.join(&[Factor::of_symbol(first, size)], &own);
            }
        }
        for (dim, computation) in std::mem::take(&mut self.open_slices) {
            let size = self.places.size(dim);
            if self.get(dim).is_none()
                && let Some(around) = self.loops_around(computation, size, &counts).first()
                && let Some(symbol) = found.get(around)
            {
                self.set(dim, vec![Factor::of_symbol(*symbol, size)]);
            }
        }
        for root in found.values_mut() {
            *root = self.symbols.root(*root).0;
        }
        (loops, found)
    }

    /// The loops with `size` iterations whose body calls `computation`, through fusions and calls.
    fn loops_around(
        &self,
        computation: ComputationId,
        size: i64,
        counts: &HashMap<Row, i64>,
    ) -> Vec<Row> {
        let module = self.module;
        let mut found = Vec::new();
        let (mut open, mut seen) = (vec![computation], HashSet::from([computation]));
        while let Some(inner) = open.pop() {
            for caller in module.callers(inner).iter().map(|row| Row(*row)) {
                if module.called(caller, CallRole::Body) == Some(inner) {
                    if counts.get(&caller) == Some(&size) {
                        found.push(caller);
                    }
                } else if seen.insert(module.computation_of(caller)) {
                    open.push(module.computation_of(caller));
                }
            }
        }
        found
    }

    /// The symbols with a role, and the other dimensions of parameters.
    pub(super) fn roles(&mut self, seeds: &Seeds, loops: &HashMap<Row, u32>) -> Vec<Found> {
        let mut found: BTreeMap<u32, Found> = BTreeMap::new();
        let looped: HashSet<u32> = loops.values().copied().collect();
        let inputs = self.inputs(seeds, &looped);
        self.join_batches(seeds, &looped, &inputs);
        let root = |seed: &Seed| self.symbols.root(seed.symbol).0;
        let mut roles: BTreeMap<u32, (Role, Evidence)> = BTreeMap::new();
        for row in &inputs {
            let of_input: Vec<&Seed> = seeds.all.iter().filter(|seed| seed.row == *row).collect();
            let free: Vec<&&Seed> =
                of_input.iter().filter(|seed| !looped.contains(&root(seed))).collect();
            for seed in of_input.iter().filter(|seed| looped.contains(&root(seed))) {
                roles.insert(root(seed), (Role::Accumulation, Evidence::SlicedInput));
            }
            let mut free = free.into_iter();
            if let Some(batch) = free.next() {
                roles.insert(root(batch), (Role::Batch, Evidence::First));
            }
            if let Some(sequence) = free.next() {
                let is_one =
                    self.symbols.all.get(root(sequence) as usize).is_some_and(|s| s.size <= 1);
                let role = roles.get(&root(sequence)).map(|(role, _)| *role);
                if !is_one && role != Some(Role::Batch) {
                    let own = (Role::Sequence, Evidence::Second);
                    roles.entry(root(sequence)).or_insert(own);
                }
            }
        }
        for root in &looped {
            roles.entry(*root).or_insert((Role::Layers, Evidence::Sliced));
        }
        self.other_roles(seeds, loops, &inputs, &mut roles);
        let shifts = self.shifts();
        for seed in &seeds.all {
            let root = root(seed);
            let unknown = (Role::Other, Evidence::Parameters);
            let (role, evidence) = roles.get(&root).copied().unwrap_or(unknown);
            let shift = shifts.get(&root).map_or(0, |(shift, _)| *shift);
            let size = self.symbols.all.get(root as usize).map_or(0, |symbol| symbol.size);
            let entry = found.entry(root).or_insert_with(|| Found {
                root,
                role,
                evidence,
                shift,
                size: size.saturating_add(shift),
                parameters: Vec::new(),
                axes: Vec::new(),
                dimensions: shifts.get(&root).map_or(0, |(_, count)| *count),
                loops: loops.values().filter(|own| **own == root).count(),
            });
            entry.parameters.push((seed.name.clone(), seed.dimension));
            for axis in &seed.axes {
                if !entry.axes.contains(axis) {
                    entry.axes.push(*axis);
                }
            }
        }
        let mut found: Vec<Found> = found.into_values().collect();
        found.sort_by_key(|own| (own.role, std::cmp::Reverse(own.dimensions), own.root));
        found
    }

    /// The entry parameters that hold a batch: integers that no result replaces, and arrays that
    /// share their first dimension with these.
    fn inputs(&self, seeds: &Seeds, looped: &HashSet<u32>) -> Vec<Row> {
        let root = |seed: &Seed| self.symbols.root(seed.symbol).0;
        let has_state = seeds.all.iter().any(|seed| seed.is_state);
        let rows = |wanted: &dyn Fn(&Seed) -> bool| {
            let mut rows: Vec<Row> = Vec::new();
            for seed in seeds.all.iter().filter(|seed| wanted(seed)) {
                if !rows.contains(&seed.row) {
                    rows.push(seed.row);
                }
            }
            rows
        };
        let may_hold = |seed: &Seed| !seed.is_state && !seed.is_key && seed.rank > 0;
        let mut inputs = rows(&|seed| seed.is_integer && may_hold(seed));
        if inputs.is_empty() && has_state {
            inputs = rows(&may_hold);
        }
        let first = |row: Row| {
            let own = seeds.all.iter().filter(|seed| seed.row == row);
            own.map(root).find(|root| !looped.contains(root))
        };
        let batches: HashSet<u32> = inputs.iter().filter_map(|row| first(*row)).collect();
        let is_alike = |seed: &Seed| !seed.is_state && seed.rank > 0;
        let has_batch = |row: Row| first(row).is_some_and(|root| batches.contains(&root));
        // Labels may meet the images only in sums, which tie no dimensions: where the state is
        // donated, what is not donated is an input if its first dimension is divided alike.
        let looks = |row: Row| {
            let own = seeds.all.iter().find(|seed| seed.row == row && seed.dimension == 0);
            own.is_some_and(|own| {
                seeds.all.iter().any(|seed| {
                    inputs.contains(&seed.row)
                        && seed.dimension == 0
                        && seed.axes == own.axes
                        && self.size_of_symbol(seed.symbol) == self.size_of_symbol(own.symbol)
                })
            })
        };
        let more: Vec<Row> = rows(&is_alike)
            .into_iter()
            .filter(|row| !inputs.contains(row))
            .filter(|row| has_batch(*row) || (has_state && looks(*row)))
            .collect();
        inputs.extend(more);
        inputs
    }

    pub(super) fn size_of_symbol(&self, symbol: u32) -> i64 {
        let (root, shift) = self.symbols.root(symbol);
        self.symbols.all.get(root as usize).map_or(0, |own| own.size.saturating_add(shift))
    }

    /// Joins the batches of inputs that are equally large.
    fn join_batches(&mut self, seeds: &Seeds, looped: &HashSet<u32>, inputs: &[Row]) {
        let mut known: HashMap<i64, u32> = HashMap::new();
        for row in inputs {
            let own = seeds.all.iter().filter(|seed| seed.row == *row);
            let mut symbols = own.map(|seed| seed.symbol);
            let first = symbols.find(|symbol| !looped.contains(&self.symbols.root(*symbol).0));
            let Some(symbol) = first else { continue };
            let (root, shift) = self.symbols.root(symbol);
            let size = self.size_of_symbol(root);
            let other = *known.entry(size).or_insert(root);
            if shift == 0 && other != root {
                let own = [Factor::of_symbol(root, size)];
                self.symbols.join(&[Factor::of_symbol(other, size)], &own);
            }
        }
    }

    /// By root: what most dimensions add to the symbol, and how many dimensions contain it.
    fn shifts(&self) -> HashMap<u32, (i64, usize)> {
        let mut counts: HashMap<u32, HashMap<i64, usize>> = HashMap::new();
        for (dim, how) in self.dims.iter().zip(&self.how) {
            if *how == How::Constant {
                continue;
            }
            for factor in dim.as_deref().unwrap_or_default() {
                let (root, shift) = self.symbols.root(factor.symbol);
                if (root as usize) < self.symbols.all.len() {
                    let own = counts.entry(root).or_default();
                    *own.entry(shift + factor.shift).or_insert(0) += 1;
                }
            }
        }
        let most = |own: HashMap<i64, usize>| {
            let total = own.values().sum();
            let best = own.into_iter().max_by_key(|(shift, count)| (*count, -shift.abs()));
            (best.map_or(0, |(shift, _)| shift), total)
        };
        counts.into_iter().map(|(root, own)| (root, most(own))).collect()
    }
}
