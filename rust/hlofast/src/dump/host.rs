//! Which host wrote a dump, according to directory names.

/// Common names of the dump directory itself, which do not name a host.
const FOLDERS: [&str; 6] = ["xla_dump", "xla_dumps", "dump", "dumps", "hlo", "xla"];

/// The host in `folder`, relative to the scanned path. With `--xla_dump_hlo_to_subfolder` XLA
/// writes `MODULE/HOST_PID`; launchers put a directory per host or worker around or below the dump.
pub(super) fn host(folder: &str, module_name: &str) -> String {
    let parts: Vec<&str> = folder.split('/').filter(|part| !part.is_empty()).collect();
    if let [.., module, process] = parts.as_slice()
        && !module_name.is_empty()
        && *module == module_name
    {
        return (*process).to_owned();
    }
    let says = |part: &&&str| !FOLDERS.contains(*part) && **part != module_name;
    parts.iter().filter(says).copied().collect::<Vec<_>>().join("/")
}
