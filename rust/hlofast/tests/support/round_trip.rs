//! Modules printed and read again.

use crate::support::reading;
use hlofast::ir::Module;
use hlofast::print::{EqualityOptions, Form, PrintOptions, structurally_equal_with, to_text};
use hlofast::text::Source;

/// Reads `text`; panics with the place and message if that fails.
pub fn parse(text: &[u8]) -> Module {
    match hlofast::parse(Source::from_slice(text), &hlofast::Options::default()) {
        Ok(module) => module,
        Err(error) => {
            let start = (error.span().start as usize).min(text.len());
            let from = text[..start].iter().rposition(|b| *b == b'\n').map_or(0, |at| at + 1);
            let to =
                text[start..].iter().position(|b| *b == b'\n').map_or(text.len(), |n| start + n);
            let line = String::from_utf8_lossy(&text[from..to]);
            panic!("{}: {line}", error.message());
        }
    }
}

/// Name and text of every dump among the fixtures that holds a module and nothing else.
pub fn dumps() -> Vec<(String, Vec<u8>)> {
    let dumps = reading::dumps().into_iter().filter(|dump| dump.bytes.starts_with(b"HloModule"));
    dumps.map(|dump| (dump.name, dump.bytes)).collect()
}

/// Every combination of print options.
pub fn all_print_options() -> Vec<PrintOptions> {
    let mut all = Vec::new();
    for bits in 0..64u32 {
        let bit = |n: u32| bits & (1 << n) != 0;
        all.push(PrintOptions {
            form: if bit(0) { Form::Short } else { Form::Long },
            operand_shapes: bit(1),
            layouts: !bit(2),
            metadata: !bit(3),
            backend_config: !bit(4),
            fold: bit(5),
        });
    }
    all
}

/// What stays comparable in text printed with `options`.
fn comparable(options: &PrintOptions) -> EqualityOptions {
    EqualityOptions {
        layouts: options.layouts,
        metadata: options.metadata,
        backend_config: options.backend_config,
    }
}

/// Prints, reads and compares; the printed text.
pub fn check_round_trip(module: &Module, options: &PrintOptions) -> Vec<u8> {
    let text = to_text(module, options);
    let again = parse(&text);
    if let Err(difference) = structurally_equal_with(module, &again, &comparable(options)) {
        let shown = String::from_utf8_lossy(&text);
        panic!("{difference}\n{options:?}\n{}", &shown[..shown.len().min(3000)]);
    }
    text
}
