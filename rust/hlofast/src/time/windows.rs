//! The TPU compiler's notes on one instruction: its division into windows and the expected cycles.

use crate::ir::backend_config::json_integer;
use crate::ir::{Module, Row};
use serde_json::Value;

/// `window_config` of one instruction.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Windows {
    /// Windows that run one after the other.
    pub iterations: f64,
    /// Elements of one window of the result, in whole tiles of 8 by 128.
    pub output: f64,
    /// Elements of one window of a convolution's kernel; 0 for other instructions.
    pub kernel: f64,
    /// Elements of one window of a convolution's input; 0 for other instructions.
    pub input: f64,
    /// Whether a part of the work runs on each core of the device; if not, one core does it all.
    pub is_split: bool,
    /// The compiler's own estimate.
    pub estimated_cycles: Option<f64>,
}

/// Elements of a tile, the unit of windows.
const TILE: f64 = 1024.0;
/// Without an estimate, the compiler writes -1 as an unsigned 64-bit number.
const NO_ESTIMATE: f64 = 9.2e18;

/// The windows in the `backend_config` of `row`, if any.
pub fn windows(module: &Module, row: Row) -> Option<Windows> {
    let content = module.backend_config(row)?;
    let key = b"\"window_config\":";
    let at = memchr::memmem::find(&content, key)? + key.len();
    let rest = content.get(at..)?;
    // The configuration contains only lists and plain values, so the first closing brace ends it.
    let end = memchr::memchr(b'}', rest)? + 1;
    let config: Value = serde_json::from_slice(rest.get(..end)?).ok()?;
    let bounds = |name: &str| {
        let list = config.get(name).and_then(Value::as_array)?;
        let sizes = list.iter().map(|size| json_integer(size).filter(|size| *size > 0));
        sizes.map(|size| size.map(|size| size as f64)).product::<Option<f64>>()
    };
    let is_empty = |name: &str| {
        let list = config.get(name).and_then(Value::as_array);
        list.is_none_or(Vec::is_empty)
    };
    let elements = |name: &str| {
        if is_empty(name) { 0.0 } else { bounds(name).unwrap_or(0.0) * TILE }
    };
    let estimate = config.get("estimated_cycles").and_then(|value| match value {
        Value::String(text) => text.trim().parse::<f64>().ok(),
        value => value.as_f64(),
    });
    Some(Windows {
        iterations: if is_empty("iteration_bounds") { 1.0 } else { bounds("iteration_bounds")? },
        output: elements("output_window_bounds"),
        kernel: elements("kernel_window_bounds"),
        input: elements("input_window_bounds"),
        is_split: memchr::memmem::find(&content, b"megacore_split_dim").is_some(),
        estimated_cycles: estimate.filter(|cycles| *cycles > 0.0 && *cycles < NO_ESTIMATE),
    })
}
