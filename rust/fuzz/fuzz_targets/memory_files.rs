//! Reads the input as one of XLA's memory files, of a module that comes with it: the text in front
//! of the first line `%%%` is the module, what follows it the file.

#![no_main]

#[path = "../../hlofast/tests/support/memory_file.rs"]
mod memory_file;

use libfuzzer_sys::fuzz_target;

fuzz_target!(|input: &[u8]| {
    memory_file::read(input);
});
