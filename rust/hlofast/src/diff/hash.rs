//! Hashes that find candidates for equality. Every comparison has a new key, so that nobody can
//! prepare a text whose instructions collide.

use std::hash::{BuildHasher, Hasher, RandomState};

/// Creates the hashes of one comparison.
#[derive(Clone, Copy)]
pub(super) struct Mixer {
    seed: u64,
    factor: u64,
}

/// The hash of a sequence of words.
#[derive(Clone, Copy)]
pub(super) struct Hash {
    state: u64,
    factor: u64,
}

impl Mixer {
    pub(super) fn new() -> Self {
        let keys = RandomState::new();
        let key = |n: u64| {
            let mut hasher = keys.build_hasher();
            hasher.write_u64(n);
            hasher.finish()
        };
        Self { seed: key(0), factor: key(1) | 1 }
    }

    pub(super) fn start(self, kind: u64) -> Hash {
        let mut hash = Hash { state: self.seed, factor: self.factor };
        hash.word(kind);
        hash
    }
}

impl Hash {
    #[inline]
    pub(super) fn word(&mut self, word: u64) {
        let product = u128::from(self.state ^ word) * u128::from(self.factor);
        self.state = ((product as u64) ^ ((product >> 64) as u64)).rotate_left(19) ^ word;
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) {
        self.word(bytes.len() as u64);
        let (words, rest) = bytes.as_chunks::<8>();
        words.iter().for_each(|word| self.word(u64::from_le_bytes(*word)));
        if !rest.is_empty() {
            self.word(rest.iter().rev().fold(0, |word, byte| word << 8 | u64::from(*byte)));
        }
    }

    #[inline]
    pub(super) fn finish(mut self) -> u64 {
        self.word(0x9e37_79b9_7f4a_7c15);
        self.word(self.state >> 32);
        self.state
    }
}
