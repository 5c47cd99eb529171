//! Words of enumerations, in the order of their numbers in protobufs.

/// The words of one enumeration.
#[derive(Debug)]
pub(crate) struct Words {
    pub(crate) names: &'static [&'static str],
    /// Whether XLA accepts the words in upper and lower case.
    pub(crate) any_case: bool,
    /// Words that XLA's parser rejects: only protobufs and older texts have them.
    pub(crate) refused: &'static [&'static str],
}

const fn words(names: &'static [&'static str]) -> Words {
    Words { names, any_case: false, refused: &[] }
}

const fn any_case(names: &'static [&'static str]) -> Words {
    Words { names, any_case: true, refused: &[] }
}

/// Directions of comparisons. Directions, comparison types, fusion kinds and modes have no numbers
/// in protobufs.
pub(super) static DIRECTIONS: Words = words(&["EQ", "NE", "GE", "GT", "LE", "LT"]);
pub(super) static COMPARISON_TYPES: Words = words(&["FLOAT", "TOTALORDER", "SIGNED", "UNSIGNED"]);
pub(super) static FUSION_KINDS: Words = words(&["kLoop", "kInput", "kOutput", "kCustom"]);
pub(super) static MODES: Words =
    words(&["cross_replica", "cross_partition", "cross_replica_and_partition", "flattened_id"]);
pub(crate) static PRECISIONS: Words = Words {
    names: &["default", "high", "highest", "packed_nibble"],
    any_case: true,
    refused: &["packed_nibble"],
};
pub(super) static ALGORITHMS: Words = any_case(&[
    "unset",
    "dot_any_f8_any_f8_f32",
    "dot_any_f8_any_f8_f32_fast_accum",
    "dot_f16_f16_f16",
    "dot_f16_f16_f32",
    "dot_bf16_bf16_bf16",
    "dot_bf16_bf16_f32",
    "dot_bf16_bf16_f32_x3",
    "dot_bf16_bf16_f32_x6",
    "dot_tf32_tf32_f32",
    "dot_tf32_tf32_f32_x3",
    "dot_f32_f32_f32",
    "dot_f64_f64_f64",
    "dot_bf16_bf16_f32_x9",
]);
pub(super) static FFT_TYPES: Words = words(&["FFT", "IFFT", "RFFT", "IRFFT"]);
pub(super) static DISTRIBUTIONS: Words = any_case(&["rng_invalid", "rng_uniform", "rng_normal"]);
pub(super) static RANDOM_ALGORITHMS: Words =
    any_case(&["rng_default", "rng_three_fry", "rng_philox"]);
pub(super) static TRANSPOSES: Words =
    words(&["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"]);
pub(super) static CONVOLUTION_KINDS: Words = words(&["unset", "fprop", "dgrad", "wgrad"]);
pub(super) static PADDING_TYPES: Words =
    words(&["PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"]);
pub(super) static SCHEDULES: Words =
    any_case(&["SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"]);
pub(super) static API_VERSIONS: Words = Words {
    names: &[
        "API_VERSION_UNSPECIFIED",
        "API_VERSION_ORIGINAL",
        "API_VERSION_STATUS_RETURNING",
        "API_VERSION_STATUS_RETURNING_UNIFIED",
        "API_VERSION_TYPED_FFI",
    ],
    any_case: true,
    refused: &["API_VERSION_UNSPECIFIED"],
};
