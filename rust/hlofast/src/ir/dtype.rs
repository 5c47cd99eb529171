//! Element types, defined in one table.

macro_rules! element_types {
    ($($(#[$doc:meta])* $name:ident = $word:literal, $bits:literal, $kind:ident;)*) => {
        /// An element type of an array shape.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum ElementType { $($(#[$doc])* $name,)* }

        impl ElementType {
            /// Every element type, in code order.
            pub const ALL: &'static [ElementType] = &[$(ElementType::$name,)*];

            /// The type's name in HLO text.
            pub fn as_str(self) -> &'static str {
                match self { $(ElementType::$name => $word,)* }
            }

            /// Bits that carry information (`pred` 1, `token` and `opaque` 0).
            pub fn bits(self) -> u32 {
                match self { $(ElementType::$name => $bits,)* }
            }

            /// The family of the type's values.
            pub fn kind(self) -> ElementKind {
                match self { $(ElementType::$name => ElementKind::$kind,)* }
            }

            /// The type HLO text calls `word`.
            pub fn from_bytes(word: &[u8]) -> Option<ElementType> {
                match std::str::from_utf8(word).ok()? {
                    $($word => Some(ElementType::$name),)*
                    _ => None,
                }
            }
        }
    };
}

/// The family of an element type.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ElementKind {
    /// `pred`.
    Predicate,
    /// Two's complement integers.
    Signed,
    /// Unsigned integers.
    Unsigned,
    /// Floating point of any format.
    Float,
    /// Pairs of floats.
    Complex,
    /// `token` and `opaque`: no elements.
    Opaque,
}

element_types! {
    /// Boolean, stored as one byte.
    Pred = "pred", 1, Predicate;
    /// Signed, 1 bit.
    S1 = "s1", 1, Signed;
    /// Signed, 2 bits.
    S2 = "s2", 2, Signed;
    /// Signed, 4 bits.
    S4 = "s4", 4, Signed;
    /// Signed, 8 bits.
    S8 = "s8", 8, Signed;
    /// Signed, 16 bits.
    S16 = "s16", 16, Signed;
    /// Signed, 32 bits.
    S32 = "s32", 32, Signed;
    /// Signed, 64 bits.
    S64 = "s64", 64, Signed;
    /// Unsigned, 1 bit.
    U1 = "u1", 1, Unsigned;
    /// Unsigned, 2 bits.
    U2 = "u2", 2, Unsigned;
    /// Unsigned, 4 bits.
    U4 = "u4", 4, Unsigned;
    /// Unsigned, 8 bits.
    U8 = "u8", 8, Unsigned;
    /// Unsigned, 16 bits.
    U16 = "u16", 16, Unsigned;
    /// Unsigned, 32 bits.
    U32 = "u32", 32, Unsigned;
    /// Unsigned, 64 bits.
    U64 = "u64", 64, Unsigned;
    /// IEEE half.
    F16 = "f16", 16, Float;
    /// Brain float.
    Bf16 = "bf16", 16, Float;
    /// IEEE single.
    F32 = "f32", 32, Float;
    /// IEEE double.
    F64 = "f64", 64, Float;
    /// 8-bit float, 5 exponent bits, IEEE-like.
    F8e5m2 = "f8e5m2", 8, Float;
    /// 8-bit float, 4 exponent bits, IEEE-like.
    F8e4m3 = "f8e4m3", 8, Float;
    /// 8-bit float, 3 exponent bits, IEEE-like.
    F8e3m4 = "f8e3m4", 8, Float;
    /// 8-bit float, finite only.
    F8e4m3fn = "f8e4m3fn", 8, Float;
    /// 8-bit float, finite only, bias 11, no negative zero.
    F8e4m3b11fnuz = "f8e4m3b11fnuz", 8, Float;
    /// 8-bit float, finite only, no negative zero.
    F8e5m2fnuz = "f8e5m2fnuz", 8, Float;
    /// 8-bit float, finite only, no negative zero.
    F8e4m3fnuz = "f8e4m3fnuz", 8, Float;
    /// 8-bit scale: exponent only, unsigned.
    F8e8m0fnu = "f8e8m0fnu", 8, Float;
    /// 4-bit float.
    F4e2m1fn = "f4e2m1fn", 4, Float;
    /// 6-bit float, 3 exponent bits.
    F6e3m2fn = "f6e3m2fn", 6, Float;
    /// 6-bit float, 2 exponent bits.
    F6e2m3fn = "f6e2m3fn", 6, Float;
    /// Pair of singles.
    C64 = "c64", 64, Complex;
    /// Pair of doubles.
    C128 = "c128", 128, Complex;
    /// Ordering token, no data.
    Token = "token", 0, Opaque;
    /// Opaque pointer, no data.
    Opaque = "opaque", 0, Opaque;
}

impl ElementType {
    /// The type with this code (`ElementType as u8`).
    pub fn from_code(code: u8) -> Option<ElementType> {
        Self::ALL.get(code as usize).copied()
    }

    /// Bits of one element when it is not packed: whole bytes.
    pub fn storage_bits(self) -> u32 {
        self.bits().div_ceil(8) * 8
    }
}
