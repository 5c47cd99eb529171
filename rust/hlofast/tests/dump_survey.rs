//! Surveys of files that somebody has listed, and their parts, whose files mean the same elsewhere.

use hlofast::dump::store::Store;
use hlofast::dump::walk::sort;
use hlofast::dump::{
    AnalysisOptions, Found, ReadOptions, Repeated, Survey, TableKind, Tables, Trouble, file_rows,
    read,
};
use std::collections::HashMap;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const MODULE: &str = "HloModule f\n\nENTRY e {\n  ROOT p = f32[8]{0} parameter(0)\n}\n";
const ASSIGNMENT: &str = "BufferAssignment:\nallocation 0: size 32, parameter 0, shape |f32[8]| at \
                          ShapeIndex {}:\n value: <0 p @0> (size=32,offset=0): f32[8]{0}\n\n\
                          Total bytes used: 32 (32B)\n";

/// Files in memory.
#[derive(Debug)]
struct Memory(HashMap<PathBuf, &'static str>);

impl Store for Memory {
    fn read(&self, file: &Found, most: u64) -> io::Result<Vec<u8>> {
        let text = self.0.get(&file.path).ok_or_else(|| io::Error::other("vanished"))?;
        Ok(text.as_bytes()[..text.len().min(most as usize)].to_vec())
    }

    fn at_once(&self) -> usize {
        4
    }
}

/// Two runs below two roots: programs whose files are far apart, files without a program, a file
/// that is gone and one that cannot be read.
fn survey() -> Survey {
    let files = [
        ("mem://a/run/module_0000.f.after_optimizations.txt", MODULE),
        ("mem://a/run/module_0000.f.after_optimizations-buffer-assignment.txt", ASSIGNMENT),
        ("mem://a/run/module_0000.f.0001.p.after_x.before_y.txt", MODULE),
        ("mem://a/run/module_0000.f.target_arguments.txt", "version: TPU_VERSION_PUFFERFISH\n"),
        ("mem://a/run/module_0001.f.after_optimizations.txt", MODULE),
        ("mem://a/run/f.schedule.txt", "entry:\n"),
        ("mem://a/run/notes.md", "nothing\n"),
        ("mem://a/run/renamed", MODULE),
        ("mem://b/module_0000.g.after_optimizations.txt", "HloModule g\n\nENTRY e {\n  x"),
    ];
    let roots = ["mem://a".to_owned(), "mem://b/".to_owned()];
    let gone = [("mem://a/run/module_0002.h.txt", None), ("mem://a/run/secret", Some("denied"))];
    let listed = files.iter().map(|(path, text)| (*path, text.len(), None));
    let listed = listed.chain(gone.map(|(path, reason)| (path, 7, reason)));
    let mut listing: Vec<Found> = listed
        .map(|(path, bytes, reason)| {
            let trouble = reason.map(|reason| Trouble::Failed(reason.to_owned()));
            let bytes = bytes as u64;
            Found { bytes, trouble, ..Found::listed(path.into(), &roots) }
        })
        .collect();
    sort(&mut listing);
    let texts = files.into_iter().map(|(path, text)| (path.into(), text)).collect();
    Survey::from_listing(listing, &roots, Arc::new(Memory(texts)))
}

/// What reading every file of a survey gives: rows of files and of modules, as bytes.
fn rows(survey: &Survey) -> Vec<Vec<u8>> {
    rows_with(survey, &options(0))
}

/// Modules, of whose results as many bytes are kept for files with the same bytes.
fn options(kept: usize) -> ReadOptions {
    let tables = Tables::FILES.with(TableKind::Modules);
    ReadOptions {
        analysis: AnalysisOptions::new(tables),
        max_bytes: 1 << 20,
        max_text_bytes: 1 << 20,
        max_seconds: None,
        repeated: Arc::new(Repeated::new(kept)),
        force_scalar: false,
    }
}

fn rows_with(survey: &Survey, options: &ReadOptions) -> Vec<Vec<u8>> {
    let outcomes = (0..survey.own as u32).map(|file| read(survey, file, options, None, |_| false));
    outcomes
        .flat_map(|outcome| {
            let modules = outcome.tables.iter().map(|(_, rows)| rows.to_bytes());
            let modules: Vec<Vec<u8>> = modules.collect();
            [vec![file_rows(survey, &[outcome]).to_bytes()], modules].concat()
        })
        .collect()
}

#[test]
fn listed_datasets_are_not_entered() {
    let roots = ["mem://a".to_owned(), "mem://b".to_owned()];
    let paths = [
        "mem://a/results/hlofast-manifest.jsonl",
        "mem://a/results/table=files/part-1.jsonl",
        "mem://a/results2/x.ll",
        "mem://a/run/tables/hlofast-manifest.jsonl",
        "mem://a/run/tables/table=files/part-1.jsonl",
        "mem://a/run/x.ll",
        "mem://b/hlofast-manifest.jsonl",
        "mem://b/x.ll",
    ];
    let files = paths.iter().map(|path| Found::listed(path.into(), &roots)).collect();
    let survey = Survey::from_listing(files, &roots, Arc::new(Memory(HashMap::new())));
    let rows: Vec<_> = survey.found.iter().map(|file| (file.text(), file.is_folder)).collect();
    let row = |path: &str, is_folder| (path.to_owned(), is_folder);
    let expected = [
        row("mem://a/results", true),
        row("mem://a/results2/x.ll", false),
        row("mem://a/run/tables", true),
        row("mem://a/run/x.ll", false),
        row("mem://b", true),
    ];
    for row in &expected {
        assert!(rows.contains(row), "{row:?} in {rows:?}");
    }
    assert_eq!(rows.len(), expected.len());
    let reasons = survey.found.iter().filter(|file| file.is_folder).map(|file| &file.trouble);
    let skipped = Trouble::Skipped("a dataset that hlofast wrote".to_owned());
    assert!(reasons.into_iter().all(|reason| reason.as_ref() == Some(&skipped)));
}

#[test]
fn files_with_the_same_bytes_have_their_own_rows() {
    let survey = survey();
    let each = rows(&survey);
    for kept in [1, 1 << 20] {
        let options = options(kept);
        assert_eq!(rows_with(&survey, &options), each);
        assert_eq!(rows_with(&survey, &options), each, "all of it seen before");
    }
}

#[test]
fn files_with_the_same_bytes_are_analysed_once() {
    let survey = survey();
    let no_time = |options| ReadOptions { max_seconds: Some(Duration::ZERO), ..options };
    let modules = |options: &ReadOptions| {
        let read = |file| read(&survey, file, options, None, |_| false).modules;
        (0..survey.own as u32).map(read).collect::<Vec<_>>()
    };
    let kept = options(1 << 20);
    rows_with(&survey, &kept);
    let analysed = no_time(options(0));
    assert!(modules(&analysed).iter().all(|count| *count == 0), "no time to analyse anything");
    // One of the four has a memory file beside it.
    assert_eq!(modules(&no_time(kept)).iter().sum::<u32>(), 3);
}

#[test]
fn files_of_one_size_are_read_in_succession() {
    let alike = |sizes: &[(&str, u64)]| {
        let files = sizes.iter().enumerate().map(|(at, (ending, bytes))| {
            let path = format!("mem://a/module_0000.f.{at:04}.p.after_x.before_y.{ending}");
            Found { bytes: *bytes, ..Found::listed(path.into(), &["mem://a".to_owned()]) }
        });
        let roots = ["mem://a".to_owned()];
        let survey =
            Survey::from_listing(files.collect(), &roots, Arc::new(Memory(HashMap::new())));
        (0..=sizes.len()).map(|file| survey.alike(file)).collect::<Vec<_>>()
    };
    let text = |bytes| ("txt", bytes);
    assert_eq!(alike(&[text(5), text(5), text(7), text(8), text(8)]), [2, 1, 3, 2, 1, 1]);
    assert_eq!(alike(&[text(1), text(2), text(3), text(4)]), [1, 1, 1, 1, 1]);
    let mixed = [("hlo.pb", 3), text(5), ("hlo.pb", 3), text(5), ("hlo.pb", 4), text(6)];
    assert_eq!(alike(&mixed), [4, 3, 1, 1, 1, 1, 1]);
    assert_eq!(alike(&[("ll", 5), ("ll", 5), text(5)]), [1, 1, 1, 1]);
    assert!(alike(&[text(5); 100]).iter().all(|count| (1..=16).contains(count)));
}

#[test]
fn listed_files_are_below_the_longest_root() {
    let roots = ["s3://x", "s3://x/y/", "plain.txt"].map(str::to_owned);
    let cases = [
        ("s3://x/y/z/f.txt", 1, "z"),
        ("s3://x/yy/f.txt", 0, "yy"),
        ("s3://x/f.txt", 0, ""),
        ("plain.txt", 2, ""),
        ("/q/r/f.txt", 0, "q/r"),
    ];
    for (path, root, folder) in cases {
        let file = Found::listed(path.into(), &roots);
        assert_eq!((file.root, file.folder.as_str()), (root, folder), "{path}");
        assert_eq!(file.name, path.rsplit('/').next().unwrap_or_default());
    }
}

#[test]
fn given_files_are_files_of_their_directories() {
    let roots = [
        "d/module_0001.f.before_optimizations.txt",
        "d/./module_0001.f.after_optimizations.txt",
        "d/module_0001.f.after_optimizations.txt",
        "e/",
        "e/g.txt",
        "h.txt",
    ];
    let roots = roots.map(str::to_owned);
    let file = |path: &str, root: u32| {
        let path = PathBuf::from(path);
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        Found { root, folder: String::new(), name, ..Found::listed(path, &[]) }
    };
    let mut listing: Vec<Found> =
        (0..).zip(&roots).filter(|(at, _)| *at != 3).map(|(at, root)| file(root, at)).collect();
    listing.push(file("e/g.txt", 3));
    sort(&mut listing);
    let texts = listing.iter().map(|file| (file.path.clone(), MODULE)).collect();
    let survey = Survey::from_listing(listing, &roots, Arc::new(Memory(texts)));
    assert_eq!(survey.roots, ["d", "e", ""]);
    assert_eq!(survey.found.len(), 4);
    let mut keys: Vec<&str> = survey.programs.list.iter().map(|own| own.key.as_str()).collect();
    keys.sort_unstable();
    assert_eq!(keys, ["d/module_0001.f", "e/g.txt", "h.txt"]);
}

#[test]
fn programs_are_those_of_the_listing() {
    let survey = survey();
    let keys: Vec<&str> = survey.programs.list.iter().map(|p| p.key.as_str()).collect();
    assert!(keys.contains(&"mem://a/run/module_0000.f"), "{keys:?}");
    assert!(keys.contains(&"mem://b/module_0000.g"), "{keys:?}");
    let targets: Vec<Option<String>> = survey.targets();
    assert_eq!(targets.into_iter().flatten().collect::<Vec<_>>(), ["v4"]);
}

#[test]
fn parts_give_the_rows_of_the_whole() {
    let survey = survey();
    let whole = rows(&survey);
    assert!(whole.len() > survey.own);
    for size in 1..=survey.own + 1 {
        let mut joined = Vec::new();
        for first in (0..survey.own).step_by(size) {
            let (part, numbers) = survey.part(first..first + size);
            assert_eq!(part.own, size.min(survey.own - first));
            assert_eq!(part.programs.list.len(), numbers.len());
            for (program, number) in part.programs.list.iter().zip(numbers) {
                assert_eq!(program.key, survey.programs.list[number as usize].key);
            }
            joined.extend(rows(&part));
        }
        assert_eq!(joined, whole, "{size} files at a time");
    }
    assert_eq!(survey.part(50..70).0.own, 0);
}
