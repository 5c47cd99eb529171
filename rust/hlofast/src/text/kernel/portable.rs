//! The kernel without vector instructions.

use super::{BLOCK, Classes, Kernel};
use crate::text::is_identifier_byte;

/// Plain Rust, on every machine.
pub(crate) struct Portable;

const fn class(byte: u8) -> u16 {
    match byte {
        b'"' => 1,
        b'\\' => 1 << 1,
        b'\n' => 1 << 2,
        b'(' | b'[' | b'{' => 1 << 3,
        b')' | b']' | b'}' => 1 << 4,
        b',' => 1 << 5,
        b' ' => 1 << 6,
        b'/' | b'\'' => 1 << 8,
        _ => 0,
    }
}

const TABLE: [u16; 256] = {
    let mut table = [0; 256];
    let mut i = 0;
    while i < 256 {
        table[i] = class(i as u8);
        i += 1;
    }
    table
};

impl Kernel for Portable {
    #[inline(always)]
    unsafe fn classify(block: &[u8; BLOCK]) -> Classes {
        let mut classes = Classes::default();
        for (i, byte) in block.iter().enumerate() {
            if is_identifier_byte(*byte) {
                continue;
            }
            let bit = 1u64 << i;
            classes.not_identifier |= bit;
            match TABLE[*byte as usize] {
                1 => classes.quote |= bit,
                2 => classes.backslash |= bit,
                4 => classes.newline |= bit,
                8 => classes.open |= bit,
                16 => classes.close |= bit,
                32 => classes.comma |= bit,
                64 => classes.space |= bit,
                256 => classes.special |= bit,
                _ => {}
            }
        }
        classes
    }

    #[inline(always)]
    unsafe fn prefix_xor(bits: u64) -> u64 {
        let mut bits = bits;
        for shift in [1, 2, 4, 8, 16, 32] {
            bits ^= bits << shift;
        }
        bits
    }

    #[inline(always)]
    fn prefetch(_place: &u64) {}
}
