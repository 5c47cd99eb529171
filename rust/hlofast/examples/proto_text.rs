//! Prints the text of modules in protobuf form: `proto_text FILE...`, or how long it takes with
//! `--time`; plain or gzip.
#![allow(clippy::print_stdout, clippy::print_stderr, clippy::unwrap_used, reason = "an example")]

use std::io::Write;
use std::time::Instant;

fn main() {
    let mut is_timed = false;
    for path in std::env::args().skip(1) {
        if path == "--time" {
            is_timed = true;
            continue;
        }
        let bytes = std::fs::read(&path).unwrap();
        let bytes = hlofast::text::decompress(&bytes, None).unwrap().unwrap_or(bytes);
        let text = match hlofast::proto::to_text(&bytes) {
            Ok(translation) => translation.text,
            Err(error) => {
                eprintln!("{path}: {error}");
                continue;
            }
        };
        if !is_timed {
            if std::env::var_os("BESIDE").is_some() {
                std::fs::write(format!("{path}.own.txt"), &text).unwrap();
            } else {
                std::io::stdout().write_all(&text).unwrap();
            }
            continue;
        }
        let mut best = [f64::INFINITY; 2];
        for _ in 0..20 {
            let start = Instant::now();
            let text = hlofast::proto::to_text(&bytes).unwrap().text;
            best[0] = best[0].min(start.elapsed().as_secs_f64());
            let source = hlofast::text::Source::new(text.into());
            hlofast::parse(source, &hlofast::Options::default()).unwrap();
            best[1] = best[1].min(start.elapsed().as_secs_f64());
        }
        println!(
            "{path}: {} -> {} bytes, {:.3} + {:.3} ms",
            bytes.len(),
            text.len(),
            best[0] * 1e3,
            (best[1] - best[0]) * 1e3
        );
    }
}
