//! Direction and distance of a collective-permute along mesh axes.

use super::axes::{AxisPart, Mismatch};
use super::digits::Digit;
use super::groups::{GroupContext, GroupMode};
use super::mesh::Mesh;
use crate::error::Result;
use crate::ir::decode::{AttributeValue, decode};
use crate::ir::{Module, Row};

/// The mesh axes of source-target pairs.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum PermuteMatch {
    /// No transfer leaves its device.
    Nothing,
    /// Every transfer goes the same distance along the same axes.
    Shift {
        /// The axis, or several axes counted as one, major first.
        parts: Vec<AxisPart>,
        /// The distance, from -n/2 to n/2 for n devices along the axes.
        by: i64,
        /// Whether a transfer goes from one end of the axes to the other.
        wraps: bool,
        /// Whether every device that can send does send (all devices if the shift wraps).
        complete: bool,
    },
    /// Transfers change only the coordinates along these axes, by different distances.
    Axes {
        /// In mesh order.
        parts: Vec<AxisPart>,
    },
    /// The pairs do not fit the mesh.
    NoSubset(Mismatch),
}

impl PermuteMatch {
    /// The axes along which transfers go.
    pub fn parts(&self) -> &[AxisPart] {
        match self {
            PermuteMatch::Shift { parts, .. } | PermuteMatch::Axes { parts } => parts,
            _ => &[],
        }
    }
}

/// Limit on the divisors tried when narrowing an axis to the part along which transfers go.
const CUT_LIMIT: u64 = 1024;

impl Mesh {
    /// The axes and distance of `source_target_pairs`; linear in the pairs.
    pub fn permute_of(
        &self,
        pairs: &[(i64, i64)],
        mode: GroupMode,
        context: &GroupContext,
    ) -> PermuteMatch {
        // Without a channel the numbers are replicas. All partitions of a replica behave in the
        // same way, so the first represents them.
        let partitions = match mode {
            GroupMode::CrossReplica => match (context.replica_count, context.num_partitions) {
                (Some(replicas), Some(partitions)) if replicas > 1 => partitions,
                _ => 1,
            },
            _ => 1,
        };
        let mut positions = Vec::with_capacity(pairs.len());
        for (source, target) in pairs {
            let position = |device: i64| {
                let number = u64::try_from(device).ok().and_then(|d| d.checked_mul(partitions));
                number.and_then(|d| self.position(d)).ok_or(Mismatch::UnknownDevice(device))
            };
            match (position(*source), position(*target)) {
                (Ok(source), Ok(target)) => positions.push((source, target)),
                (Err(mismatch), _) | (_, Err(mismatch)) => {
                    return PermuteMatch::NoSubset(mismatch);
                }
            }
        }
        let moves: Vec<(u64, u64)> = positions.iter().copied().filter(|(s, t)| s != t).collect();
        if moves.is_empty() {
            return PermuteMatch::Nothing;
        }
        let has_still = moves.len() != positions.len();
        let whole = self.moving_axes(&moves);
        let parts = self.narrowed(&whole, &moves);
        for candidate in [&whole, &parts] {
            if !has_still && let Some(shift) = self.shift(candidate, &moves) {
                return shift;
            }
        }
        PermuteMatch::Axes { parts }
    }

    /// The axes and distance of the collective-permute in `row`; `Nothing` if it has no pairs.
    pub fn permute_of_row(
        &self,
        module: &Module,
        row: Row,
        context: &GroupContext,
    ) -> Result<PermuteMatch> {
        let mut pairs = Vec::new();
        if let Some(span) = module.attribute(row, "source_target_pairs") {
            let decoded = decode(b"source_target_pairs", module.opcode(row), module.bytes(span));
            if let AttributeValue::SourceTargetPairs(decoded) =
                decoded.map_err(|error| error.shifted(span.start))?
            {
                pairs = decoded;
            }
        }
        let has_channel = module.attribute(row, "channel_id").is_some();
        Ok(self.permute_of(&pairs, GroupMode::from_attributes(has_channel, None), context))
    }

    /// The axes in whose coordinates a source and its target differ.
    fn moving_axes(&self, moves: &[(u64, u64)]) -> Vec<AxisPart> {
        let moving = |digit: &Digit| {
            let at = |position: u64| position / digit.stride % digit.size;
            moves.iter().any(|(source, target)| at(*source) != at(*target))
        };
        let axes = self.digits().iter().enumerate().filter(|(_, digit)| moving(digit));
        axes.map(|(axis, digit)| AxisPart { axis, before: 1, size: digit.size }).collect()
    }

    /// The axes without the parts of their coordinates that never change.
    fn narrowed(&self, whole: &[AxisPart], moves: &[(u64, u64)]) -> Vec<AxisPart> {
        let narrow = |part: &AxisPart| {
            let Some(digit) = self.position_digit(part) else { return *part };
            let at = |position: u64| position / digit.stride % digit.size;
            let low = moves.iter().fold(digit.size, |low, (source, target)| {
                greatest_common_divisor(low, at(*source).abs_diff(at(*target)))
            });
            let stays = |above: u64| moves.iter().all(|(s, t)| at(*s) / above == at(*t) / above);
            let cuts = (2..=CUT_LIMIT.min(digit.size)).rev();
            let before = cuts
                .filter(|before| digit.size.is_multiple_of(*before))
                .map(|before| (before, digit.size / before))
                .find(|(_, above)| above.is_multiple_of(low) && above > &low && stays(*above))
                .map_or(1, |(before, _)| before);
            AxisPart { axis: part.axis, before, size: digit.size / before / low }
        };
        whole.iter().map(narrow).collect()
    }

    fn shift(&self, parts: &[AxisPart], moves: &[(u64, u64)]) -> Option<PermuteMatch> {
        let digits: Vec<Digit> =
            parts.iter().map(|part| self.position_digit(part)).collect::<Option<_>>()?;
        let size = digits.iter().try_fold(1u64, |size, digit| size.checked_mul(digit.size))?;
        let at = |position: u64| {
            digits
                .iter()
                .fold(0, |number, digit| number * digit.size + position / digit.stride % digit.size)
        };
        let forward = |(source, target): &(u64, u64)| (at(*target) + size - at(*source)) % size;
        let by = forward(moves.first()?);
        if by == 0 || !moves.iter().all(|pair| forward(pair) == by) {
            return None;
        }
        let by = i64::try_from(by).ok()?;
        // Half of an even ring is the same distance both ways. Take the direction of the pairs, or
        // forward if they go both ways.
        let is_back = moves.iter().all(|(source, target)| at(*target) < at(*source));
        let half = size as i64 / 2;
        let is_half = by == half && size.is_multiple_of(2);
        let signed = if by > half || is_half && is_back { by - size as i64 } else { by };
        // A pair wraps if it goes against the direction of the shift.
        let wraps = moves.iter().any(|(s, t)| (at(*t) < at(*s)) == (signed > 0));
        let lines = self.device_count() / size;
        let senders = if wraps { size } else { size - signed.unsigned_abs() };
        let complete = lines.checked_mul(senders) == Some(moves.len() as u64);
        Some(PermuteMatch::Shift { parts: parts.to_vec(), by: signed, wraps, complete })
    }

    /// `model +1`, `model -1 without wraparound`, `data×model`; empty if nothing moves.
    pub fn permute_text(&self, permute_match: &PermuteMatch) -> String {
        match permute_match {
            PermuteMatch::Nothing => String::new(),
            PermuteMatch::Shift { parts, by, wraps, .. } => {
                let end = if *wraps { "" } else { " without wraparound" };
                format!("{} {by:+}{end}", self.parts_text(parts))
            }
            PermuteMatch::Axes { parts } => self.parts_text(parts),
            PermuteMatch::NoSubset(_) => "no axis subset".to_owned(),
        }
    }
}

fn greatest_common_divisor(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { greatest_common_divisor(b, a % b) }
}
