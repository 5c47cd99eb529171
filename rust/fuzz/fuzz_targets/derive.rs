//! Computes every column and decodes every value of what the input holds.

#![no_main]

#[path = "../../hlofast/tests/support/exercise.rs"]
mod exercise;

use hlofast::text::Source;
use hlofast::{Options, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let options = Options { collect_errors: true, ..Options::default() };
    if let Ok(module) = parse(Source::from_slice(text), &options) {
        exercise::exercise(&module);
    }
});
