//! Reads a dump and writes its canonical text: `reprint FILE [short] [fold] [shapes]`.

use hlofast::print::{Form, PrintOptions, to_text};
use std::io::{Read, Write};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let has = |word: &str| arguments.iter().skip(1).any(|argument| argument == word);
    let path = arguments.first().ok_or("usage: reprint FILE|- [short] [fold] [shapes]")?;
    let mut text = Vec::new();
    if path == "-" {
        std::io::stdin().read_to_end(&mut text)?;
    } else {
        std::fs::File::open(path)?.read_to_end(&mut text)?;
    }
    let source = hlofast::text::Source::new(text.into());
    let module = hlofast::parse(source, &hlofast::Options::default())
        .map_err(|error| format!("{error:?}"))?;
    let options = PrintOptions {
        form: if has("short") { Form::Short } else { Form::Long },
        fold: has("fold"),
        operand_shapes: has("shapes"),
        ..PrintOptions::default()
    };
    std::io::stdout().write_all(&to_text(&module, &options))?;
    Ok(())
}
