//! Opcodes: one table that defines names, operand counts and shape inference.

/// How many operands the parser requires.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Arity {
    /// Any number.
    Any,
    /// Exactly this many.
    Exactly(u8),
    /// At least this many.
    AtLeast(u8),
    /// An even number.
    Even,
    /// An odd number.
    Odd,
    /// No operands: the parentheses hold a payload (`parameter(0)`, `constant({1, 2})`).
    Payload,
}

impl Arity {
    /// Whether `count` operands are acceptable.
    #[inline]
    pub fn accepts(self, count: usize) -> bool {
        match self {
            Arity::Any => true,
            Arity::Exactly(n) => count == n as usize,
            Arity::AtLeast(n) => count >= n as usize,
            Arity::Even => count.is_multiple_of(2),
            Arity::Odd => !count.is_multiple_of(2),
            Arity::Payload => count == 0,
        }
    }
}

macro_rules! opcodes {
    ($($name:ident = $text:literal, $arity:ident $(($n:literal))?, $inferable:literal;)*) => {
        /// An HLO opcode.
        #[allow(missing_docs, reason = "the variants are the opcodes' own names")]
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[repr(u8)]
        pub enum Opcode {
            $($name,)*
            /// An opcode that is not in this table; the instruction keeps its text.
            Unknown,
        }

        impl Opcode {
            /// Every known opcode in code order, then `Unknown`.
            pub const ALL: &'static [Opcode] = &[$(Opcode::$name,)* Opcode::Unknown];
            const NAMES: &'static [&'static str] = &[$($text,)* "unknown"];
            const ARITIES: &'static [Arity] = &[$(Arity::$arity $(($n))?,)* Arity::Any];
            const INFERABLE: &'static [bool] = &[$($inferable,)* false];
        }
    };
}

opcodes! {
    Abs = "abs", Exactly(1), true;
    Acos = "acos", Exactly(1), true;
    Acosh = "acosh", Exactly(1), true;
    Add = "add", Exactly(2), true;
    AddDependency = "add-dependency", Exactly(2), true;
    AfterAll = "after-all", Any, true;
    AllGather = "all-gather", Any, false;
    AllGatherDone = "all-gather-done", Exactly(1), false;
    AllGatherStart = "all-gather-start", Any, false;
    AllReduce = "all-reduce", Any, false;
    AllReduceDone = "all-reduce-done", Exactly(1), false;
    AllReduceStart = "all-reduce-start", Any, false;
    AllToAll = "all-to-all", Any, false;
    And = "and", Exactly(2), true;
    Asin = "asin", Exactly(1), true;
    Asinh = "asinh", Exactly(1), true;
    AsyncDone = "async-done", AtLeast(1), false;
    AsyncStart = "async-start", Any, false;
    AsyncUpdate = "async-update", AtLeast(1), false;
    Atan2 = "atan2", Exactly(2), true;
    Atanh = "atanh", Exactly(1), true;
    BatchNormGrad = "batch-norm-grad", Exactly(5), true;
    BatchNormInference = "batch-norm-inference", Exactly(5), true;
    BatchNormTraining = "batch-norm-training", Exactly(3), true;
    Bitcast = "bitcast", Exactly(1), false;
    BitcastConvert = "bitcast-convert", Exactly(1), false;
    Broadcast = "broadcast", Exactly(1), true;
    Call = "call", Any, true;
    Cbrt = "cbrt", Exactly(1), true;
    Ceil = "ceil", Exactly(1), true;
    Cholesky = "cholesky", Exactly(1), true;
    Clamp = "clamp", Exactly(3), true;
    CollectiveBroadcast = "collective-broadcast", Any, false;
    CollectivePermute = "collective-permute", Any, false;
    CollectivePermuteDone = "collective-permute-done", Exactly(1), false;
    CollectivePermuteStart = "collective-permute-start", Any, false;
    Compare = "compare", Exactly(2), true;
    Complex = "complex", Exactly(2), true;
    Concatenate = "concatenate", Any, true;
    Conditional = "conditional", AtLeast(1), true;
    Constant = "constant", Payload, false;
    Convert = "convert", Exactly(1), false;
    Convolution = "convolution", Exactly(2), true;
    Copy = "copy", Exactly(1), true;
    CopyDone = "copy-done", Exactly(1), false;
    CopyStart = "copy-start", Exactly(1), false;
    Cosh = "cosh", Exactly(1), true;
    Cosine = "cosine", Exactly(1), true;
    CountLeadingZeros = "count-leading-zeros", Exactly(1), true;
    CustomCall = "custom-call", Any, false;
    Divide = "divide", Exactly(2), true;
    Domain = "domain", Exactly(1), true;
    Dot = "dot", Any, true;
    DynamicReshape = "dynamic-reshape", AtLeast(1), false;
    DynamicSlice = "dynamic-slice", AtLeast(1), false;
    DynamicUpdateSlice = "dynamic-update-slice", AtLeast(2), false;
    Erf = "erf", Exactly(1), true;
    Exponential = "exponential", Exactly(1), true;
    ExponentialMinusOne = "exponential-minus-one", Exactly(1), true;
    Fft = "fft", Exactly(1), true;
    Floor = "floor", Exactly(1), true;
    Fusion = "fusion", Any, false;
    Gather = "gather", Exactly(2), true;
    GetDimensionSize = "get-dimension-size", Exactly(1), true;
    GetTupleElement = "get-tuple-element", Exactly(1), true;
    Imag = "imag", Exactly(1), true;
    Infeed = "infeed", Exactly(1), false;
    Iota = "iota", Exactly(0), false;
    IsFinite = "is-finite", Exactly(1), true;
    Log = "log", Exactly(1), true;
    LogPlusOne = "log-plus-one", Exactly(1), true;
    Logistic = "logistic", Exactly(1), true;
    Map = "map", Any, true;
    Maximum = "maximum", Exactly(2), true;
    Minimum = "minimum", Exactly(2), true;
    Mulhi = "mulhi", Exactly(2), true;
    Multiply = "multiply", Exactly(2), true;
    Negate = "negate", Exactly(1), true;
    Not = "not", Exactly(1), true;
    OptBarrier = "opt-barrier", Exactly(1), true;
    Or = "or", Exactly(2), true;
    Outfeed = "outfeed", Exactly(2), false;
    Pad = "pad", Exactly(2), true;
    Parameter = "parameter", Payload, false;
    PartitionId = "partition-id", Exactly(0), true;
    Popcnt = "popcnt", Exactly(1), true;
    Power = "power", Exactly(2), true;
    RaggedAllToAll = "ragged-all-to-all", Any, false;
    RaggedDot = "ragged-dot", Exactly(3), true;
    Real = "real", Exactly(1), true;
    Recv = "recv", Exactly(1), false;
    RecvDone = "recv-done", Exactly(1), false;
    Reduce = "reduce", Even, true;
    ReducePrecision = "reduce-precision", Exactly(1), false;
    ReduceScatter = "reduce-scatter", Any, false;
    ReduceWindow = "reduce-window", Even, true;
    Remainder = "remainder", Exactly(2), true;
    ReplicaId = "replica-id", Exactly(0), true;
    Reshape = "reshape", Exactly(1), false;
    Reverse = "reverse", Exactly(1), true;
    Rng = "rng", Any, false;
    RngBitGenerator = "rng-bit-generator", AtLeast(1), false;
    RngGetAndUpdateState = "rng-get-and-update-state", Exactly(0), false;
    RoundNearestAfz = "round-nearest-afz", Exactly(1), true;
    RoundNearestEven = "round-nearest-even", Exactly(1), true;
    Rsqrt = "rsqrt", Exactly(1), true;
    ScaledDot = "scaled-dot", Exactly(4), true;
    Scan = "scan", Any, true;
    Scatter = "scatter", Odd, true;
    Select = "select", Exactly(3), true;
    SelectAndScatter = "select-and-scatter", Exactly(3), true;
    Send = "send", Exactly(2), false;
    SendDone = "send-done", Exactly(1), false;
    SetDimensionSize = "set-dimension-size", Exactly(2), true;
    ShiftLeft = "shift-left", Exactly(2), true;
    ShiftRightArithmetic = "shift-right-arithmetic", Exactly(2), true;
    ShiftRightLogical = "shift-right-logical", Exactly(2), true;
    Sign = "sign", Exactly(1), true;
    Sine = "sine", Exactly(1), true;
    Sinh = "sinh", Exactly(1), true;
    Slice = "slice", Exactly(1), false;
    Sort = "sort", Any, true;
    Sqrt = "sqrt", Exactly(1), true;
    StochasticConvert = "stochastic-convert", Exactly(2), false;
    Subtract = "subtract", Exactly(2), true;
    Tan = "tan", Exactly(1), true;
    Tanh = "tanh", Exactly(1), true;
    Topk = "topk", Exactly(1), true;
    Transpose = "transpose", Exactly(1), true;
    TriangularSolve = "triangular-solve", Exactly(2), true;
    Tuple = "tuple", Any, true;
    While = "while", Exactly(1), true;
    Xor = "xor", Exactly(2), true;
}

/// Whether the opcode may call computations, in which case its attributes are read while parsing.
const fn may_call(opcode: Opcode) -> bool {
    use Opcode::*;
    matches!(
        opcode,
        AllReduce
            | AllReduceStart
            | AsyncDone
            | AsyncStart
            | AsyncUpdate
            | Call
            | Conditional
            | CustomCall
            | Fusion
            | Map
            | Reduce
            | ReduceScatter
            | ReduceWindow
            | Scan
            | Scatter
            | SelectAndScatter
            | Sort
            | Unknown
            | While
    )
}

const SLOTS: usize = 1024;

/// Mixes the length and up to 16 bytes of a word; collisions are resolved by probing.
pub(super) const fn slot_of(head: u64, tail: u64, length: usize) -> usize {
    let mixed =
        (head ^ tail.rotate_left(29) ^ ((length as u64) << 57)).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (mixed >> 54) as usize
}

pub(super) const fn load(bytes: &[u8], from: usize) -> u64 {
    let mut value = 0u64;
    let mut i = 0;
    while i < 8 {
        if from + i < bytes.len() {
            value |= (bytes[from + i] as u64) << (8 * i);
        }
        i += 1;
    }
    value
}

pub(super) const fn tail_of(bytes: &[u8]) -> u64 {
    load(bytes, if bytes.len() > 8 { bytes.len() - 8 } else { 0 })
}

/// Open-addressed table from a word's hash to opcode codes (255 = empty).
const TABLE: [u8; SLOTS] = {
    let mut table = [255u8; SLOTS];
    let mut code = 0;
    while code < Opcode::Unknown as usize {
        let bytes = Opcode::NAMES[code].as_bytes();
        let mut slot = slot_of(load(bytes, 0), tail_of(bytes), bytes.len());
        while table[slot] != 255 {
            slot = (slot + 1) % SLOTS;
        }
        table[slot] = code as u8;
        code += 1;
    }
    table
};

/// First and last eight bytes and length of each name.
const KEYS: [(u64, u64, usize); Opcode::Unknown as usize] = {
    let mut keys = [(0, 0, 0); Opcode::Unknown as usize];
    let mut code = 0;
    while code < keys.len() {
        let bytes = Opcode::NAMES[code].as_bytes();
        keys[code] = (load(bytes, 0), tail_of(bytes), bytes.len());
        code += 1;
    }
    keys
};

impl Opcode {
    /// Whether it multiplies matrices or convolves; library calls that do are custom calls.
    #[inline]
    pub fn is_matmul(self) -> bool {
        matches!(self, Opcode::Convolution | Opcode::Dot | Opcode::RaggedDot | Opcode::ScaledDot)
    }

    /// Whether each element of the result depends on the same element of the operands alone: XLA's
    /// elementwise opcodes without copies.
    #[inline]
    pub fn is_elementwise(self) -> bool {
        use Opcode::*;
        matches!(
            self,
            Abs | Acos
                | Acosh
                | Add
                | And
                | Asin
                | Asinh
                | Atan2
                | Atanh
                | BitcastConvert
                | Cbrt
                | Ceil
                | Clamp
                | Compare
                | Complex
                | Convert
                | Cosh
                | Cosine
                | CountLeadingZeros
                | Divide
                | Erf
                | Exponential
                | ExponentialMinusOne
                | Floor
                | Imag
                | IsFinite
                | Log
                | LogPlusOne
                | Logistic
                | Map
                | Maximum
                | Minimum
                | Mulhi
                | Multiply
                | Negate
                | Not
                | Or
                | Popcnt
                | Power
                | Real
                | ReducePrecision
                | Remainder
                | RoundNearestAfz
                | RoundNearestEven
                | Rsqrt
                | Select
                | ShiftLeft
                | ShiftRightArithmetic
                | ShiftRightLogical
                | Sign
                | Sine
                | Sinh
                | Sqrt
                | StochasticConvert
                | Subtract
                | Tan
                | Tanh
                | Xor
        )
    }

    /// The opcode HLO text calls `word`.
    pub fn from_bytes(word: &[u8]) -> Option<Opcode> {
        Self::find(word, load(word, 0), tail_of(word))
    }

    /// The opcode that `text[start..end]` spells; quicker than `from_bytes` when text follows.
    #[inline(always)]
    pub(crate) fn from_text(text: &[u8], start: usize, end: usize) -> Option<Opcode> {
        let word = text.get(start..end)?;
        let chunk = |at: usize| text.get(at..).and_then(|rest| rest.first_chunk::<8>());
        let Some(head) = chunk(start) else { return Self::from_bytes(word) };
        let head = u64::from_le_bytes(*head);
        if word.len() < 8 {
            let head = head & ((1u64 << (8 * word.len())) - 1);
            return Self::find(word, head, head);
        }
        let tail = word.last_chunk::<8>().map_or(0, |tail| u64::from_le_bytes(*tail));
        Self::find(word, head, tail)
    }

    #[inline(always)]
    fn find(word: &[u8], head: u64, tail: u64) -> Option<Opcode> {
        let length = word.len();
        let mut slot = slot_of(head, tail, length);
        loop {
            let code = TABLE[slot] as usize;
            if code >= Opcode::Unknown as usize {
                return None;
            }
            // Up to 16 bytes, the length and the first and last eight bytes determine the word.
            if KEYS[code] == (head, tail, length)
                && (length <= 16 || Self::NAMES[code].as_bytes() == word)
            {
                return Some(Self::ALL[code]);
            }
            slot = (slot + 1) % SLOTS;
        }
    }

    /// The opcode with this code (`Opcode as u8`).
    #[inline]
    pub fn from_code(code: u8) -> Opcode {
        Self::ALL.get(code as usize).copied().unwrap_or(Opcode::Unknown)
    }

    /// The opcode's name in HLO text.
    #[inline]
    pub fn as_str(self) -> &'static str {
        Self::NAMES[self as usize]
    }

    /// How many operands the opcode takes.
    #[inline]
    pub fn arity(self) -> Arity {
        Self::ARITIES[self as usize]
    }

    /// Whether XLA's parser can infer an omitted result shape.
    #[inline]
    pub fn is_inferable(self) -> bool {
        Self::INFERABLE[self as usize]
    }

    /// Whether the opcode may call computations.
    #[inline]
    pub fn may_call(self) -> bool {
        const MAY_CALL: [bool; Opcode::ALL.len()] = {
            let mut table = [false; Opcode::ALL.len()];
            let mut code = 0;
            while code < table.len() {
                table[code] = may_call(Opcode::ALL[code]);
                code += 1;
            }
            table
        };
        MAY_CALL[self as usize]
    }

    /// Whether async sugar (`X-start`, `X-update`, `X-done`) may wrap the opcode. Opcodes with
    /// native start and done forms, and the async opcodes themselves, may not be wrapped.
    pub fn may_be_wrapped(self) -> bool {
        use Opcode::*;
        !matches!(self, AllGather | AllReduce | CollectivePermute | Copy | Recv | Send | Unknown)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_name_is_found_and_nothing_else() {
        for opcode in &Opcode::ALL[..Opcode::Unknown as usize] {
            let word = opcode.as_str();
            assert_eq!(Opcode::from_bytes(word.as_bytes()), Some(*opcode));
            let text = format!("x {word}(%operand)");
            assert_eq!(Opcode::from_text(text.as_bytes(), 2, 2 + word.len()), Some(*opcode));
        }
        for word in ["", "ad", "addd", "unknown", "all-gather-update", "fusion-start"] {
            assert_eq!(Opcode::from_bytes(word.as_bytes()), None);
        }
    }
}
