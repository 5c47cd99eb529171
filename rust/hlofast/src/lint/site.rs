//! Places where a rule applies, and how places become findings.

use super::finding::{Falls, Figure, Finding, Measure};
use super::program::{Program, Runs, bytes};
use crate::Provenance;
use crate::comms::{Collective, CollectiveKind, Moved};
use crate::flow::Phase;
use crate::flow::walk::{Trail, converts};
use crate::ir::{Opcode, Row};
use crate::memory::Change;
use std::cmp::Reverse;

/// A rule: its search and its texts.
pub(super) struct Rule {
    /// The name in output and options. It never changes.
    pub code: &'static str,
    /// The description of its findings, for help texts and tables of rules.
    pub what: &'static str,
    pub measure: Measure,
    /// Appends the places where the rule applies.
    pub find: fn(&Program<'_>, &mut Vec<Site>),
    /// The message for places that are combined.
    pub message: fn(&Program<'_>, &Site) -> String,
    pub remedy: &'static str,
}

/// One place, or several combined.
#[derive(Clone, Debug)]
pub(super) struct Site {
    /// The instructions the finding is about.
    pub subjects: Vec<Row>,
    /// Other instructions that are evidence for the finding.
    pub evidence: Vec<Row>,
    /// At stake in all executions; None if unknown.
    pub bytes: Option<u64>,
    /// At stake in all executions; None if unknown.
    pub flops: Option<u64>,
    /// Modelled seconds of what is at stake; a rule may leave them to `complete`.
    pub seconds: Option<f64>,
    /// Parameters of the entry whose values the place is about; see `complete`.
    pub parameters: Vec<Row>,
    /// By how much memory falls when values change as `change` says; set when places are combined,
    /// or by a rule that never combines them.
    pub falls: Option<Falls>,
    /// How values in memory change, for the peak after the change.
    pub change: Change,
    /// Figures to add when places are combined.
    pub sums: Vec<Figure>,
    /// Figures that all combined places share.
    pub common: Vec<Figure>,
    pub phases: Vec<Phase>,
    pub is_lower_bound: bool,
    pub provenance: Provenance,
    /// A further key that must be equal for places to be combined.
    pub key: u64,
    /// The number of the collective.
    pub collective: Option<usize>,
    /// The kind of the collectives, if all have the same kind and the message names it.
    pub kind: Option<CollectiveKind>,
    /// Places with the same key are combined whatever their source lines.
    pub is_anywhere: bool,
    /// The remedy, if it is not the remedy of the rule. Places with the same key share it.
    pub remedy: Option<&'static str>,
    pub places: u64,
}

impl Site {
    pub fn new(row: Row) -> Self {
        Self {
            subjects: vec![row],
            evidence: Vec::new(),
            bytes: None,
            flops: None,
            seconds: None,
            parameters: Vec::new(),
            falls: None,
            change: Change::default(),
            sums: Vec::new(),
            common: Vec::new(),
            phases: Vec::new(),
            is_lower_bound: false,
            provenance: Provenance::Exact,
            key: 0,
            collective: None,
            kind: None,
            is_anywhere: false,
            remedy: None,
            places: 1,
        }
    }

    /// Sets the collective.
    pub fn of(mut self, collective: usize) -> Self {
        self.collective = Some(collective);
        self
    }

    /// The collective, or the first of several.
    pub fn collective<'a>(&self, program: &Program<'a>) -> Option<&'a Collective> {
        program.collectives.collectives.get(self.collective?)
    }

    /// Sets the phase, and whether figures are lower bounds, from how often the place runs.
    pub fn runs(mut self, runs: &Runs) -> Self {
        self.phases = vec![runs.phase];
        self.is_lower_bound = runs.is_lower_bound;
        self
    }

    /// Bytes by which the peak falls.
    pub fn peak(&self) -> Option<u64> {
        self.falls.map(|falls| falls.peak)
    }

    pub fn sum(mut self, name: &'static str, value: u64) -> Self {
        self.sums.push(Figure { name, value });
        self
    }

    pub fn common(mut self, name: &'static str, value: u64) -> Self {
        self.common.push(Figure { name, value });
        self
    }

    /// Figure `name`; 0 if there is none.
    pub fn figure(&self, name: &str) -> u64 {
        let mut figures = self.sums.iter().chain(&self.common);
        figures.find(|figure| figure.name == name).map_or(0, |figure| figure.value)
    }

    /// Adds seconds and parameters.
    pub fn complete(&mut self, program: &Program<'_>, measure: Measure) {
        if self.seconds.is_none() {
            self.seconds = self.modelled_seconds(program, measure);
        }
        let mut parameters = Vec::new();
        if let Some(collective) = self.collective(program) {
            let pieces = collective.pieces.start as usize..collective.pieces.end as usize;
            let pieces = program.collectives.pieces.get(pieces).unwrap_or_default();
            let weights = pieces.iter().filter(|piece| piece.moved == Moved::Weight);
            parameters.extend(weights.filter_map(|piece| piece.source));
        }
        let rows = self.subjects.iter().chain(&self.evidence).take(MOST_PARAMETERS);
        parameters.extend(rows.filter_map(|row| parameter(program, *row)));
        add_rows(&mut self.parameters, parameters, MOST_PARAMETERS);
    }

    /// The part of the modelled time of the collective, or of the instruction, that the bytes or
    /// FLOPs at stake make up; None if unknown.
    pub fn modelled_seconds(&self, program: &Program<'_>, measure: Measure) -> Option<f64> {
        let part = |part: u64, whole: u64| part as f64 / whole.max(1) as f64;
        match measure {
            Measure::Memory | Measure::Parameters | Measure::Arrays | Measure::Traffic => None,
            Measure::None => {
                let row = *self.subjects.first()?;
                let flops = program.runs(row).times(program.product_flops(row)?)?;
                Some(program.seconds(row)? * part(self.flops?, flops))
            }
            Measure::Payload | Measure::Wire => {
                let collective = self.collective(program)?;
                let once = match measure {
                    Measure::Payload => collective.payload(),
                    _ => collective.ring_wire_bytes(),
                };
                let whole = program.runs_of(collective).times(once?)?;
                Some(program.collective_seconds(self.collective?)? * part(self.bytes?, whole))
            }
        }
    }

    fn add(&mut self, other: Site) {
        add_rows(&mut self.subjects, other.subjects, MOST_ROWS);
        add_rows(&mut self.evidence, other.evidence, MOST_ROWS);
        for phase in other.phases {
            if !self.phases.contains(&phase) {
                self.phases.push(phase);
            }
        }
        let sum = |a: Option<u64>, b: Option<u64>| Some(a?.saturating_add(b?));
        self.bytes = sum(self.bytes, other.bytes);
        self.flops = sum(self.flops, other.flops);
        self.seconds = self.seconds.zip(other.seconds).map(|(own, other)| own + other);
        add_rows(&mut self.parameters, other.parameters, MOST_PARAMETERS);
        self.change.add(other.change);
        self.falls = None;
        for figure in other.sums {
            match self.sums.iter_mut().find(|own| own.name == figure.name) {
                Some(own) => own.value = own.value.saturating_add(figure.value),
                None => self.sums.push(figure),
            }
        }
        self.is_lower_bound |= other.is_lower_bound;
        self.provenance = self.provenance.max(other.provenance);
        self.kind = self.kind.filter(|kind| other.kind == Some(*kind));
        self.places += other.places;
    }
}

/// Limit on the instructions that a finding lists; the limit on evidence is equal.
pub(super) const MOST_ROWS: usize = 1024;
/// Limit on the parameters that a finding names, and on the rows of one place that are followed to
/// parameters.
const MOST_PARAMETERS: usize = 64;

/// The parameter of the entry whose values, or a part of them, `row` passes on.
pub(super) fn parameter(program: &Program<'_>, row: Row) -> Option<Row> {
    let module = program.module;
    let moves = |opcode| converts(opcode) || matches!(opcode, Opcode::Slice | Opcode::DynamicSlice);
    // Only rows that stand for a value of elsewhere: others are what the finding is about.
    if !matches!(module.opcode(row), Opcode::Parameter | Opcode::GetTupleElement | Opcode::CopyDone)
    {
        return None;
    }
    let origin = Trail::new(row).follow(module, moves).row;
    let is_entry = module.computation_of(origin) == module.entry();
    (is_entry && module.opcode(origin) == Opcode::Parameter).then_some(origin)
}

fn add_rows(rows: &mut Vec<Row>, more: Vec<Row>, most: usize) {
    for row in more {
        if rows.len() < most && !rows.contains(&row) {
            rows.push(row);
        }
    }
}

/// The properties that all places of one finding share.
type Likeness = (u64, i32, i32, u32);

/// Limit on the instructions between an array that is moved and the one that makes it.
const MOST_MOVES: usize = 16;

/// The first of `rows` that has a source, or is in a fusion that has one, such as a reduction that is written as a
/// fusion. Copies that the compiler adds have none; then the row that makes what the first of `rows` moves.
pub(super) fn source(program: &Program<'_>, rows: &[Row]) -> Option<Row> {
    let module = program.module;
    let columns = module.metadata_columns();
    let is_known = |row: &Row| program.sources().place(columns, *row).0 >= 0;
    let fusions = rows.iter().map(|row| program.scheduled(*row));
    if let Some(row) = rows.iter().copied().chain(fusions).find(is_known) {
        return Some(row);
    }
    let next = |row: &Row| module.operands(*row).first().map(|row| Row(*row));
    std::iter::successors(rows.first().copied(), next).take(MOST_MOVES).find(is_known)
}

/// Drains `sites` and combines places with the same key and source line (without a source line, the
/// same shape). Within a result, places with more at stake come first; results are in the order in
/// which calls reach their first places.
pub(super) fn merge(program: &Program<'_>, sites: &mut Vec<Site>) -> Vec<Site> {
    if sites.is_empty() {
        return Vec::new();
    }
    let metadata = program.module.metadata_columns();
    let likeness = |site: &Site| -> Likeness {
        let Some(row) = site.subjects.first().filter(|_| !site.is_anywhere) else {
            return (site.key, -1, -1, 0);
        };
        let shown = source(program, &site.subjects).unwrap_or(*row);
        match program.sources().place(metadata, shown) {
            (file, line) if file >= 0 => (site.key, file, line, 0),
            _ => (site.key, -1, -1, program.module.shape(*row).0),
        }
    };
    let mut keyed: Vec<(Likeness, Site)> = sites.drain(..).map(|s| (likeness(&s), s)).collect();
    let place = |site: &Site| site.subjects.first().map(|row| program.place(*row));
    keyed.sort_by_key(|(likeness, site)| {
        (*likeness, Reverse(site.bytes), Reverse(site.flops), place(site))
    });
    let mut merged: Vec<(Likeness, Site)> = Vec::new();
    for (likeness, site) in keyed {
        match merged.last_mut() {
            Some((last, own)) if *last == likeness => own.add(site),
            _ => merged.push((likeness, site)),
        }
    }
    let mut merged: Vec<Site> = merged.into_iter().map(|(_, site)| site).collect();
    merged.sort_by_key(place);
    merged
}

/// How much less XLA allocates, where that is not what the peak falls by, and the gaps of the heap where they are
/// large: between the values of a heap lie gaps, whose size changes with the values. What they are in another schedule
/// cannot be told. None if the heap is not known.
fn packed(falls: Falls) -> Option<String> {
    let allocated = falls.allocated?;
    let most = falls.peak.max(allocated);
    let differs = allocated.abs_diff(falls.peak) > most / GAP_PART;
    let kind = if allocated > falls.peak { "fewer" } else { "more" };
    let falls_by = match allocated {
        0 => "does not fall".to_owned(),
        allocated => format!("falls by {}", bytes(allocated)),
    };
    let cause = "because the heap then has";
    let packed = format!("; what XLA allocates {falls_by}, {cause} {kind} gaps between values");
    let gaps = falls.gaps.filter(|gaps| most > 0 && *gaps > most / LOOSE_PART);
    let loose = gaps.map(|gaps| {
        let size = bytes(gaps);
        format!("; the heap has {size} of gaps now, which change if XLA then schedules the step differently")
    });
    let packed = if differs { packed } else { String::new() };
    Some(packed + &loose.unwrap_or_default())
}

/// Messages name the gaps of a heap if they exceed this part of the figure.
const LOOSE_PART: u64 = 5;
/// Messages leave out gaps of less than this part of the figure.
const GAP_PART: u64 = 20;

pub(super) fn finding(program: &Program<'_>, rule: &Rule, mut site: Site) -> Finding {
    site.falls = site.falls.or_else(|| program.memory_falls(&site.change));
    // Arrays that shrink with those of the finding may then be fused away.
    let named = site.bytes.map(|bytes| bytes.saturating_add(site.figure("weight_bytes")));
    site.is_lower_bound |= !site.change.divided.is_empty() && site.peak() > named;
    let mut message = (rule.message)(program, &site);
    message.push_str(&site.falls.and_then(packed).unwrap_or_default());
    let source = source(program, &site.subjects);
    let mut rows = site.subjects;
    add_rows(&mut rows, site.evidence, 2 * MOST_ROWS);
    Finding {
        code: rule.code,
        rows,
        source,
        places: site.places,
        bytes: site.bytes,
        measure: rule.measure,
        falls: site.falls,
        flops: site.flops,
        seconds: site.seconds,
        parameters: site.parameters,
        figures: site.sums.into_iter().chain(site.common).collect(),
        phases: site.phases,
        is_lower_bound: site.is_lower_bound,
        provenance: site.provenance,
        message,
        remedy: site.remedy.unwrap_or(rule.remedy),
    }
}
