//! Gives memory of the C library's heap back to the system.
#![cfg_attr(
    all(target_os = "linux", target_env = "gnu"),
    allow(unsafe_code, reason = "std has no function for it")
)]

/// Texts of more bytes leave enough free memory behind to look for it, which takes milliseconds.
const LARGE: u64 = 32 << 20;

/// Returns free memory to the system after the analysis of a text of so many bytes.
///
/// glibc keeps free memory that lies below blocks in use: the rows of a large text would keep
/// hundreds of megabytes from the next one, whose blocks differ.
pub fn trim_after(text_bytes: u64) {
    if text_bytes < LARGE {
        return;
    }
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    {
        unsafe extern "C" {
            /// Returns free pages of all arenas, but for `pad` bytes at the top of the main arena.
            safe fn malloc_trim(pad: usize) -> std::ffi::c_int;
        }
        malloc_trim(0);
    }
}
