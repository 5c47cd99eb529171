//! In which of its orders XLA runs a step under a policy.

use super::scans::Scan;
use super::{Fate, Policies, SavableKind};
use crate::cost::Backend;
use crate::flow::has_compiler_clones;
use crate::ir::Module;

/// How many times the peak of the list scheduler's order the peak of the text's order must be to be replaced. For
/// texts in another order, its simulated peak is up to 3 % lower, with parameters up to 2 %.
const MARGIN: f64 = 1.02;
/// The same under policies that save values. XLA kept the order of programs whose peaks are 1.21 and 1.28 times
/// apart, and changed it where they are 1.35 times apart (`roomy_model_v5e_4` in `tests/fixtures/policy_roomy.py`).
const APART: f64 = 1.3;

impl Policies {
    /// Whether a policy keeps less in device memory than the step as it is.
    pub(super) fn keeps_less(&self, fates: &[Fate]) -> bool {
        self.savable.iter().zip(fates).any(|(value, fate)| {
            let stays = *fate == Fate::Offloaded && self.is_on_host(value);
            value.is_kept && *fate != Fate::Saved && !stays
        })
    }

    /// Whether a policy saves any value that layers make in device memory.
    pub(super) fn saves_any(&self, fates: &[Fate]) -> bool {
        self.savable
            .iter()
            .zip(fates)
            .any(|(value, fate)| value.kind != SavableKind::Input && *fate == Fate::Saved)
    }

    /// How many times the peak of the list scheduler's order the peak of the text's order must be for XLA to
    /// take the other; None if it does not.
    ///
    /// Where a policy saves values, gradients of weights read them from stacks and hold little else while they
    /// wait, so the order mostly stays that of the text. Where it saves none, they would hold all that runs
    /// again. In texts whose products run in loops around rings they wait even then.
    pub(super) fn least_apart(&self, fates: &[Fate]) -> Option<f64> {
        let is_on_host = || self.scans.iter().flat_map(|scan| &scan.stacks).any(|own| own.is_host);
        if is_on_host() {
            return Some(MARGIN);
        }
        let is_in_rings = self.scans.iter().any(|scan| scan.is_in_rings);
        (!is_in_rings).then(|| if self.saves_any(fates) { APART } else { MARGIN })
    }
}

/// Whether XLA may run a module with these scans in another order than that of its text. A text that XLA
/// has rematerialised by itself has the order of a program that does not fit (`late.rs`). Of checkpointed layers
/// only those that use host memory are nearer with: `benches/policy_accuracy.py`.
pub fn may_be_listed(module: &Module, scans: &[Scan]) -> bool {
    let is_tpu = Backend::of_module(module) == Backend::Tpu;
    let is_checkpointed = scans.iter().any(|scan| scan.recomputed.is_checkpointed);
    let is_on_host = scans.iter().flat_map(|scan| &scan.stacks).any(|stack| stack.is_host);
    is_tpu && !has_compiler_clones(module) && (is_on_host || !is_checkpointed)
}
