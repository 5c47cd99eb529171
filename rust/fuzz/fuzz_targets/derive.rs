//! Computes every column, decodes every value of what the input holds and prints it; reads the
//! input strictly too.

#![no_main]

#[path = "../../hlofast/tests/support/exercise.rs"]
mod exercise;

use hlofast::text::Source;
use hlofast::parse::Strictness;
use hlofast::{Options, parse};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    let options = Options { collect_errors: true, ..Options::default() };
    if let Ok(module) = parse(Source::from_slice(text), &options) {
        exercise::exercise(&module);
    }
    for strictness in [Strictness::Jaxlib, Strictness::Newest] {
        let options = Options { strictness, ..Options::default() };
        if parse(Source::from_slice(text), &options).is_ok() {
            let tolerant = parse(Source::from_slice(text), &Options::default());
            assert!(tolerant.is_ok(), "strict reading accepts what tolerant reading does not");
        }
    }
});
