//! One text, one result: whichever path, kernel or number of threads reads it.

use crate::support::compare::read_in_every_way;
use crate::support::invariants::check_invariants;
use crate::support::mutate::{Random, mutate};
use crate::support::reading;

/// A share of all changed texts; more with `HLOFAST_MUTATIONS`.
fn rounds(usual: usize) -> usize {
    std::env::var("HLOFAST_MUTATIONS").ok().and_then(|n| n.parse().ok()).unwrap_or(usual)
}

fn read_and_check(what: &str, text: &[u8]) {
    for collect in [false, true] {
        if let Ok(module) = read_in_every_way(what, text, collect) {
            reading::with_context(what, text, || check_invariants(&module));
        }
    }
}

#[test]
fn dumps_read_the_same_in_every_way() {
    for (name, source) in reading::modules() {
        let module = read_in_every_way(&name, source.bytes(), false).unwrap();
        check_invariants(&module);
        assert!(module.row_count() > 3, "{name}");
    }
}

#[test]
fn probes_read_the_same_in_every_way() {
    for probe in reading::probes() {
        read_and_check(&probe.id, probe.text.as_bytes());
    }
}

#[test]
fn changed_probes_read_the_same_in_every_way() {
    let probes = reading::probes();
    let mut random = Random(1);
    for round in 0..rounds(6_000) {
        let probe = &probes[random.below(probes.len())];
        let seed = random.next();
        let text = mutate(probe.text.as_bytes(), &mut Random(seed));
        read_and_check(&format!("{} changed by {seed} in round {round}", probe.id), &text);
    }
}

/// A few lines of a dump, cut where computations begin and end.
fn excerpt<'t>(text: &'t [u8], random: &mut Random) -> Vec<u8> {
    let lines: Vec<&'t [u8]> = text.split_inclusive(|byte| *byte == b'\n').collect();
    let starts: Vec<usize> =
        (0..lines.len()).filter(|at| lines[*at].trim_ascii_end().ends_with(b"{")).collect();
    let mut cut = lines[0][..lines[0].len().min(400)].to_vec();
    cut.push(b'\n');
    for _ in 0..3 {
        let Some(start) = starts.get(random.below(starts.len())) else { break };
        let body = lines[*start..].iter().take_while(|line| line.first() != Some(&b'}'));
        for line in body.take(25) {
            cut.extend_from_slice(line);
        }
        cut.extend_from_slice(b"}\n\n");
    }
    cut
}

#[test]
fn changed_dumps_read_the_same_in_every_way() {
    let modules = reading::modules();
    let mut random = Random(2);
    for round in 0..rounds(1_500) {
        let (name, source) = &modules[random.below(modules.len())];
        let seed = random.next();
        let mut own = Random(seed);
        let text = mutate(&excerpt(source.bytes(), &mut own), &mut own);
        read_and_check(&format!("{name} changed by {seed} in round {round}"), &text);
    }
}
