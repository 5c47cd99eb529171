//! The TPU compiler's notes on windows, which the time model reads, for other sizes.

/// A `backend_config` in which the windows of an instruction cover other sizes; None if it has no
/// windows. The windows themselves stay, so their number grows with the dimensions of the result,
/// `sizes` (old, new), and the expected cycles with `work`, the ratio of all elements.
pub(super) fn with_windows(config: &[u8], sizes: &[(i64, i64)], work: f64) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(config).ok()?;
    let (start, end) = value_of(text, "\"iteration_bounds\":[", ']')?;
    let bounds: Vec<f64> = text
        .get(start..end)?
        .split(',')
        .map(|word| word.trim().trim_matches('"').parse().ok())
        .collect::<Option<_>>()?;
    let ratio = |(old, new): &(i64, i64)| *new as f64 / (*old).max(1) as f64;
    let all: f64 = sizes.iter().map(ratio).product();
    let scaled: Vec<f64> = if bounds.len() == sizes.len() {
        bounds
            .iter()
            .zip(sizes)
            .map(|(bound, size)| (bound * ratio(size)).ceil().max(1.0))
            .collect()
    } else {
        let first = bounds.iter().take(1).map(|bound| (bound * all).ceil().max(1.0));
        first.chain(bounds.iter().skip(1).copied()).collect()
    };
    let words: Vec<String> = scaled.iter().map(|bound| format!("\"{bound:.0}\"")).collect();
    let mut changed = format!("{}{}{}", text.get(..start)?, words.join(","), text.get(end..)?);
    if let Some((start, end)) = value_of(&changed, "\"estimated_cycles\":\"", '"')
        && let Some(Ok(cycles)) = changed.get(start..end).map(str::parse::<f64>)
        && cycles < NO_ESTIMATE
    {
        changed.replace_range(start..end, &format!("{:.0}", (cycles * work).max(1.0)));
    }
    Some(changed.into_bytes())
}

/// Without an estimate, the compiler writes -1 as an unsigned 64-bit number.
const NO_ESTIMATE: f64 = 9.2e18;

/// Where the value after `key` starts, and where `close` ends it.
fn value_of(text: &str, key: &str, close: char) -> Option<(usize, usize)> {
    let start = text.find(key)? + key.len();
    let length = text.get(start..)?.find(close)?;
    (length > 0).then_some((start, start + length))
}
