//! A rewritten module computes what it computed before: real dumps, random graphs, hostile texts.

use crate::support::mutate::Random;
use crate::support::round_trip::{check_round_trip, dumps, parse};
use crate::support::{generate, mutate, recipe, symbolic};
use hlofast::ir::{Module, Opcode, Row};
use hlofast::remat::{Recompute, Use, rewrite};
use std::fmt::Write;

/// The module rewritten, which has to be in order, printable, and the same computation.
fn checked(module: &Module, wanted: &[Recompute], label: &str) -> Module {
    let after = rewrite(module, wanted).unwrap_or_else(|error| panic!("{label}: {error}")).module;
    // In canonical text, since attributes of copies are spaced as that is.
    let canonical = |module: &Module| parse(&check_round_trip(module, &Default::default()));
    let before = symbolic::of_module(&canonical(module));
    assert_eq!(before, symbolic::of_module(&canonical(&after)), "{label}");
    assert_eq!(module.is_scheduled(), after.is_scheduled());
    for row in after.rows().filter(|row| !after.is_implicit(*row)) {
        assert!(after.operands(row).iter().all(|operand| *operand < row.0), "{label}");
    }
    after
}

/// Two collectives of a rewritten module share a channel only if their originals did.
fn channels(module: &Module) -> Vec<Vec<u8>> {
    let channels = module.rows().filter_map(|row| module.attribute_bytes(row, "channel_id"));
    channels.map(<[u8]>::to_vec).collect()
}

#[test]
fn dumps_compute_the_same_after_rewriting() {
    let (mut done, mut refused_in_all) = (0, 0);
    for (name, text) in dumps() {
        let module = parse(&text);
        if text.len() > 300_000 || !is_plain(&module) {
            continue;
        }
        let (mut possible, refused) =
            recipe::possible(&module, recipe::for_last_users(&module, 10));
        // Their copies are plain gathers, another way to compute the same.
        possible.retain(|recompute| !is_end_of_gather(&module, recompute));
        done += possible.len();
        refused_in_all += refused.len();
        if module.is_scheduled() {
            let after = checked(&module, &possible, &name);
            let before = channels(&module);
            let fresh = channels(&after).into_iter().filter(|channel| !before.contains(channel));
            let mut fresh: Vec<_> = fresh.collect();
            let count = fresh.len();
            fresh.sort();
            fresh.dedup();
            assert!(fresh.len() * 2 >= count, "at most an end shares its start's channel");
        } else {
            for recompute in &possible {
                checked(&module, std::slice::from_ref(recompute), &name);
            }
        }
    }
    assert!(done > 100 && refused_in_all > 10, "{done} {refused_in_all}");
}

/// Whether the producer is a fusion that ends a gather.
fn is_end_of_gather(module: &Module, recompute: &Recompute) -> bool {
    let Recompute::ForUsers { producer, .. } = recompute else { return false };
    module.calls(*producer).iter().any(|call| {
        let root = Row(module.computation(call.computation).root);
        module.instruction_text(root).windows(19).any(|word| word == b"AsyncCollectiveDone")
    })
}

/// Whether everything is written in the text, in order.
fn is_plain(module: &Module) -> bool {
    module.rows().all(|row| {
        let is_path = module.is_implicit(row) && module.opcode(row) == Opcode::GetTupleElement;
        !is_path && module.operands(row).iter().all(|operand| *operand < row.0)
    })
}

/// A random graph of `count` instructions.
fn random_text(random: &mut Random, count: usize) -> String {
    let scheduled = if random.below(2) == 0 { ", is_scheduled=true" } else { "" };
    let mut text = format!("HloModule m{scheduled}\n\n%f (q: f32[8]) -> f32[8] {{\n");
    text.push_str(
        "  %q = f32[8]{0} parameter(0)\n  ROOT %s = f32[8]{0} sine(%q)\n}\n\nENTRY %e {\n",
    );
    text.push_str("  %v0 = f32[8]{0} parameter(0)\n  %v1 = f32[8]{0} parameter(1)\n");
    let mut arrays = vec!["v0".to_owned(), "v1".to_owned()];
    for number in 2..count {
        let mut pick = || {
            // Recent values more often, so that graphs become deep.
            let far = random.below(arrays.len()).min(random.below(arrays.len()));
            arrays[arrays.len() - 1 - far].clone()
        };
        let (a, b) = (pick(), pick());
        let name = format!("v{number}");
        match random.below(8) {
            0 => writeln!(text, "  %{name} = f32[8]{{0}} negate(%{a})").unwrap(),
            1 => writeln!(text, "  %{name} = f32[8]{{0}} fusion(%{a}), kind=kLoop, calls=%f").unwrap(),
            2 => writeln!(text, "  %{name} = f32[8]{{0}} all-reduce(%{a}), channel_id={number}, replica_groups={{}}, to_apply=%f").unwrap(),
            3 => {
                let start = format!("{name}-start");
                writeln!(text, "  %{start} = (f32[8]{{0}}, f32[8]{{0}}, u32[]) copy-start(%{a})").unwrap();
                writeln!(text, "  %{name} = f32[8]{{0}} copy-done(%{start})").unwrap();
            }
            4 => {
                let pair = format!("{name}-pair");
                writeln!(text, "  %{pair} = (f32[8]{{0}}, f32[8]{{0}}) tuple(%{a}, %{b})").unwrap();
                writeln!(text, "  %{name} = f32[8]{{0}} get-tuple-element(%{pair}), index=1").unwrap();
            }
            _ => writeln!(text, "  %{name} = f32[8]{{0}} add(%{a}, %{b})").unwrap(),
        }
        arrays.push(name);
    }
    let last: Vec<String> = arrays.iter().rev().take(3).map(|name| format!("%{name}")).collect();
    let shape = vec!["f32[8]{0}"; last.len()].join(", ");
    writeln!(text, "  ROOT %all = ({shape}) tuple({})\n}}", last.join(", ")).unwrap();
    text
}

/// A random part of the users of a random value, with some of what it is computed from.
fn random_recompute(random: &mut Random, module: &Module) -> Option<Recompute> {
    let entry = module.computation(module.entry());
    let producer = Row(entry.first_row + random.below(entry.rows().len()) as u32);
    let mut uses = Vec::new();
    for user in module.users().get(producer.0) {
        for (operand, read) in module.operands(Row(*user)).iter().enumerate() {
            if *read == producer.0 && random.below(5) < 3 {
                uses.push(Use { user: Row(*user), operand });
            }
        }
    }
    let mut chain = Vec::new();
    let mut at = producer;
    while random.below(5) < 2
        && let Some(operand) = module.operands(at).first()
    {
        at = Row(*operand);
        chain.push(at);
    }
    (!uses.is_empty()).then_some(Recompute::ForUsers { producer, chain, uses })
}

#[test]
fn random_graphs_compute_the_same_after_rewriting() {
    let (mut done, mut refused) = (0, 0);
    for seed in 0..400 {
        let mut random = Random(seed);
        let count = 4 + random.below(36);
        let module = parse(random_text(&mut random, count).as_bytes());
        let mut wanted = Vec::new();
        for _ in 0..8 {
            let Some(recompute) = random_recompute(&mut random, &module) else { continue };
            match rewrite(&module, std::slice::from_ref(&recompute)) {
                Ok(_) => wanted.push(recompute),
                Err(_) => refused += 1,
            }
        }
        for recompute in &wanted {
            let label = format!("seed {seed}");
            let after = checked(&module, std::slice::from_ref(recompute), &label);
            // Each rewriting in turn of what the one before gave.
            if let Some(next) = random_recompute(&mut random, &after)
                && rewrite(&after, std::slice::from_ref(&next)).is_ok()
            {
                checked(&after, &[next], &label);
            }
            done += 1;
        }
        // All at once; in unscheduled modules some may have to wait for each other.
        if rewrite(&module, &wanted).is_ok() {
            checked(&module, &wanted, &format!("seed {seed}, all at once"));
        }
    }
    assert!(done > 300 && refused > 100, "{done} {refused}");
}

/// Whatever the text and whatever is asked: an answer or an error.
#[test]
fn hostile_texts_are_answered() {
    for seed in 0..300 {
        let mut random = Random(seed);
        let text = generate::generate(seed, 12).text.into_bytes();
        let text = mutate::mutate(&text, &mut random);
        let source = hlofast::text::Source::from_slice(&text);
        let Ok(module) = hlofast::parse(source, &hlofast::Options::default()) else { continue };
        for _ in 0..20 {
            let mut row = || Row(random.below(module.row_count() + 2) as u32);
            let recompute = Recompute::ForUsers {
                producer: row(),
                chain: vec![row()],
                uses: vec![Use { user: row(), operand: 0 }],
            };
            let other = Recompute::FromStack { update: row(), source: row() };
            let _ = rewrite(&module, &[recompute]);
            let _ = rewrite(&module, &[other]);
        }
        for recompute in recipe::for_last_users(&module, 20) {
            let _ = rewrite(&module, &[recompute]);
        }
    }
}
