//! Translates the input, a protobuf, and reads the text that comes out; fails if that module is not
//! as it must be.

#![no_main]

#[path = "../../hlofast/tests/support/invariants.rs"]
mod invariants;

use hlofast::text::Source;
use hlofast::{Options, parse, proto};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    proto::is_proto(bytes);
    if let Ok(translation) = proto::to_text(bytes)
        && let Ok(module) = parse(Source::new(translation.text.into()), &Options::default())
    {
        invariants::check_invariants(&module);
    }
});
