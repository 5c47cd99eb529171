//! Reads the input in every way and both with and without collecting errors; fails if two ways
//! disagree or a module is not as it must be.

#![no_main]

#[path = "../../hlofast/tests/support/compare.rs"]
mod compare;
#[path = "../../hlofast/tests/support/invariants.rs"]
mod invariants;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|text: &[u8]| {
    for collect in [false, true] {
        if let Ok(module) = compare::read_in_every_way("", text, collect) {
            invariants::check_invariants(&module);
        }
    }
});
