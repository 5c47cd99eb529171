//! Writes a dump in which values are computed again: `rewrite FILE RECIPE.json`, or
//! `rewrite FILE COUNT` for about that many values with several users.

#[path = "../tests/support/recipe.rs"]
mod recipe;

use std::io::Write;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [path, wanted] = arguments.as_slice() else {
        return Err("usage: rewrite FILE RECIPE.json|COUNT".into());
    };
    let source = hlofast::text::Source::new(std::fs::read(path)?.into());
    let module = hlofast::parse(source, &hlofast::Options::default())
        .map_err(|error| format!("{error:?}"))?;
    let recomputes = match wanted.parse() {
        Ok(count) => {
            let all = recipe::for_last_users(&module, count);
            let (possible, refused) = recipe::possible(&module, all);
            let mut log = std::io::stderr();
            for reason in &refused {
                writeln!(log, "{reason}")?;
            }
            writeln!(log, "{} of {}", possible.len(), possible.len() + refused.len())?;
            possible
        }
        Err(_) => recipe::read(&module, &serde_json::from_slice(&std::fs::read(wanted)?)?)?,
    };
    let rewritten = hlofast::remat::rewrite(&module, &recomputes)?;
    std::io::stdout().write_all(rewritten.module.text())?;
    Ok(())
}
