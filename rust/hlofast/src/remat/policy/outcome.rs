//! What a step would need under a policy.

use crate::ir::Row;
use std::collections::BTreeMap;

/// What a step would need under a policy.
#[derive(Clone, Debug, Default)]
pub struct Outcome {
    /// Bytes at the peak of device memory; modelled.
    pub peak: i64,
    /// The row at whose step the peak is.
    pub at: Option<Row>,
    /// Bytes kept from the forward to the backward loops, with the inputs of the layers.
    pub kept: i64,
    /// Bytes kept in host memory, each moved there and back once a step.
    pub on_host: i64,
    /// Of the savable values: those that the policy saves and the backward pass needs.
    pub saved: Vec<u32>,
    /// The rows that run again: products, collectives and other heavy work.
    pub again: Vec<Row>,
    /// FLOPs of products and kernels that run again in a step; None beyond 64 bits or if unknown.
    pub flops: Option<i64>,
    /// Bytes that each device sends again in a step, around rings; None if unknown.
    pub wire_bytes: Option<i64>,
    /// The collectives that run again, with the bytes that each device sends for all layers; None if
    /// unknown.
    pub sent: BTreeMap<Row, Option<i64>>,
    /// Seconds that the work takes again, without overlap; None without a device or if unknown.
    pub seconds: Option<f64>,
    /// Seconds in which values move to host memory and back; None if unknown.
    pub moving: Option<f64>,
    /// Seconds by which these moves lengthen the step; None if unknown.
    pub waiting: Option<f64>,
    /// Seconds by which storing what is kept lengthens the step, less than zero if the step as it is
    /// keeps more; None if unknown.
    pub storing: Option<f64>,
}

impl Outcome {
    /// Adds a collective that runs again, in which each device sends so many bytes.
    pub(super) fn send(&mut self, row: Row, bytes: Option<i64>) {
        let plus = |own: Option<i64>| own.zip(bytes).and_then(|(a, b)| a.checked_add(b));
        // Where groups are checkpointed, a layer may run again twice.
        self.sent.entry(row).and_modify(|own| *own = plus(*own)).or_insert(bytes);
        self.wire_bytes = plus(self.wire_bytes);
    }

    /// Seconds that the policy adds to a step that recomputes nothing and keeps what the step as it is
    /// keeps, to rank policies; None if unknown. Storing counts where its time is known. What a step gains
    /// that no longer lacks memory does not count: it is the same for all policies that fit.
    pub fn added_seconds(&self) -> Option<f64> {
        Some(self.seconds? + self.waiting? + self.storing.unwrap_or(0.0))
    }
}
