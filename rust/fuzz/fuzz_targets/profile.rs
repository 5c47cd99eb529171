//! Reads the input as a profile, an XSpace or a trace; fails if what is read is not as it must be.

#![no_main]

#[path = "../../hlofast/tests/support/profile.rs"]
mod profile;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    hlofast::profile::is_profile(bytes);
    profile::read(bytes);
});
