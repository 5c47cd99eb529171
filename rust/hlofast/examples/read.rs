//! Reads one text so many times: `read (tolerant|columns|strict) TIMES FILE`, for profilers and
//! counters.

use hlofast::parse::Strictness;
use hlofast::text::Source;
use hlofast::{Options, parse};
use std::error::Error;
use std::hint::black_box;

fn main() -> Result<(), Box<dyn Error>> {
    let mut arguments = std::env::args().skip(1);
    let (Some(mode), Some(times), Some(path)) =
        (arguments.next(), arguments.next(), arguments.next())
    else {
        return Err("usage: read (tolerant|columns|strict) TIMES FILE".into());
    };
    let strictness = match mode.as_str() {
        "tolerant" | "columns" => Strictness::Tolerant,
        "strict" => Strictness::Jaxlib,
        _ => return Err("the mode is tolerant, columns or strict".into()),
    };
    let source = Source::new(std::fs::read(path)?.into());
    let options = Options { strictness, ..Options::default() };
    for _ in 0..times.parse()? {
        let module = parse(source.clone(), &options)?;
        if mode == "columns" {
            module.users();
            module.computation_column();
            module.element_type_column();
            module.rank_column();
            module.elements_column();
            module.shape_bytes_column();
            module.parameter_number_column();
            module.leaf_offsets();
            module.metadata_columns();
        }
        black_box(module);
    }
    Ok(())
}
