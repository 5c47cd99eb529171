//! An allocator that counts, for tests of memory.

#![allow(unsafe_code, reason = "an allocator; every call is handed on to the system's")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

/// Counts what the program holds on the heap, and the most it held.
pub struct Counting {
    held: AtomicUsize,
    peak: AtomicUsize,
}

impl Counting {
    /// Nothing counted yet.
    pub const fn new() -> Self {
        Self { held: AtomicUsize::new(0), peak: AtomicUsize::new(0) }
    }

    /// The most bytes that `work` held beyond those held before it, and its result.
    pub fn peak_of<T>(&self, work: impl FnOnce() -> T) -> (usize, T) {
        let before = self.held.load(Relaxed);
        self.peak.store(before, Relaxed);
        let result = work();
        (self.peak.load(Relaxed).saturating_sub(before), result)
    }

    fn add(&self, bytes: usize) {
        let held = self.held.fetch_add(bytes, Relaxed) + bytes;
        self.peak.fetch_max(held, Relaxed);
    }
}

// SAFETY: every call is handed on to the system's allocator as it came.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        self.held.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        self.add(layout.size());
        // SAFETY: the caller keeps to the contract.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        self.add(size);
        self.held.fetch_sub(layout.size(), Relaxed);
        // SAFETY: the caller keeps to the contract.
        unsafe { System.realloc(pointer, layout, size) }
    }
}
