//! Writes modules as protobufs: `text_proto FOLDER FILE...` puts one `HloModuleProto` for each
//! module of the files into the folder, or says why not.
#![allow(clippy::print_stdout, clippy::unwrap_used, reason = "an example")]

use hlofast::text::OpenOptions;
use std::path::Path;

fn main() {
    let mut arguments = std::env::args().skip(1);
    let folder = arguments.next().unwrap();
    for path in arguments {
        let bytes = std::fs::read(&path).unwrap().into();
        let modules = hlofast::text::open(bytes, &OpenOptions::default()).unwrap();
        for (number, part) in modules.into_iter().enumerate() {
            let name = Path::new(&path).file_name().unwrap().to_string_lossy();
            let target = format!("{folder}/{name}.{number}.hlo.pb");
            let module = hlofast::parse(part.source, &hlofast::Options::default());
            match module.and_then(|module| hlofast::proto::from_module(&module)) {
                Ok(written) => std::fs::write(target, written.bytes).unwrap(),
                Err(error) => println!("{path}: {error}"),
            }
        }
    }
}
