//! The TPU compiler's notes on one instruction: its division into windows and the expected cycles.

use crate::ir::{Module, Row};
use memchr::memmem::Finder;
use std::sync::LazyLock;

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

/// Keys and marks in backend_configs: every instruction of a TPU program is searched for them.
static CONFIG: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"\"window_config\":"));
static SPLIT: LazyLock<Finder<'static>> = LazyLock::new(|| Finder::new(b"megacore_split_dim"));

/// The windows in the `backend_config` of `row`, if any.
pub fn windows(module: &Module, row: Row) -> Option<Windows> {
    let content = module.backend_config(row)?;
    let at = CONFIG.find(&content)? + CONFIG.needle().len();
    let rest = content.get(at..)?;
    // The configuration contains only lists and plain values, so the first closing brace ends it.
    let end = memchr::memchr(b'}', rest)?;
    let config = Config::read(rest.get(..end)?)?;
    let elements = |list: Option<&[u8]>| match bounds(list) {
        Bounds::None => 0.0,
        Bounds::Of(count) => count.unwrap_or(0.0) * TILE,
    };
    let estimate = config.estimated_cycles.and_then(number::<f64>);
    Some(Windows {
        iterations: match bounds(config.iterations) {
            Bounds::None => 1.0,
            Bounds::Of(count) => count?,
        },
        output: elements(config.output),
        kernel: elements(config.kernel),
        input: elements(config.input),
        is_split: SPLIT.find(&content).is_some(),
        estimated_cycles: estimate.filter(|cycles| *cycles > 0.0 && *cycles < NO_ESTIMATE),
    })
}

/// The values of a `window_config` that are needed, as text.
#[derive(Default)]
struct Config<'a> {
    iterations: Option<&'a [u8]>,
    output: Option<&'a [u8]>,
    kernel: Option<&'a [u8]>,
    input: Option<&'a [u8]>,
    estimated_cycles: Option<&'a [u8]>,
}

impl<'a> Config<'a> {
    /// Reads a JSON object of lists and plain values, without its closing brace. A tree of values
    /// would take most of the time of the whole model.
    fn read(text: &'a [u8]) -> Option<Self> {
        let mut config = Self::default();
        let mut rest = text.trim_ascii_start().strip_prefix(b"{")?.trim_ascii_start();
        while !rest.is_empty() {
            let (key, after) = split_at(rest.strip_prefix(b"\"")?, b'"')?;
            let after = after.trim_ascii_start().strip_prefix(b":")?.trim_ascii_start();
            let (value, after) = match after.first()? {
                b'[' => split_at(after, b']')?,
                b'"' => split_at(after.get(1..)?, b'"')?,
                _ => after.split_at(memchr::memchr(b',', after).unwrap_or(after.len())),
            };
            match key {
                b"iteration_bounds" => config.iterations = Some(value),
                b"output_window_bounds" => config.output = Some(value),
                b"kernel_window_bounds" => config.kernel = Some(value),
                b"input_window_bounds" => config.input = Some(value),
                b"estimated_cycles" => config.estimated_cycles = Some(value),
                _ => {}
            }
            rest = after.trim_ascii_start();
            rest = match rest.strip_prefix(b",") {
                Some(rest) => rest.trim_ascii_start(),
                None if rest.is_empty() => rest,
                None => return None,
            };
        }
        Some(config)
    }
}

/// What stands before and behind the first `end`.
fn split_at(text: &[u8], end: u8) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(end, text)?;
    Some((text.get(..at)?, text.get(at + 1..)?))
}

/// A number, which XLA writes as a string if it has 64 bits.
fn number<T: std::str::FromStr>(text: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(text).ok()?;
    text.trim().trim_matches('"').trim().parse().ok()
}

/// The product of a list of sizes.
enum Bounds {
    /// No list, or an empty one.
    None,
    /// None if a size is not a positive integer.
    Of(Option<f64>),
}

fn bounds(list: Option<&[u8]>) -> Bounds {
    let Some(list) = list.and_then(|text| text.strip_prefix(b"[")) else { return Bounds::None };
    if list.trim_ascii().is_empty() {
        return Bounds::None;
    }
    let sizes = list.split(|byte| *byte == b',').map(number::<i64>);
    let positive = |size: Option<i64>| size.filter(|size| *size > 0).map(|size| size as f64);
    Bounds::Of(sizes.map(positive).product())
}
