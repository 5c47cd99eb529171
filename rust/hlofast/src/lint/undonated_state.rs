//! `undonated-state`: parameters that are replaced by results of the same shape, but whose buffers
//! the results do not take.

use super::finding::Measure;
use super::program::{Program, bytes, counted, form, percent};
use super::site::{Rule, Site};
use crate::Provenance;
use crate::memory::{donatable, parameter_bytes};

pub(super) const RULE: Rule = Rule {
    code: "undonated-state",
    what: "state that a step replaces and does not donate",
    measure: Measure::Memory,
    find,
    message,
    remedy: "donate the old state, so that the new state takes its buffers: \
             jax.jit(step, donate_argnums=...) or donate_argnames",
};

fn find(program: &Program<'_>, sites: &mut Vec<Site>) {
    if !program.is_partitioned() {
        return;
    }
    let parameters = donatable(program.module, program.attribution);
    let sizes = parameters.iter().map(|entry| u64::try_from(entry.bytes).unwrap_or(0));
    if sizes.clone().fold(0, u64::saturating_add) < program.options.min_undonated_bytes {
        return;
    }
    // Small parameters take whole tiles, so the bytes of their elements would be too few to compare.
    let total = u64::try_from(parameter_bytes(program.module)).unwrap_or(0);
    for (entry, size) in parameters.iter().zip(sizes) {
        let site = Site::new(entry.row).sum("undonated_bytes", size);
        let mut site = site.common("parameter_bytes", total);
        site.bytes = Some(size);
        site.change.donated.push(entry.alias.clone());
        site.is_anywhere = true;
        site.provenance = Provenance::Modelled;
        sites.push(site);
    }
}

fn message(_: &Program<'_>, site: &Site) -> String {
    let size = site.figure("undonated_bytes");
    format!(
        "{} of {}, {} of all parameter bytes, {} replaced by results of the same shape and not \
         donated: the step holds the old and the new state{}",
        counted(site.places, "parameter", "parameters"),
        bytes(size),
        percent(size, site.figure("parameter_bytes")),
        form(site.places, "is", "are"),
        site.peak().map(|peak| falls(peak, size)).unwrap_or_default(),
    )
}

/// By how much the peak falls, and why by less than the `size` of the parameters.
fn falls(peak: u64, size: u64) -> String {
    let why = ", because temporaries use the memory of results until these are written";
    match peak {
        0 => format!("; donating them does not lower the peak of memory{why}"),
        _ => format!(
            "; donating them lowers the peak of memory by {}{}",
            bytes(peak),
            if peak < size { why } else { "" }
        ),
    }
}
