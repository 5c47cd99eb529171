//! What a module takes beyond its text, as `heap_bytes` says and as the allocator counts:
//! `cargo run --release --example memory -- FILE...` prints one JSON object per file.
#![allow(unsafe_code, reason = "a counting allocator")]
#![allow(clippy::print_stdout, reason = "a program")]

use hlofast::flow::{SourceOptions, Sources};
use hlofast::ir::Module;
use hlofast::text::Source;
use hlofast::{Options, parse};
use std::alloc::{GlobalAlloc, Layout, System};
use std::error::Error;
use std::sync::atomic::{AtomicUsize, Ordering};

struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);

// SAFETY: everything is handed on to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        LIVE.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promises are the same.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Fills everything that the columns of a module need: what `Module` computes on demand, and the result.
fn touch_columns(module: &Module) -> Sources {
    module.users();
    module.computation_column();
    module.element_type_column();
    module.rank_column();
    module.elements_column();
    module.shape_bytes_column();
    module.parameter_number_column();
    module.leaf_offsets();
    module.metadata_columns();
    Sources::new(module, &SourceOptions::default())
}

fn main() -> Result<(), Box<dyn Error>> {
    for path in std::env::args_os().skip(1) {
        let source = Source::new(std::fs::read(&path)?.into());
        let before = LIVE.load(Ordering::Relaxed);
        let counted = || LIVE.load(Ordering::Relaxed) - before;
        // The module itself lies on the heap too, so that it is counted as in Python.
        let module = Box::new(parse(source.clone(), &Options::default())?);
        let (parsed, parsed_counted) = (module.heap_bytes(), counted());
        let sources = touch_columns(&module);
        let (touched, touched_counted) = (module.heap_bytes() + sources.heap_bytes(), counted());
        println!(
            "{{\"text\": {}, \"parsed\": {parsed}, \"parsed_counted\": {parsed_counted}, \
             \"touched\": {touched}, \"touched_counted\": {touched_counted}}}",
            source.bytes().len(),
        );
    }
    Ok(())
}
