//! The kernels with x86-64 vector instructions.

use super::{BLOCK, Classes, Kernel};
use std::arch::x86_64::*;

/// 256-bit vectors (AVX2, PCLMULQDQ, BMI).
pub(crate) struct Avx2;
/// 512-bit vectors (AVX-512 BW, VL and VBMI, PCLMULQDQ, BMI).
pub(crate) struct Avx512;

/// Per low nibble: which high nibbles hold an identifier byte, one bit per high nibble 2..=7.
/// Bytes from 0x80 have the sign bit set, for which the shuffle gives 0.
const IDENTIFIER_BY_LOW: [i8; 16] = {
    let mut table = [0i8; 16];
    let mut byte = 0usize;
    while byte < 128 {
        let c = byte as u8;
        if c.is_ascii_alphanumeric() || c == b'_' || c == b'.' || c == b'-' {
            table[byte & 15] |= 1 << (byte >> 4);
        }
        byte += 1;
    }
    table
};

/// Per high nibble: the bit that stands for it in `IDENTIFIER_BY_LOW`.
const BIT_BY_HIGH: [i8; 16] = {
    let mut table = [0i8; 16];
    let mut high = 0;
    while high < 8 {
        table[high] = (1u8 << high) as i8;
        high += 1;
    }
    table
};

/// The classes of bytes below 128, as bits.
mod class {
    pub const NOT_IDENTIFIER: i8 = 1;
    pub const OPEN: i8 = 1 << 1;
    pub const CLOSE: i8 = 1 << 2;
    pub const COMMA: i8 = 1 << 3;
    pub const SPACE: i8 = 1 << 4;
    pub const SPECIAL: i8 = 1 << 5;
    pub const QUOTE: i8 = 1 << 6;
    pub const BACKSLASH: i8 = -1 << 7;
}

/// The class bits of each byte below 128.
static CLASSES: [i8; 128] = {
    let mut table = [0i8; 128];
    let mut byte = 0usize;
    while byte < 128 {
        let c = byte as u8;
        let identifier = c.is_ascii_alphanumeric() || c == b'_' || c == b'.' || c == b'-';
        table[byte] = if identifier { 0 } else { class::NOT_IDENTIFIER }
            | match c {
                b'(' | b'[' | b'{' => class::OPEN,
                b')' | b']' | b'}' => class::CLOSE,
                b',' => class::COMMA,
                b' ' => class::SPACE,
                b'/' | b'\'' => class::SPECIAL,
                b'"' => class::QUOTE,
                b'\\' => class::BACKSLASH,
                _ => 0,
            };
        byte += 1;
    }
    table
};

impl Kernel for Avx512 {
    #[inline(always)]
    unsafe fn classify(block: &[u8; BLOCK]) -> Classes {
        // SAFETY: the loads read exactly the 64 bytes of `block` and the 128 of `CLASSES`; the
        // caller vouches for the features that the intrinsics need.
        unsafe {
            let bytes = _mm512_loadu_si512(block.as_ptr().cast());
            let lower = _mm512_loadu_si512(CLASSES.as_ptr().cast());
            let upper = _mm512_loadu_si512(CLASSES.as_ptr().add(64).cast());
            let classes = _mm512_permutex2var_epi8(lower, bytes, upper);
            let is = |bit: i8| _mm512_test_epi8_mask(classes, _mm512_set1_epi8(bit));
            // The low seven bits are the index into the table.
            let high = _mm512_movepi8_mask(bytes);
            if high != 0 {
                let ascii = !high;
                return Classes {
                    quote: is(class::QUOTE) & ascii,
                    backslash: is(class::BACKSLASH) & ascii,
                    newline: _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b'\n' as i8)),
                    open: is(class::OPEN) & ascii,
                    close: is(class::CLOSE) & ascii,
                    comma: is(class::COMMA) & ascii,
                    space: is(class::SPACE) & ascii,
                    special: is(class::SPECIAL) & ascii,
                    not_identifier: is(class::NOT_IDENTIFIER) | high,
                };
            }
            Classes {
                quote: is(class::QUOTE),
                backslash: is(class::BACKSLASH),
                newline: _mm512_cmpeq_epi8_mask(bytes, _mm512_set1_epi8(b'\n' as i8)),
                open: is(class::OPEN),
                close: is(class::CLOSE),
                comma: is(class::COMMA),
                space: is(class::SPACE),
                special: is(class::SPECIAL),
                not_identifier: is(class::NOT_IDENTIFIER),
            }
        }
    }

    #[inline(always)]
    unsafe fn prefix_xor(bits: u64) -> u64 {
        // SAFETY: the caller vouches for PCLMULQDQ.
        unsafe { carry_less_prefix(bits) }
    }

    #[inline(always)]
    fn prefetch(place: &u64) {
        prefetch(place);
    }
}

impl Kernel for Avx2 {
    #[inline(always)]
    unsafe fn classify(block: &[u8; BLOCK]) -> Classes {
        // SAFETY: the loads read the two halves of `block`; the caller vouches for the features.
        unsafe {
            let lower = _mm256_loadu_si256(block.as_ptr().cast());
            let upper = _mm256_loadu_si256(block.as_ptr().add(32).cast());
            let join = |a: __m256i, b: __m256i| {
                u64::from(_mm256_movemask_epi8(a) as u32)
                    | u64::from(_mm256_movemask_epi8(b) as u32) << 32
            };
            let both = |x: __m256i, y: __m256i, c: u8| {
                let c = _mm256_set1_epi8(c as i8);
                join(_mm256_cmpeq_epi8(x, c), _mm256_cmpeq_epi8(y, c))
            };
            let is = |c: u8| both(lower, upper, c);
            let bit = _mm256_set1_epi8(0x20);
            let (folded_lower, folded_upper) =
                (_mm256_or_si256(lower, bit), _mm256_or_si256(upper, bit));
            let is_folded = |c: u8| both(folded_lower, folded_upper, c);
            let low_table =
                _mm256_broadcastsi128_si256(_mm_loadu_si128(IDENTIFIER_BY_LOW.as_ptr().cast()));
            let high_table =
                _mm256_broadcastsi128_si256(_mm_loadu_si128(BIT_BY_HIGH.as_ptr().cast()));
            let not_identifier = |x: __m256i| {
                let low = _mm256_shuffle_epi8(low_table, x);
                let nibbles = _mm256_and_si256(_mm256_srli_epi16::<4>(x), _mm256_set1_epi8(15));
                let high = _mm256_shuffle_epi8(high_table, nibbles);
                _mm256_cmpeq_epi8(_mm256_and_si256(low, high), _mm256_setzero_si256())
            };
            Classes {
                quote: is(b'"'),
                backslash: is(b'\\'),
                newline: is(b'\n'),
                open: is(b'(') | is_folded(b'{'),
                close: is(b')') | is_folded(b'}'),
                comma: is(b','),
                space: is(b' '),
                special: is(b'/') | is(b'\''),
                not_identifier: join(not_identifier(lower), not_identifier(upper)),
            }
        }
    }

    #[inline(always)]
    unsafe fn prefix_xor(bits: u64) -> u64 {
        // SAFETY: the caller vouches for PCLMULQDQ.
        unsafe { carry_less_prefix(bits) }
    }

    #[inline(always)]
    fn prefetch(place: &u64) {
        prefetch(place);
    }
}

#[inline(always)]
fn prefetch(place: &u64) {
    // SAFETY: every x86-64 CPU has SSE; a prefetch does not change the program's state.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(place).cast()) }
}

/// # Safety
/// The CPU must have PCLMULQDQ.
#[inline(always)]
unsafe fn carry_less_prefix(bits: u64) -> u64 {
    // SAFETY: the caller vouches for the features.
    unsafe {
        let product = _mm_clmulepi64_si128::<0>(_mm_set_epi64x(0, bits as i64), _mm_set1_epi8(-1));
        _mm_cvtsi128_si64(product) as u64
    }
}
