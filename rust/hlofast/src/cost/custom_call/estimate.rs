//! Estimates by kernel authors: `cost_estimate` and `cost_estimate_json`.

use super::words::value_after;
use super::{CustomCallCost, CustomCallKind};
use crate::Provenance;
use crate::cost::matmul::Contraction;
use crate::ir::{Module, Row};

/// The author's cost of one execution.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Estimate {
    flops: Option<i64>,
    transcendentals: Option<i64>,
    bytes_accessed: Option<i64>,
}

const LONGEST: usize = 1000;

/// Reads an estimate in any spelling: JSON, JSON inside a string, an MLIR dictionary. The search
/// looks for words and numbers, so quotes may be escaped in any way.
pub(super) fn find(config: &[u8]) -> Option<Estimate> {
    let start = memchr::memmem::find(config, b"cost_estimate")?;
    let text = config.get(start..)?;
    let text = text.get(..LONGEST.min(text.len()))?;
    let estimate = Estimate {
        flops: number_after(text, b"flops"),
        transcendentals: number_after(text, b"transcendentals"),
        bytes_accessed: number_after(text, b"bytes_accessed"),
    };
    (estimate != Estimate::default()).then_some(estimate)
}

/// The number after the word `key`.
fn number_after(text: &[u8], key: &[u8]) -> Option<i64> {
    let after = value_after(text, key)?;
    let is_part = |b: &&u8| matches!(b, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
    number(after.get(..after.iter().take_while(is_part).count())?)
}

/// A non-negative integer, or a float rounded to one.
fn number(text: &[u8]) -> Option<i64> {
    let text = std::str::from_utf8(text).ok()?;
    if let Ok(value) = text.parse::<i64>() {
        return (value >= 0).then_some(value);
    }
    let value: f64 = text.parse().ok()?;
    (0.0..9e18).contains(&value).then_some(value.round() as i64)
}

impl Estimate {
    /// The estimate as a custom call's cost. Estimates do not split reads from writes: up to the
    /// size of the outputs counts as written, the rest as read. If the kernel is known by name, its
    /// dimensions and, where the author gives no FLOPs, its FLOPs are those of `named`.
    pub(super) fn cost(
        self,
        module: &Module,
        row: Row,
        kind: CustomCallKind,
        named: Option<CustomCallCost>,
    ) -> CustomCallCost {
        if self.flops.is_none()
            && let Some(named) = named
        {
            return named;
        }
        let contraction = named.and_then(|named| named.contraction);
        let contraction = contraction.zip(self.flops).map(|(contraction, flops)| Contraction {
            flops,
            provenance: Provenance::FromBackendConfig,
            ..contraction
        });
        let outputs = module.shapes().logical_bytes(module.shape(row));
        let outputs = outputs.and_then(|bytes| i64::try_from(bytes).ok());
        let written = self.bytes_accessed.zip(outputs).map(|(bytes, outputs)| bytes.min(outputs));
        let read = self.bytes_accessed.zip(written).map(|(bytes, written)| bytes - written);
        CustomCallCost {
            flops: self.flops,
            transcendentals: self.transcendentals,
            bytes_read: read,
            bytes_written: written,
            provenance: match self.flops {
                Some(_) => Provenance::FromBackendConfig,
                None => Provenance::Unknown,
            },
            contraction,
            kind: named.map_or(kind, |named| named.kind),
            reason: "the kernel author's cost_estimate in backend_config",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_spelling() {
        let expected =
            Estimate { flops: Some(12), transcendentals: Some(3), bytes_accessed: Some(4096) };
        for text in [
            r#"{"custom_call_config":{"body":"AA==","cost_estimate":{"flops":"12","transcendentals":"3","bytes_accessed":"4096","remote_bytes_transferred":"0"}}}"#,
            r#"{"cost_estimate": {"flops": 12, "transcendentals": 3, "bytes_accessed": 4096}}"#,
            r#"{"cost_estimate": {"flops": 1.2e1, "transcendentals": 3.0, "bytes_accessed": 4096}}"#,
            r#""{\"cost_estimate\":{\"flops\":\"12\",\"transcendentals\":\"3\",\"bytes_accessed\":\"4096\"}}""#,
            r#"{cost_estimate_json = "{\22flops\22: 12, \22transcendentals\22: 3, \22bytes_accessed\22: 4096}"}"#,
            r#""{cost_estimate_json = \"{\\22flops\\22: 12, \\22transcendentals\\22: 3, \\22bytes_accessed\\22: 4096}\"}""#,
            r#"{cost_estimate = {bytes_accessed = 4096 : i64, flops = 12 : i64, transcendentals = 3 : i64}}"#,
            r#"{cost_estimate_json = "{\u0022flops\u0022: 12, \u0022transcendentals\u0022: 3, \u0022bytes_accessed\u0022: 4096}"}"#,
        ] {
            assert_eq!(find(text.as_bytes()), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_is_no_estimate() {
        for text in [
            r#"{"flops": 12}"#,
            r#"{"cost_estimate": {}}"#,
            r#"{"cost_estimate": {"flops": "many"}}"#,
            r#"{"cost_estimate": {"flops": -1}}"#,
            r#"{"cost_estimate": {"model_flops": 12, "flops": 1e300}}"#,
            r#"{"cost_estimate"#,
        ] {
            assert_eq!(find(text.as_bytes()), None, "{text}");
        }
    }
}
