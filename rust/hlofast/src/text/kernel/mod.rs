//! Scanning kernels: one pass over a line gives bit masks of the bytes that structure it.
//!
//! A line ends at the first newline outside a double-quoted string. Bits of bytes inside strings
//! are cleared in every structural mask, so that brackets and commas in metadata do not count. All
//! kernels give equal masks; the fastest kernel that the machine supports is chosen at run time.

#![allow(unsafe_code, reason = "vector intrinsics; every block states why it is sound")]

mod portable;
#[cfg(target_arch = "x86_64")]
mod x86;

pub(crate) use portable::Portable;
#[cfg(target_arch = "x86_64")]
pub(crate) use x86::{Avx2, Avx512};

/// Bytes per block.
const BLOCK: usize = 64;

/// The bytes of each class in one block; bit `i` stands for byte `i`.
#[derive(Clone, Copy, Default)]
pub(crate) struct Classes {
    pub quote: u64,
    pub backslash: u64,
    pub newline: u64,
    pub open: u64,
    pub close: u64,
    pub comma: u64,
    pub space: u64,
    pub special: u64,
    pub not_identifier: u64,
}

/// A way to classify blocks.
pub(crate) trait Kernel {
    /// # Safety
    /// The CPU must have the kernel's features.
    unsafe fn classify(block: &[u8; BLOCK]) -> Classes;

    /// XOR of all bits up to and including each bit.
    ///
    /// # Safety
    /// The CPU must have the kernel's features.
    unsafe fn prefix_xor(bits: u64) -> u64;

    /// Prefetches the cache line of `place`, which will be read soon.
    fn prefetch(place: &u64);
}

/// The masks of one block, for bytes outside strings (`NOT_IDENTIFIER` for all bytes).
#[derive(Clone, Copy, Default)]
#[repr(align(64))]
pub(crate) struct Masks([u64; 8]);

/// `(`, `[`, `{`.
pub(crate) const OPEN: usize = 0;
/// `)`, `]`, `}`.
pub(crate) const CLOSE: usize = 1;
/// `,`.
pub(crate) const COMMA: usize = 2;
/// Space.
pub(crate) const SPACE: usize = 3;
/// `/` and `'`: comments and single-quoted strings, which only the general path reads.
pub(crate) const SPECIAL: usize = 4;
/// Bytes outside strings. The closing quote of a string counts as outside, the opening quote as
/// inside.
pub(crate) const OUTSIDE: usize = 6;
/// Everything but `[A-Za-z0-9_.-]`.
pub(crate) const NOT_IDENTIFIER: usize = 5;

/// The masks of one line, kept between lines so that nothing is allocated per line.
#[derive(Default)]
pub(crate) struct LineMasks {
    blocks: Vec<Masks>,
    /// Bytes in the line.
    pub length: usize,
    /// Whether any `SPECIAL` byte is in the line.
    pub has_special: bool,
}

impl LineMasks {
    /// Scans the line that starts at `start`. False if a string is still open at the end of the
    /// text.
    ///
    /// # Safety
    /// The CPU must have the features of `K`.
    #[inline(always)]
    pub unsafe fn scan<K: Kernel>(&mut self, text: &[u8], start: usize) -> bool {
        let mut in_string = 0u64;
        let mut escape_carry = 0u64;
        let mut special = 0u64;
        let mut at = start;
        let mut count = 0;
        loop {
            let mut padded = [0u8; BLOCK];
            let block: &[u8; BLOCK] = match text.get(at..).and_then(|rest| rest.first_chunk()) {
                Some(block) => block,
                None => {
                    let rest = text.get(at..).unwrap_or_default();
                    padded[..rest.len()].copy_from_slice(rest);
                    &padded
                }
            };
            // SAFETY: the caller vouches for the CPU's features.
            let classes = unsafe { K::classify(block) };
            let mut quote = classes.quote;
            if classes.backslash | escape_carry != 0 {
                quote &= !escaped(classes.backslash, &mut escape_carry);
            }
            let inside = if quote == 0 {
                in_string
            } else {
                // SAFETY: as above.
                let inside = unsafe { K::prefix_xor(quote) } ^ in_string;
                in_string = ((inside as i64) >> 63) as u64;
                inside
            };
            let outside = !inside;
            let newline = classes.newline & outside;
            let rest = text.len().saturating_sub(at);
            let ends = newline != 0 || rest <= BLOCK;
            let mut keep = outside;
            if ends {
                let length = if newline != 0 { newline.trailing_zeros() as usize } else { rest };
                keep &= low_bits(length);
                self.length = at - start + length;
            }
            special |= classes.special & keep;
            if count == self.blocks.len() {
                self.grow();
            }
            self.blocks[count] = Masks([
                classes.open & keep,
                classes.close & keep,
                classes.comma & keep,
                classes.space & keep,
                classes.special & keep,
                classes.not_identifier,
                keep,
                0,
            ]);
            count += 1;
            if ends {
                self.has_special = special != 0;
                return newline != 0 || in_string == 0;
            }
            at += BLOCK;
        }
    }

    #[cold]
    fn grow(&mut self) {
        let length = (self.blocks.len() * 2).max(32);
        self.blocks.resize(length, Masks::default());
    }

    /// The first byte at or after `from` that is in mask `KIND`, or the line's length.
    #[inline(always)]
    pub fn next<const KIND: usize>(&self, from: usize) -> usize {
        let mut word = from / BLOCK;
        let Some(masks) = self.blocks.get(word) else { return self.length };
        let mut bits = masks.0[KIND] >> (from % BLOCK);
        if bits != 0 {
            return (from + bits.trailing_zeros() as usize).min(self.length);
        }
        loop {
            word += 1;
            let base = word * BLOCK;
            if base >= self.length {
                return self.length;
            }
            bits = match self.blocks.get(word) {
                Some(masks) => masks.0[KIND],
                None => return self.length,
            };
            if bits != 0 {
                return (base + bits.trailing_zeros() as usize).min(self.length);
            }
        }
    }

    /// The first byte at or after `from` that is in mask `A` or `B`, or the line's length.
    #[inline(always)]
    pub fn next_of<const A: usize, const B: usize>(&self, from: usize) -> usize {
        let mut word = from / BLOCK;
        let Some(masks) = self.blocks.get(word) else { return self.length };
        let mut bits = (masks.0[A] | masks.0[B]) >> (from % BLOCK);
        if bits != 0 {
            return (from + bits.trailing_zeros() as usize).min(self.length);
        }
        loop {
            word += 1;
            let base = word * BLOCK;
            if base >= self.length {
                return self.length;
            }
            bits = match self.blocks.get(word) {
                Some(masks) => masks.0[A] | masks.0[B],
                None => return self.length,
            };
            if bits != 0 {
                return (base + bits.trailing_zeros() as usize).min(self.length);
            }
        }
    }
}

/// The lowest `count` bits.
#[inline(always)]
fn low_bits(count: usize) -> u64 {
    if count >= 64 { u64::MAX } else { (1u64 << count) - 1 }
}

/// Bytes that a backslash escapes. In a run of backslashes, every second one is escaped.
#[inline(always)]
fn escaped(backslash: u64, carry: &mut u64) -> u64 {
    let mut result = *carry;
    let mut pending = backslash & !*carry;
    *carry = 0;
    while pending != 0 {
        let at = pending.trailing_zeros();
        if at == 63 {
            *carry = 1;
            break;
        }
        let next = 2u64 << at;
        result |= next;
        pending &= !(next | (next >> 1));
    }
    result
}

/// The kernels, best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KernelChoice {
    /// 512-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx512,
    /// 256-bit vectors.
    #[cfg(target_arch = "x86_64")]
    Avx2,
    /// Plain Rust.
    Portable,
}

#[cfg(target_arch = "x86_64")]
mod dispatch {
    use super::{Avx2, Avx512, LineMasks};

    /// Whether the CPU has every feature that code for the AVX2 kernel is compiled for.
    pub fn has_avx2() -> bool {
        is_x86_feature_detected!("avx2")
            && is_x86_feature_detected!("pclmulqdq")
            && is_x86_feature_detected!("bmi1")
            && is_x86_feature_detected!("bmi2")
            && is_x86_feature_detected!("popcnt")
            && is_x86_feature_detected!("lzcnt")
    }

    /// Whether the CPU has every feature that code for the AVX-512 kernel is compiled for.
    pub fn has_avx512() -> bool {
        has_avx2()
            && is_x86_feature_detected!("avx512f")
            && is_x86_feature_detected!("avx512bw")
            && is_x86_feature_detected!("avx512vl")
            && is_x86_feature_detected!("avx512vbmi")
    }

    /// # Safety
    /// The CPU must have the features named.
    #[target_feature(
        enable = "avx512f,avx512bw,avx512vl,avx512vbmi,avx2,pclmulqdq,bmi1,bmi2,popcnt,lzcnt"
    )]
    pub unsafe fn scan_avx512(masks: &mut LineMasks, text: &[u8], start: usize) -> bool {
        // SAFETY: this function enables the CPU features of the kernel.
        unsafe { masks.scan::<Avx512>(text, start) }
    }

    /// # Safety
    /// The CPU must have the features named.
    #[target_feature(enable = "avx2,pclmulqdq,bmi1,bmi2,popcnt,lzcnt")]
    pub unsafe fn scan_avx2(masks: &mut LineMasks, text: &[u8], start: usize) -> bool {
        // SAFETY: this function enables the CPU features of the kernel.
        unsafe { masks.scan::<Avx2>(text, start) }
    }
}

impl KernelChoice {
    /// `LineMasks::scan` with this kernel.
    pub fn scan(self, masks: &mut LineMasks, text: &[u8], start: usize) -> bool {
        match self {
            // SAFETY: `detect` found the features these functions are compiled for.
            #[cfg(target_arch = "x86_64")]
            KernelChoice::Avx512 => unsafe { dispatch::scan_avx512(masks, text, start) },
            // SAFETY: as above.
            #[cfg(target_arch = "x86_64")]
            KernelChoice::Avx2 => unsafe { dispatch::scan_avx2(masks, text, start) },
            // SAFETY: the portable kernel needs no features.
            KernelChoice::Portable => unsafe { masks.scan::<Portable>(text, start) },
        }
    }

    /// The best kernel for this machine; with `force_scalar`, the portable kernel.
    pub fn detect(force_scalar: bool) -> Self {
        #[cfg(target_arch = "x86_64")]
        if !force_scalar {
            if dispatch::has_avx512() {
                return KernelChoice::Avx512;
            }
            if dispatch::has_avx2() {
                return KernelChoice::Avx2;
            }
        }
        let _ = force_scalar;
        KernelChoice::Portable
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn all_lines<K: Kernel>(text: &[u8]) -> Vec<(usize, bool, Vec<[u64; 8]>)> {
        let mut masks = LineMasks::default();
        let (mut at, mut lines) = (0, Vec::new());
        while at < text.len() {
            // SAFETY: the tests check the features first.
            let closed = unsafe { masks.scan::<K>(text, at) };
            let words = masks.length / BLOCK + 1;
            let blocks =
                masks.blocks[..words.min(masks.blocks.len())].iter().map(|m| m.0).collect();
            lines.push((masks.length, closed, blocks));
            at += masks.length + 1;
        }
        lines
    }

    #[test]
    fn kernels_agree() {
        let mut state = 1u64;
        let alphabet = b"aZ09_.- \n\"\\%,/'(){}[]=#\x80\xff\0\t@`^~;<>|";
        for length in 0..600 {
            let text: Vec<u8> = (0..length)
                .map(|_| {
                    state =
                        state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
                    alphabet[(state >> 33) as usize % alphabet.len()]
                })
                .collect();
            let expected = all_lines::<Portable>(&text);
            #[cfg(target_arch = "x86_64")]
            {
                if dispatch::has_avx2() {
                    assert_eq!(expected, all_lines::<Avx2>(&text));
                }
                if dispatch::has_avx512() {
                    assert_eq!(expected, all_lines::<Avx512>(&text));
                }
            }
            let _ = expected;
        }
    }

    #[test]
    fn strings_hide_structure() {
        let text = b"a(\"x\\\")\n\" , b\n{";
        let mut masks = LineMasks::default();
        // SAFETY: the portable kernel needs no features.
        assert!(unsafe { masks.scan::<Portable>(text, 0) });
        assert_eq!(masks.length, 13);
        assert_eq!(masks.next::<OPEN>(0), 1);
        assert_eq!(masks.next::<CLOSE>(0), 13);
        assert_eq!(masks.next::<COMMA>(0), 10);
    }
}
