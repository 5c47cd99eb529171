//! Words of enumerations by their numbers, for reading and writing.

pub(super) const PRECISIONS: [&str; 4] = ["default", "high", "highest", "packed_nibble"];
pub(super) const ALGORITHMS: [&str; 14] = [
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
];
pub(super) const FFT_TYPES: [&str; 4] = ["FFT", "IFFT", "RFFT", "IRFFT"];
pub(super) const DISTRIBUTIONS: [&str; 3] = ["rng_invalid", "rng_uniform", "rng_normal"];
pub(super) const RANDOM_ALGORITHMS: [&str; 3] = ["rng_default", "rng_three_fry", "rng_philox"];
pub(super) const TRANSPOSES: [&str; 4] =
    ["TRANSPOSE_INVALID", "NO_TRANSPOSE", "TRANSPOSE", "ADJOINT"];
pub(super) const CONVOLUTION_KINDS: [&str; 4] = ["unset", "fprop", "dgrad", "wgrad"];
pub(super) const PADDING_TYPES: [&str; 3] = ["PADDING_INVALID", "PADDING_VALID", "PADDING_SAME"];
pub(super) const SCHEDULES: [&str; 3] = ["SCHEDULE_NONE", "SCHEDULE_LATEST", "SCHEDULE_EARLIEST"];
pub(super) const API_VERSIONS: [&str; 5] = [
    "API_VERSION_UNSPECIFIED",
    "API_VERSION_ORIGINAL",
    "API_VERSION_STATUS_RETURNING",
    "API_VERSION_STATUS_RETURNING_UNIFIED",
    "API_VERSION_TYPED_FFI",
];
