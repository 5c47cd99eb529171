//! Donated and aliased parameters: which results may reuse which parameters' buffers.

use super::Signature;
use crate::ir::decode::{Alias, HeaderValue, decode_header};
use crate::ir::{Module, Row, ShapeId};

/// The readable content of `input_output_alias` and `buffer_donor`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Donation {
    /// The entries of `input_output_alias`.
    pub aliases: Vec<Alias>,
    /// Bytes of the aliased results; None if unknown.
    pub aliased_bytes: Option<u64>,
    /// Parameter numbers of the entries of `buffer_donor`, in text order.
    pub donors: Vec<u64>,
}

impl Donation {
    pub(super) fn of(module: &Module, shape_bytes: &[i64]) -> Self {
        const KEY: &str = "buffer_donor";
        let aliases = module.aliases().unwrap_or_default().to_vec();
        let donors = module.header_attribute(KEY).map(|span| module.bytes(span));
        let donors = match donors.and_then(|value| decode_header(KEY.as_bytes(), value).ok()) {
            Some(HeaderValue::BufferDonors(donors)) => donors,
            _ => Vec::new(),
        };
        let donors = donors.into_iter().filter_map(|donor| u64::try_from(donor.parameter).ok());
        let donors = donors.collect();
        let result = module.computation(module.entry());
        let root = (!result.rows().is_empty()).then(|| module.shape(Row(result.root)));
        let aliased_bytes = aliases.iter().try_fold(0u64, |sum, alias| {
            let part = part_of(module, root?, &alias.output_index)?;
            sum.checked_add(u64::try_from(*shape_bytes.get(part.0 as usize)?).ok()?)
        });
        Self { aliases, aliased_bytes, donors }
    }

    /// By parameter of `signature`: whether a result may reuse the parameter's buffer or a part of
    /// it.
    pub fn donated(&self, signature: &Signature) -> Vec<bool> {
        let mut numbers: Vec<u64> = self.donors.clone();
        numbers.extend(self.aliases.iter().filter_map(|alias| u64::try_from(alias.number).ok()));
        numbers.sort_unstable();
        let is_donated = |number: u64| numbers.binary_search(&number).is_ok();
        signature.parameters.iter().map(|port| is_donated(port.number)).collect()
    }

    /// By output of `signature`: the parameter whose buffer the output, or a part of it, reuses.
    pub fn aliased_parameters(&self, signature: &Signature) -> Vec<Option<u64>> {
        let mut taken = vec![None; signature.outputs.len()];
        for alias in &self.aliases {
            let output = alias.output_index.first().copied().unwrap_or(0);
            let slot = usize::try_from(output).ok().and_then(|output| taken.get_mut(output));
            if let (Some(slot), Ok(number)) = (slot, u64::try_from(alias.number)) {
                slot.get_or_insert(number);
            }
        }
        taken
    }
}

/// The part of shape `id` at `index`.
fn part_of(module: &Module, id: ShapeId, index: &[i64]) -> Option<ShapeId> {
    index.iter().try_fold(id, |id, step| {
        module.shapes().tuple(id)?.get(usize::try_from(*step).ok()?).copied()
    })
}
